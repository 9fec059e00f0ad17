"""What clients compute on their own data: the gradient of one step, or what several steps change in the model."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dagc.data import Batches

__all__ = ["Gradients"]

TOGETHER = 1 << 18
"""Clients are taken together while their gradients have no more entries than this."""
MOST = 16
"""The most clients that are taken together."""


class Gradients:
    """The gradients of clients at the server's model.

    A small model's gradient is mostly the overhead of asking for it. So several clients are taken together: their
    batches are fetched in one go and autograd is called once. Each has a lane, a model whose parameters are the
    server's own memory, so its gradient is computed by the same operations as alone, bit for bit.

    Args:
        model: The server's, which all clients share: they are up to date when they compute.
        batches: Where the examples come from.
        learning_rate: Of a client's own steps, if it takes more than one.
        local_steps: Steps per round; with one the gradient is meant, with more the difference of the model.
    """

    def __init__(self, model: nn.Module, batches: Batches, learning_rate: float, local_steps: int = 1) -> None:
        self.model = model
        self.batches = batches
        self.learning_rate = learning_rate
        self.local_steps = local_steps
        size = sum(parameter.numel() for parameter in _trainable(model))
        together = max(1, min(MOST, TOGETHER // size)) if local_steps == 1 else 1
        self._lanes = [model, *(_sharing(model) for _ in range(together - 1))]
        self._parameters = [_trainable(lane) for lane in self._lanes]

    @property
    def together(self) -> int:
        """How many clients it is best to ask for at once; more are not possible."""
        return len(self._lanes)

    def __call__(self, round: int, clients: Sequence[int]) -> list[tuple[float, list[Tensor]]]:
        """Each client's loss and gradient, or difference, in this round."""
        if self.local_steps > 1:
            return [self._difference(round, client) for client in clients]
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

    def _difference(self, round: int, client: int) -> tuple[float, list[Tensor]]:
        """The first step's loss, and the server's model minus the one after all local steps."""
        own = copy.deepcopy(self.model)  # other clients work on the shared one at the same time
        parameters = _trainable(own)
        losses = []
        for step in range(self.local_steps):
            ((x, y),) = self._batches(round * self.local_steps + step, [client])
            loss = cross_entropy(own(x), y)
            losses.append(float(loss.detach()))
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data.add_(gradient, alpha=-self.learning_rate)
        return losses[0], [
            old.detach() - new.detach() for old, new in zip(self._parameters[0], parameters, strict=True)
        ]

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
