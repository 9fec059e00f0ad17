"""A client: its residual, its payload."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    """The workers' side of Algorithm 1, once the gradient is there.

    Args:
        number: Which client of the partition this is.
        feedback: Its memory of what it has not sent.
    """

    def __init__(self, number: int, feedback: ErrorFeedback) -> None:
        """Nothing is sent yet."""
        self.number = number
        self.feedback = feedback

    def select(self, round: int, parameter: Any, gradient: list[Tensor]) -> Sparse:
        """Add the gradient to the residual and take out what is to be sent, by the client's own parameter."""
        try:
            return self.feedback.step(gradient, parameter)
        except NonFiniteGradient as error:
            raise NonFiniteGradient(f"client {self.number}, round {round}: {error}") from None

    def upload(self, round: int, sparse: Sparse, loss: Tensor, gradient: list[Tensor], *, norm: bool = False) -> Upload:
        """Encode what was selected."""
        payload = encode(sparse, self.feedback.values, round=round)
        length = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradient)))) if norm else None
        return Upload(payload, sparse, float(loss), length)
