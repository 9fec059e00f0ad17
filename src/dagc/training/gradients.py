"""What clients compute on their own data: the gradient of one step, or what several steps change in the model."""

import copy
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from dagc.data import Batches

__all__ = ["Gradients", "OwnSteps"]

TOGETHER = 1 << 18
"""Clients are taken together while their gradients have no more entries than this."""
MOST = 16
"""The most clients that are taken together."""


class OwnSteps(NamedTuple):
    """The steps that a client takes in a round by itself: SGD, which begins again with every round.

    Attributes:
        steps: How many.
        epochs: Or how many times it goes over its own data.
        momentum: Of the steps within a round; there is none from the round before.
        weight_decay: As in `torch.optim.SGD`.
    """

    steps: int = 1
    epochs: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0

    def of(self, examples: int, batch_size: int) -> int:
        """The number of steps of a client with that many examples.

        Example:
            >>> OwnSteps(epochs=2).of(100, 32), OwnSteps(epochs=2).of(5, 32), OwnSteps(3).of(100, 32)
            (7, 2, 3)
        """
        if self.epochs is None:
            return self.steps
        return max(1, ceil(self.epochs * max(1.0, examples / batch_size) - 1e-9))


class Gradients:
    """The gradients of clients at the server's model.

    A small model's gradient is mostly the overhead of asking for it. So several clients are taken together: their
    batches are fetched in one go and autograd is called once. Each has a lane, a model whose parameters are the
    server's own memory, so its gradient is computed by the same operations as alone, bit for bit.

    Args:
        model: The server's, which all clients share: they are up to date when they compute.
        batches: Where the examples come from.
        own: The steps that clients take by themselves to send the difference of the model; None for the gradient.
    """

    def __init__(self, model: nn.Module, batches: Batches, own: OwnSteps | None = None) -> None:
        self.model = model
        self.batches = batches
        self.own = own
        size = sum(parameter.numel() for parameter in _trainable(model))
        together = max(1, min(MOST, TOGETHER // size)) if own is None else 1
        self._lanes = [model, *(_sharing(model) for _ in range(together - 1))]
        self._parameters = [_trainable(lane) for lane in self._lanes]

    @property
    def together(self) -> int:
        """How many clients it is best to ask for at once; more are not possible."""
        return len(self._lanes)

    def __call__(
        self,
        round: int,
        clients: Sequence[int],
        rate: float | None = None,
        starts: Sequence[Tensor] | None = None,
    ) -> list[tuple[float, list[Tensor]]]:
        """Each client's loss and gradient, or difference, in this round.

        Args:
            round: From 0.
            clients: By their places in the partition.
            rate: Of their own steps.
            starts: Where each begins, if that is not the server's model.
        """
        if self.own is not None:
            assert rate is not None, "own steps need a rate"
            where = [None] * len(clients) if starts is None else starts
            return [self._difference(round, i, rate, self.own, at) for i, at in zip(clients, where, strict=True)]
        if starts is not None:
            return [self._gradient(round, i, start) for i, start in zip(clients, starts, strict=True)]
        batches = self._batches(round, clients)
        counts = np.array([len(y) for _, y in batches])
        scores = torch.cat([lane(x) for lane, (x, _) in zip(self._lanes, batches, strict=False)])
        losses = cross_entropy(scores, torch.cat([y for _, y in batches]), reduction="none")
        shares = torch.from_numpy(np.repeat(1 / counts, counts)).to(losses)  # a client's loss is the mean of its own
        each = len(self._parameters[0])
        inputs = [parameter for lane in self._parameters[: len(clients)] for parameter in lane]
        found = torch.autograd.grad(losses, inputs, shares)
        means = np.add.reduceat(losses.detach().cpu().numpy(), np.cumsum(counts) - counts) / counts
        return [(mean, list(found[i * each : (i + 1) * each])) for i, mean in enumerate(means.tolist())]

    def _at(self, start: Tensor | None) -> tuple[nn.Module, list[nn.Parameter]]:
        """A model of a client's own; other clients work on the shared one at the same time."""
        model = copy.deepcopy(self.model)
        parameters = _trainable(model)
        if start is not None:
            vector_to_parameters(start.clone(), parameters)
        return model, parameters

    def _gradient(self, round: int, client: int, start: Tensor) -> tuple[float, list[Tensor]]:
        """The loss and the gradient at a client's own start."""
        model, parameters = self._at(start)
        ((x, y),) = self._batches(round, [client])
        loss = cross_entropy(model(x), y)
        return float(loss.detach()), list(torch.autograd.grad(loss, parameters))

    def _difference(
        self, round: int, client: int, rate: float, own: OwnSteps, start: Tensor | None
    ) -> tuple[float, list[Tensor]]:
        """The first step's loss, and the model that it began with minus the one after all own steps."""
        model, parameters = self._at(start)
        before = [one.detach() for one in (self._parameters[0] if start is None else copy.deepcopy(parameters))]
        count = own.of(int(self.batches.partition.sizes[client]), self.batches.batch_size)
        losses, moving = [], None
        for step in range(count):
            ((x, y),) = self._batches(round * count + step, [client])
            loss = cross_entropy(model(x), y)
            losses.append(float(loss.detach()))
            steps = list(torch.autograd.grad(loss, parameters))
            if own.weight_decay:
                steps = [one.add(p.detach(), alpha=own.weight_decay) for one, p in zip(steps, parameters, strict=True)]
            if own.momentum:
                if moving is not None:
                    steps = [old.mul_(own.momentum).add_(one) for old, one in zip(moving, steps, strict=True)]
                moving = steps
            for parameter, one in zip(parameters, steps, strict=True):
                parameter.data.add_(one, alpha=-rate)
        return losses[0], [old - new.detach() for old, new in zip(before, parameters, strict=True)]

    def _batches(self, number: int, clients: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        found = self.batches.together(clients, number)
        device = self._parameters[0][0].device
        return found if device.type == "cpu" else [(x.to(device), y.to(device)) for x, y in found]


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _sharing(model: nn.Module) -> nn.Module:
    """Another model with parameters and buffers in the same memory."""
    twin = copy.deepcopy(model, {id(buffer): buffer for buffer in model.buffers()})
    for own, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        own.data = theirs.data
    return twin
