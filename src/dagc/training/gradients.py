"""What clients compute on their own data: the gradient of one step, or the change of the model in several."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from dagc.data import Batches
from dagc.data.fields import Inputs
from dagc.draws import scramble
from dagc.errors import InvalidInput
from dagc.training.objective import Loss, classification_loss, forward, has_scores, scores_of
from dagc.training.optimizer import client_optimizer

__all__ = ["Computed", "Gradients", "OwnSteps", "Traits", "separate", "sharing", "try_out"]

TOGETHER = 1 << 18
"""Clients are grouped while their gradients together have no more entries than this."""
MOST = 16
"""The most clients in a group."""
DROPOUT = 3
"""The purposes of random numbers: the seed of a client and round has several."""


class OwnSteps(NamedTuple):
    """The steps that a client takes by itself in a round, with an optimizer that starts afresh in every round.

    Attributes:
        steps: The number of steps.
        epochs: Or the number of passes over its own data.
        momentum: The momentum within a round; nothing is carried over from the round before.
        weight_decay: As in `torch.optim.SGD`.
        optimizer: A class of `torch.optim`.
    """

    steps: int = 1
    epochs: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "SGD"

    def of(self, examples: int, batch_size: int) -> int:
        """The number of steps of a client with that many examples.

        Example:
            >>> OwnSteps(epochs=2).of(100, 32), OwnSteps(epochs=2).of(5, 32), OwnSteps(3).of(100, 32)
            (7, 2, 3)
        """
        if self.epochs is None:
            return self.steps
        return max(1, ceil(self.epochs * max(1.0, examples / batch_size) - 1e-9))


class Traits(NamedTuple):
    """The side effects of running a model.

    Attributes:
        draws: Whether it draws random numbers, as dropout does.
        buffers: The names of the buffers that change when it trains, as those of batch norm do.
    """

    draws: bool = False
    buffers: tuple[str, ...] = ()


PLAIN = Traits()
"""Nothing."""


class Computed(NamedTuple):
    """What a client has computed.

    Attributes:
        loss: The loss of its first step.
        change: The gradient, or the difference of the model, tensor by tensor.
        buffers: The buffers that have changed, in the order of `Traits.buffers`.
    """

    loss: float
    change: list[Tensor]
    buffers: list[Tensor]


class Gradients:
    """The gradients of clients at the server's model.

    For a small model, most of a gradient's time is overhead. So several clients are grouped: their batches are fetched
    together, and autograd is called once. Each has a lane, a model whose parameters share the server's memory, so its
    gradient is computed by the same operations as alone, bit for bit. A model that draws random numbers or changes
    buffers is copied for each client instead.

    Args:
        model: The server's model, which all clients share: they are up to date when they compute.
        batches: Where the examples come from.
        own_steps: The steps that clients take before they send the difference of the model; None to send the gradient.
        loss: The loss that clients minimise.
        traits: The model's side effects.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        own_steps: OwnSteps | None = None,
        loss: Loss = classification_loss,
        traits: Traits = PLAIN,
    ) -> None:
        self.model = model
        self.batches = batches
        self.own_steps = own_steps
        self.loss = loss
        self.traits = traits
        size = sum(parameter.numel() for parameter in _trainable(model))
        self._alone = own_steps is not None or traits != PLAIN
        together = 1 if self._alone else max(1, min(MOST, TOGETHER // size))
        self._lanes = [model, *(sharing(model) for _ in range(together - 1))]
        self._parameters = [_trainable(lane) for lane in self._lanes]
        self._agreed = _shapes(model)

    @property
    def together(self) -> int:
        """How many clients to compute at once, at most."""
        return len(self._lanes)

    def __call__(
        self,
        round: int,
        clients: Sequence[int],
        rate: float | None = None,
        starts: Sequence[Tensor] | None = None,
    ) -> list[Computed]:
        """Each client's loss and gradient, or difference, in this round.

        Args:
            round: From 0.
            clients: Their places in the partition.
            rate: The rate of their own steps.
            starts: Where each client starts, if not at the server's model.
        """
        where = [None] * len(clients) if starts is None else starts
        if self.own_steps is not None:
            assert rate is not None, "own steps need a rate"
            return [self._difference(round, i, rate, self.own_steps, at) for i, at in zip(clients, where, strict=True)]
        if self._alone or starts is not None:
            return [self._gradient(round, i, start) for i, start in zip(clients, where, strict=True)]
        batches = self._batches(round, clients)
        counts = np.array([len(y) for _, y in batches])
        each = len(self._parameters[0])
        inputs = [parameter for lane in self._parameters[: len(clients)] for parameter in lane]
        outputs = [forward(lane, x, y) for lane, (x, y) in zip(self._lanes, batches, strict=False)]
        if self.loss is classification_loss and has_scores(outputs[0]):  # together: for small models, calls dominate
            scores = torch.cat([scores_of(output) for output in outputs])
            losses = cross_entropy(scores, torch.cat([y for _, y in batches]), reduction="none")
            shares = torch.from_numpy(np.repeat(1 / counts, counts)).to(losses)  # a client's loss is a mean
            gradients = torch.autograd.grad(losses, inputs, shares, materialize_grads=True)
            means = np.add.reduceat(losses.detach().cpu().numpy(), np.cumsum(counts) - counts) / counts
        else:
            every = [self.loss(output, y) for output, (_, y) in zip(outputs, batches, strict=True)]
            gradients = torch.autograd.grad(every, inputs, materialize_grads=True)
            means = np.array([float(loss.detach()) for loss in every])
        self._check_shapes(self.model)
        return [Computed(mean, list(gradients[i * each : (i + 1) * each]), []) for i, mean in enumerate(means.tolist())]

    def _check_shapes(self, model: nn.Module) -> None:
        """Refuse a model that is no longer the one that all clients agreed on."""
        shapes = _shapes(model)
        if shapes != self._agreed:
            raise InvalidInput(_change(self._agreed, shapes))

    def _at(self, start: Tensor | None) -> tuple[nn.Module, list[nn.Parameter]]:
        """A separate model for one client; other clients use the shared one at the same time."""
        model = copy.deepcopy(self.model)
        parameters = _trainable(model)
        if start is not None:
            vector_to_parameters(start.clone(), parameters)
        return model, parameters

    def _gradient(self, round: int, client: int, start: Tensor | None) -> Computed:
        """The loss and the gradient at a client's own start, or at the server's model."""
        model, parameters = self._at(start)
        ((x, y),) = self._batches(round, [client])
        with self._drawing(round, client):
            loss = self.loss(forward(model, x, y), y)
        change = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
        self._check_shapes(model)
        return Computed(float(loss.detach()), change, self._changed(model))

    def _difference(self, round: int, client: int, rate: float, own_steps: OwnSteps, start: Tensor | None) -> Computed:
        """The first step's loss, and the initial model minus the one after all own steps."""
        model, parameters = self._at(start)
        before = [each.detach() for each in (self._parameters[0] if start is None else copy.deepcopy(parameters))]
        count = own_steps.of(int(self.batches.partition.sizes[client]), self.batches.batch_size)
        losses, moving = [], None
        optimizer = client_optimizer(parameters, own_steps.optimizer, rate, own_steps.weight_decay)
        with self._drawing(round, client):
            for step in range(count):
                ((x, y),) = self._batches(round * count + step, [client])
                loss = self.loss(forward(model, x, y), y)
                self._check_shapes(model)
                losses.append(float(loss.detach()))
                steps = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
                if optimizer is not None:
                    for parameter, each in zip(parameters, steps, strict=True):
                        parameter.grad = each
                    optimizer.step()
                    continue
                if own_steps.weight_decay:
                    decay = own_steps.weight_decay
                    steps = [each.add(p.detach(), alpha=decay) for each, p in zip(steps, parameters, strict=True)]
                if own_steps.momentum:
                    if moving is not None:
                        steps = [
                            old.mul_(own_steps.momentum).add_(each) for old, each in zip(moving, steps, strict=True)
                        ]
                    moving = steps
                for parameter, each in zip(parameters, steps, strict=True):
                    parameter.data.add_(each, alpha=-rate)
        change = [old - new.detach() for old, new in zip(before, parameters, strict=True)]
        return Computed(losses[0], change, self._changed(model))

    def _changed(self, model: nn.Module) -> list[Tensor]:
        return [model.get_buffer(name) for name in self.traits.buffers]

    @contextmanager
    def _drawing(self, round: int, client: int) -> Iterator[None]:
        """Seed torch's generator for this client and round, so that the model always draws the same numbers."""
        if not self.traits.draws:
            yield
            return
        with _forked(self._parameters[0][0].device):
            torch.manual_seed(scramble(scramble(scramble(self.batches.seed, round), client), DROPOUT))
            yield

    def _batches(self, number: int, clients: Sequence[int]) -> list[tuple[Inputs, Tensor]]:
        batches = self.batches.together(clients, number)
        device = self._parameters[0][0].device
        return batches if device.type == "cpu" else [(x.to(device), y.to(device)) for x, y in batches]


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """The shapes of what is trained, by name."""
    return {name: parameter.shape for name, parameter in model.named_parameters() if parameter.requires_grad}


def _change(before: dict[str, torch.Size], after: dict[str, torch.Size]) -> str:
    """How a model changed, in words."""
    name = next(name for name in {**before, **after} if before.get(name) != after.get(name))
    shapes = [f"shape {tuple(each[name])}" if name in each else "none" for each in (before, after)]
    return (
        f"the model changed while training: its parameter {name!r} had {shapes[0]} and has {shapes[1]}; all clients "
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
    """Train a copy of the model for one step, to see whether that works and which side effects it has.

    Raises:
        InvalidInput: It does not work; the message says why.
    """
    twin = copy.deepcopy(model)
    before = {name: buffer.clone() for name, buffer in twin.named_buffers()}
    with _forked(y.device):
        state = _generator_state(y.device)
        value = loss(forward(twin, x, y), y)
        draws = not torch.equal(_generator_state(y.device), state)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        kind = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidInput(f"the loss of a batch must be one number that depends on the model, not {kind}")
    shapes, agreed = _shapes(twin), _shapes(model)
    if shapes != agreed:
        raise InvalidInput(_change(agreed, shapes))
    gradient = torch.autograd.grad(value, _trainable(twin), materialize_grads=True)
    if any(part.layout != torch.strided for part in gradient):
        raise InvalidInput("an embedding has sparse gradients: make it with sparse=False")
    changed = (name for name, buffer in twin.named_buffers() if not torch.equal(buffer, before[name]))
    return Traits(draws, tuple(changed))


def _generator_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def _forked(device: torch.device) -> Iterator[None]:
    """Restore torch's generators after the block."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
