"""A client: its gradient on its own data, its residual, its payload."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dagc.data import Batches
from dagc.errors import NonFiniteGradient
from dagc.feedback import ErrorFeedback
from dagc.sparse import Sparse
from dagc.wire import encode

__all__ = ["Client", "Upload"]


class Upload(NamedTuple):
    """What a client sends, and what it tells beside it."""

    payload: bytes
    sparse: Sparse
    loss: float
    norm: float | None


class Client:
    """The workers' side of Algorithm 1.

    Args:
        number: Which client of the partition this is.
        model: The server's, which all clients share: they are up to date when they compute.
        batches: Where its examples come from.
        feedback: Its memory of what it has not sent.
        learning_rate: Of its own steps, if it takes more than one.
        local_steps: Steps per round; with one it sends the gradient, with more the difference of the model.
    """

    def __init__(
        self,
        number: int,
        model: nn.Module,
        batches: Batches,
        feedback: ErrorFeedback,
        learning_rate: float,
        local_steps: int = 1,
    ) -> None:
        """Nothing is computed yet."""
        self.number = number
        self.model = model
        self.parameters = _trainable(model)
        self.batches = batches
        self.feedback = feedback
        self.learning_rate = learning_rate
        self.local_steps = local_steps

    def upload(self, round: int, parameter: Any, *, norm: bool = False) -> Upload:
        """Add the gradient to the residual, select by the client's own parameter, encode."""
        loss, change = self.gradient(round) if self.local_steps == 1 else self.difference(round)
        try:
            sparse = self.feedback.step(change, parameter)
        except NonFiniteGradient as error:
            raise NonFiniteGradient(f"client {self.number}, round {round}: {error}") from None
        payload = encode(sparse, self.feedback.values, round=round)
        length = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(change)))) if norm else None
        return Upload(payload, sparse, float(loss), length)

    def gradient(self, round: int) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient on the round's batch."""
        x, y = self._batch(round)
        loss = cross_entropy(self.model(x), y)
        return loss.detach(), list(torch.autograd.grad(loss, self.parameters))

    def difference(self, round: int) -> tuple[Tensor, list[Tensor]]:
        """The first step's loss, and the server's model minus the one after all local steps."""
        own = copy.deepcopy(self.model)  # other clients work on the shared one at the same time
        parameters = _trainable(own)
        losses = []
        for step in range(self.local_steps):
            x, y = self._batch(round * self.local_steps + step)
            loss = cross_entropy(own(x), y)
            losses.append(loss.detach())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data.add_(gradient, alpha=-self.learning_rate)
        return losses[0], [old.detach() - new.detach() for old, new in zip(self.parameters, parameters, strict=True)]

    def _batch(self, number: int) -> tuple[Tensor, Tensor]:
        x, y = self.batches.batch(self.number, number)
        device = self.parameters[0].device
        return (x, y) if device.type == "cpu" else (x.to(device), y.to(device))


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
