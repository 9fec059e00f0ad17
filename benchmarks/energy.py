"""How much of an update's energy a frame carries, by bytes: signs, int8 Top-k, levels, and levels with terms.

    python -m benchmarks.energy                   # three tasks, both ways, three rounds; about two minutes
    python -m benchmarks.energy time              # seconds to encode and decode, as multiples of other work

The updates are those of trainings of ten clients with 10 local steps, error feedback both ways and 48 · ½√d bytes per
frame. What a client sends is the change of its model plus its residual, and what the server sends is x − y.
`--record` keeps energy and energy-time for `docs/studies/energy.md`.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.tables import arguments, show
from dagc.compressors import top_k
from dagc.data import data_folder, load
from dagc.errors import MissingData
from dagc.training import Config, Federation
from dagc.updates import decode_update, encode_dense, encode_update
from dagc.wire import decode, encode

TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "MLP@FMNIST": ({"task": "mlp@fashion-mnist", "learning_rate": 0.1}, 30),
    "CNN@CIFAR-10": ({"task": "cnn@cifar-10", "learning_rate": 0.05}, 30),
    "LSTM@Shakespeare": (
        {"task": "token-lstm@shakespeare", "partition": "by-client:clients=10", "learning_rate": 4.0},
        30,
    ),
}
"""What is trained, and for how many rounds."""
BUDGETS = (0.25, 1, 4, 16, 48, 64)
"""In units of ½√d bytes, the default."""
TRAINED = 48
"""With which of them it is trained."""
STEPS = 10


def carried(vector: torch.Tensor, decoded: torch.Tensor) -> float:
    """The share of the energy that is not left."""
    return 1 - float((vector - decoded).double().square().sum() / vector.double().square().sum())


def sparse(vector: torch.Tensor, most: int, values: str) -> float:
    """The share that the largest entries carry in a frame without levels."""
    low, high, best = 0, min(len(vector), 8 * most), 0.0
    while high - low > max(1, low // 100):
        count = (low + high + 1) // 2
        frame = encode(top_k(vector, count), values)
        if len(frame) <= most:
            low, best = count, carried(vector, decode(frame, len(vector)).dense())
        else:
            high = count - 1
    return best


def vectors(name: str) -> Iterator[tuple[str, torch.Tensor, list[tuple[int, ...]]]]:
    """What a client and the server send in the first, a middle and the last round; and the tensors' shapes."""
    options, rounds = TASKS[name]
    federation = Federation(Config(method="none", rounds=rounds, threads=1, local_steps=STEPS, **options))
    shapes = [tuple(p.shape) for p in federation.model.parameters()]
    weights = torch.tensor(federation.partition.weights, dtype=torch.float32)
    x, y = federation.vector.clone(), federation.vector.clone()
    most = int(TRAINED * 0.5 * math.sqrt(len(x)))
    residuals = [torch.zeros_like(x) for _ in weights]
    for round in range(rounds):
        total = torch.zeros_like(x)
        for client, weight in enumerate(weights):
            (computed,) = federation.gradients(round, [client], rate=options["learning_rate"], starts=[y])
            residuals[client] += torch.cat([part.reshape(-1) for part in computed.change])
            if client == 0 and round in (0, rounds // 2, rounds - 1):
                yield f"client, round {round + 1}", residuals[0].clone(), shapes
            residual = residuals[client]
            _, update = encode_update(residual, shapes, most, residual=residual)
            update.add_to(total, float(weight))
        x -= total
        if round in (0, rounds // 2, rounds - 1):
            yield f"server, round {round + 1}", x - y, shapes
        _, update = encode_update(x - y, shapes, most)
        update.add_to(y)


def energies(record: bool) -> None:
    """The table of energies."""
    rows = []
    for name in TASKS:
        for what, vector, shapes in vectors(name):
            for form in ("signs", "int8", "levels", "chosen"):
                cells = []
                for budget in BUDGETS:
                    most = int(budget * 0.5 * math.sqrt(len(vector)))
                    if form in ("signs", "int8"):
                        share = sparse(vector, most, "sign" if form == "signs" else "int8")
                    else:
                        terms = 64 if form == "chosen" else 0
                        share = carried(vector, encode_update(vector, shapes, most, most_terms=terms)[1].dense())
                    cells.append(f"{share:.3f}")
                rows.append((f"{name}, {what}", form, *cells))
    heads = ("", "form", *(f"{budget:g} ×" for budget in BUDGETS))
    show("energy", "Share of the energy that a frame carries, by bytes (multiples of ½√d)", heads, rows, record)


def seconds(work: Callable[[], Any], times: int = 9) -> float:
    """The median of the CPU seconds that some work takes."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return sorted(taken)[len(taken) // 2]


def large(rows: int) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """A vector like an update of a transformer, of `rows` · 1024 entries: low rank and noise."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(1024, 1024)] * (rows // 1024)
    vector = torch.randn(rows * 1024, generator=generator)
    for part in vector.view(-1, 1024, 1024):
        left = torch.randn(1024, 12, generator=generator) * torch.logspace(0, -1, 12)
        part.addmm_(left, torch.randn(12, 1024, generator=generator))
    return vector.mul_(1e-3), shapes


def times(record: bool) -> None:
    """The table of times."""
    rows = []
    options, _ = TASKS["CNN@CIFAR-10"]
    federation = Federation(Config(method="none", rounds=2, threads=1, local_steps=STEPS, **options))
    start = [federation.vector]
    steps = seconds(lambda: federation.gradients(0, [0], rate=0.05, starts=start))
    (computed,) = federation.gradients(0, [0], rate=0.05, starts=start)
    vector = torch.cat([part.reshape(-1) for part in computed.change])
    shapes: list[tuple[int, ...]] = [tuple(part.shape) for part in computed.change]
    for budget in (1, 16, 48):
        rows.append(timed(f"CNN, 236 k, {budget} ×", vector, shapes, budget, steps, "10 local steps"))
    for size in (11, 100):
        vector, squares = large(size * 1024)
        target = torch.zeros_like(vector)
        add = seconds(lambda vector=vector, target=target: target.add_(vector), 5)
        rows.append(timed(f"{size} M, 48 ×", vector, squares, 48, add, "an add"))
        frame, _ = encode_dense(vector, squares, 8)
        dense = (lambda v=vector, s=squares: encode_dense(v, s, 8), lambda f=frame, s=squares: decode_update(f, s))
        cells = [f"{seconds(work, 1) / add:.1f} ×" for work in dense]
        rows.append((f"{size} M, dense, 8 bits", f"{add * 1e3:.1f} ms (an add)", *cells, ""))
    heads = ("", "unit", "encode", "decode", "add")
    show("energy-time", "CPU time on one thread, as multiples of the unit", heads, rows, record)


def timed(
    name: str, vector: torch.Tensor, shapes: list[Any], budget: float, unit: float, unit_name: str
) -> tuple[str, ...]:
    """A row of times."""
    most = int(budget * 0.5 * math.sqrt(len(vector)))
    residual, few = torch.empty_like(vector), 1 if len(vector) > 1 << 24 else 5
    write = seconds(lambda: encode_update(vector, shapes, most, residual=residual), few)
    frame, update = encode_update(vector, shapes, most)
    read = seconds(lambda: decode_update(frame, shapes), few)
    added = seconds(lambda: update.add_to(residual), few)
    cells = [f"{value / unit:.2f} ×" for value in (write, read, added)]
    return (name, f"{unit * 1e3:.1f} ms ({unit_name})", *cells)


def main(what: str, record: bool) -> None:
    """The energies, or the times."""
    torch.set_num_threads(1)
    (times if what == "time" else energies)(record)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("what", nargs="?", default="energies", choices=("energies", "time"))
    options = parser.parse_args()
    try:
        for task, _ in TASKS.values():
            load(task["task"].partition("@")[2])
    except MissingData as error:
        sys.exit(f"{error}\n(data folder: {data_folder()})")
    main(options.what, options.record)
