"""Real updates for the study of the energy: what a client and the server send early, midway and late in a training.

Error feedback works both ways, within the default bytes. A client's vector is the change of its model plus its
residual; the server's is x − y. Small models take 10 steps of SGD per client and round. The transformers take 10 of
AdamW: a small GPT, and LoRA adapters for it after it was trained on the roles that no client has.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dagc.data import load, make_partition
from dagc.policies.plan import level_bytes
from dagc.training import Config, Federation
from dagc.updates import encode_update
from research.gpt import Gpt, adapter, pretrained

__all__ = ["TASKS", "Real", "kept"]

STEPS = 10
ROUNDS = 30
TASKS: dict[str, dict[str, Any]] = {
    "MLP": {"task": "mlp@fashion-mnist", "learning_rate": 0.1},
    "CNN": {"task": "cnn@cifar-10", "learning_rate": 0.05},
    "LSTM": {"task": "token-lstm@shakespeare", "partition": "by-client:clients=10", "learning_rate": 4.0},
    "GPT": {"adapted": False, "rounds": 20, "learning_rate": 1e-3},
    "LoRA": {"adapted": True, "rounds": 20, "learning_rate": 2e-3},
}
"""What is trained; the transformers by the four largest roles, with batches of 16 texts."""
CLIENTS, BATCH, BEFORE = 4, 16, 400
"""Of the transformers: clients, texts in a batch, and steps with other texts before adapters are trained."""
Shapes = list[tuple[int, ...]]


class Training(NamedTuple):
    """The start, the shapes of its tensors, clients' weights, rounds, and how a client's model changes in a round."""

    start: Tensor
    shapes: Shapes
    weights: Tensor
    rounds: int
    change: Callable[[int, int, Tensor], Tensor]


class Real(NamedTuple):
    """A vector that would be sent, who sends it and when, and the shapes of its tensors."""

    what: str
    vector: Tensor
    shapes: Shapes


def small(options: dict[str, Any], data: str | None) -> Training:
    """The training of a small model, which the library's own engine computes."""
    config = Config(method="none", rounds=ROUNDS, threads=1, local_steps=STEPS, data_dir=data, **options)
    federation = Federation(config)

    def change(round: int, client: int, model: Tensor) -> Tensor:
        (computed,) = federation.gradients(round, [client], rate=options["learning_rate"], starts=[model])
        return torch.cat([part.reshape(-1) for part in computed.change])

    weights = torch.tensor(federation.partition.weights, dtype=torch.float32)
    shapes = [tuple(parameter.shape) for parameter in federation.model.parameters()]
    return Training(federation.vector.clone(), shapes, weights, ROUNDS, change)


def transformer(adapted: bool, rounds: int, learning_rate: float, data: str | None) -> Training:
    """The training of a GPT by four roles, or of adapters for one that was trained on the others."""
    texts = load("shakespeare", data)
    parts = make_partition(f"by-client:clients={CLIENTS}", texts)
    if adapted:
        model = adapter(pretrained(texts, parts, BEFORE))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Gpt(texts.shape[0], len(texts.classes))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert isinstance(texts.train_x, Tensor)
    inputs, targets = texts.train_x, texts.train_y

    def change(round: int, client: int, start: Tensor) -> Tensor:
        vector_to_parameters(start.clone(), parameters)
        optimizer = torch.optim.AdamW(parameters, lr=learning_rate)
        draws = np.random.default_rng((round, client))
        for _ in range(STEPS):
            batch = draws.choice(parts.indices[client], BATCH)
            loss = nn.functional.cross_entropy(model(inputs[batch]).flatten(0, 1), targets[batch].flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if client == 0:
            print(f"round {round + 1}: loss {float(loss.detach()):.3f}", flush=True)
        return start - parameters_to_vector(parameters).detach()

    start = parameters_to_vector(parameters).detach().clone()
    shapes = [tuple(parameter.shape) for parameter in parameters]
    return Training(start, shapes, torch.tensor(parts.weights, dtype=torch.float32), rounds, change)


def updates(training: Training) -> Iterator[Real]:
    """What the first client and the server send in the first, the middle and the last round."""
    x, y = training.start.clone(), training.start.clone()
    shapes, most = training.shapes, int(level_bytes(len(training.start)))
    residuals = [torch.zeros_like(x) for _ in training.weights]
    for round in range(training.rounds):
        shown = round in (0, training.rounds // 2, training.rounds - 1)
        total = torch.zeros_like(x)
        for client, weight in enumerate(training.weights.tolist()):
            residuals[client] += training.change(round, client, y)
            if shown and client == 0:
                yield Real(f"client, round {round + 1}", residuals[0].clone(), shapes)
            left = residuals[client]
            _, update = encode_update(left, shapes, most)
            update.subtract_from(left)
            update.add_to(total, weight)
        x -= total
        if shown:
            yield Real(f"server, round {round + 1}", x - y, shapes)
        _, update = encode_update(x - y, shapes, most)
        update.add_to(y)


def kept(model: str, folder: Path, data: str | None = None) -> list[Real]:
    """The updates of a model, from a file in this folder; the training runs if there is none."""
    path = folder / f"{model}.npz"
    if not path.exists():
        options = TASKS[model]
        training = transformer(**options, data=data) if "adapted" in options else small(options, data)
        vectors: dict[str, Any] = {each.what: each.vector.numpy() for each in updates(training)}
        folder.mkdir(parents=True, exist_ok=True)
        vectors["shapes"] = np.array([" ".join(map(str, shape)) for shape in training.shapes])
        np.savez(path, **vectors)
    with np.load(path) as arrays:
        shapes = [tuple(map(int, text.split())) for text in arrays["shapes"].tolist()]
        return [Real(name, torch.from_numpy(arrays[name]), shapes) for name in arrays.files if name != "shapes"]
