"""What clients compute on their own data: the gradient of one step, or the change of the model in several."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from dagc.data import Batches
from dagc.data.dataset import Inputs
from dagc.draws import scramble
from dagc.errors import InvalidInput
from dagc.training.config import Config
from dagc.training.objective import Loss, classification_loss, computed_loss, forward, scores_of
from dagc.training.optimizer import client_optimizer

TOGETHER = 1 << 18  # clients are grouped while their gradients together have no more entries than this
MOST = 16  # the most clients in a group
DROPOUT = 3  # the purposes of random numbers: the seed of a client and round has several


class Traits(NamedTuple):
    """The side effects of a model: whether it draws random numbers, and which buffers change when it trains."""

    draws: bool = False
    buffers: tuple[str, ...] = ()


class Computed(NamedTuple):
    """What a client has computed: the first step's loss, the gradient or difference, and the changed buffers."""

    loss: float
    change: list[Tensor]
    buffers: list[Tensor]


class Gradients:
    """The gradients of clients at the server's model, or the differences of the model after steps of their own.

    For a small model, most of a gradient's time is overhead. So several clients are grouped: their batches are fetched
    together, and autograd is called once. Each has a lane, a model whose parameters share the server's memory, so its
    gradient is computed by the same operations as alone, bit for bit. A model that draws random numbers or changes
    buffers, and one that takes own steps, is copied for each client instead.
    """

    def __init__(self, model: nn.Module, batches: Batches, config: Config, loss: Loss, traits: Traits) -> None:
        self.model, self.batches, self.config, self.loss, self.traits = model, batches, config, loss, traits
        self._copied = config.several_steps or traits != Traits()
        size = sum(parameter.numel() for parameter in _trainable(model))
        self.together = 1 if self._copied else max(1, min(MOST, TOGETHER // size))
        self._lanes = [model, *(sharing(model) for _ in range(self.together - 1))]
        self._parameters = [_trainable(lane) for lane in self._lanes]
        self._agreed = _shapes(model)

    def __call__(
        self, round: int, clients: Sequence[int], rate: float = 0.0, starts: Sequence[Tensor] | None = None
    ) -> list[Computed]:
        """The loss and gradient, or difference, of clients (places in the partition) in a round, counted from 0.

        `rate` is that of their own steps, `starts` where each client starts, if not at the server's model.
        """
        if self._copied or starts is not None:
            places = [None] * len(clients) if starts is None else starts
            return [self._alone(round, client, rate, start) for client, start in zip(clients, places, strict=True)]
        batches = self._batches(round, clients)
        lanes = self._parameters[: len(clients)]
        inputs = [parameter for lane in lanes for parameter in lane]
        outputs = [forward(lane, x, y) for lane, (x, y) in zip(self._lanes, batches, strict=False)]
        together = self.loss is classification_loss and computed_loss(outputs[0]) is None
        if together:  # for small models, calls dominate
            counts = np.array([len(y) for _, y in batches])
            scores = torch.cat([scores_of(output) for output in outputs])
            losses = cross_entropy(scores, torch.cat([y for _, y in batches]), reduction="none")
            weights = torch.from_numpy(np.repeat(1 / counts, counts)).to(losses)  # a client's loss is a mean
            gradients = torch.autograd.grad(losses, inputs, weights, materialize_grads=True)
            means = (np.add.reduceat(losses.detach().cpu().numpy(), np.cumsum(counts) - counts) / counts).tolist()
        else:
            values = [self.loss(output, y) for output, (_, y) in zip(outputs, batches, strict=True)]
            gradients = torch.autograd.grad(values, inputs, materialize_grads=True)
            means = [float(value.detach()) for value in values]
        _check_shapes(self._agreed, self.model)
        parts = iter(gradients)
        return [Computed(mean, [next(parts) for _ in lane], []) for mean, lane in zip(means, lanes, strict=True)]

    def _alone(self, round: int, client: int, rate: float, start: Tensor | None) -> Computed:
        """One client's result, on a copy of the model: others use the shared one at the same time."""
        model = copy.deepcopy(self.model)
        parameters = _trainable(model)
        if start is not None:
            vector_to_parameters(start.clone(), parameters)
        before = [parameter.detach().clone() for parameter in parameters] if self.config.several_steps else []
        count, losses, change = self._steps(client), [], None
        name, decay = self.config.client_optimizer, self.config.client_weight_decay
        optimizer = client_optimizer(name, parameters, rate, decay) if before else None
        with _forked(parameters[0].device) if self.traits.draws else nullcontext():
            if self.traits.draws:  # the model always draws the same numbers for this client and round
                torch.manual_seed(scramble(scramble(scramble(self.batches.seed, round), client), DROPOUT))
            for step in range(count):
                ((x, y),) = self._batches(round * count + step, [client])
                loss = self.loss(forward(model, x, y), y)
                _check_shapes(self._agreed, model)
                losses.append(float(loss.detach()))
                gradient = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
                if optimizer is not None:
                    for parameter, each in zip(parameters, gradient, strict=True):
                        parameter.grad = each
                    optimizer.step()
                else:
                    change = self._move(parameters, gradient, change, rate) if before else gradient
        if before:
            change = [old - new.detach() for old, new in zip(before, parameters, strict=True)]
        return Computed(losses[0], change or [], [model.get_buffer(name) for name in self.traits.buffers])

    def _steps(self, client: int) -> int:
        """The number of steps that a client takes by itself."""
        if self.config.epochs is None:
            return self.config.local_steps
        batches = max(1.0, int(self.batches.partition.sizes[client]) / self.batches.batch_size)
        return max(1, ceil(self.config.epochs * batches - 1e-9))

    def _move(
        self, parameters: list[nn.Parameter], gradient: list[Tensor], before: list[Tensor] | None, rate: float
    ) -> list[Tensor]:
        """A step as `torch.optim.SGD` makes it, whose import takes seconds; returns the step, for momentum."""
        decay, momentum = self.config.client_weight_decay, self.config.client_momentum
        if decay:
            gradient = [each.add(p.detach(), alpha=decay) for each, p in zip(gradient, parameters, strict=True)]
        if momentum and before is not None:
            gradient = [old.mul_(momentum).add_(each) for old, each in zip(before, gradient, strict=True)]
        for parameter, each in zip(parameters, gradient, strict=True):
            parameter.data.add_(each, alpha=-rate)
        return gradient

    def _batches(self, number: int, clients: Sequence[int]) -> list[tuple[Inputs, Tensor]]:
        device = self._parameters[0][0].device
        return [(x.to(device), y.to(device)) for x, y in self.batches.together(clients, number)]


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """The shapes of what is trained, by name."""
    return {name: parameter.shape for name, parameter in model.named_parameters() if parameter.requires_grad}


def _check_shapes(agreed: dict[str, torch.Size], model: nn.Module) -> None:
    """Refuse a model that is no longer the one that all clients agreed on."""
    shapes = _shapes(model)
    if shapes != agreed:
        name = next(name for name in {**agreed, **shapes} if agreed.get(name) != shapes.get(name))
        had, has = (f"shape {tuple(each[name])}" if name in each else "none" for each in (agreed, shapes))
        raise InvalidInput(
            f"the model changed while training: its parameter {name!r} had {had} and has {has}; all clients "
            "and rounds need the same parameters, so create them in its constructor"
        )


def sharing(model: nn.Module) -> nn.Module:
    """A second model whose parameters and buffers share the memory of the first."""
    twin = copy.deepcopy(model, {id(buffer): buffer for buffer in model.buffers()})
    for parameter, original in zip(twin.parameters(), model.parameters(), strict=True):
        parameter.data = original.data
    return twin


def separate(model: nn.Module) -> nn.Module:
    """A copy, of the same class, in which no two tensors share memory: what `save_pretrained` can write."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data = parameter.data.clone()
    return twin


def try_out(model: nn.Module, loss: Loss, x: Inputs, y: Tensor) -> Traits:
    """Train a copy of the model for one step, to see which side effects that has; `InvalidInput` if it fails."""
    twin = copy.deepcopy(model)
    before = {name: buffer.clone() for name, buffer in twin.named_buffers()}
    with _forked(y.device):
        state = _generator_state(y.device)
        value = loss(forward(twin, x, y), y)
        draws = not torch.equal(_generator_state(y.device), state)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidInput(f"the loss of a batch must be one number that depends on the model, not {kind}")
    _check_shapes(_shapes(model), twin)
    gradient = torch.autograd.grad(value, _trainable(twin), materialize_grads=True)
    if any(part.layout != torch.strided for part in gradient):
        raise InvalidInput("an embedding has sparse gradients: make it with sparse=False")
    return Traits(draws, tuple(name for name, each in twin.named_buffers() if not torch.equal(each, before[name])))


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _forked(device: torch.device) -> AbstractContextManager[Any]:
    """Restores torch's generators after its block."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
