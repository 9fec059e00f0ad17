"""A client: its residual, its payload."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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
        compact: Whether it sends compact frames.
    """

    def __init__(self, number: int, feedback: ErrorFeedback, compact: bool = False) -> None:
        """Nothing is sent yet."""
        self.number = number
        self.feedback = feedback
        self.compact = compact

    def histogram(self, round: int, gradient: list[Tensor], bins: int, floor: int) -> NDArray[np.int64]:
        """How large the entries are that it could send, of those that matter."""
        try:
            return self.feedback.histogram(gradient, bins, floor)
        except NonFiniteGradient as error:
            raise NonFiniteGradient(f"client {self.number}, round {round}: {error}") from None

    def select(self, round: int, parameter: Any, gradient: list[Tensor]) -> Sparse:
        """Add the gradient to the residual and take out what is to be sent, by the client's own parameter."""
        try:
            return self.feedback.step(gradient, parameter)
        except NonFiniteGradient as error:
            raise NonFiniteGradient(f"client {self.number}, round {round}: {error}") from None

    def upload(
        self, round: int, parameter: Any, sparse: Sparse, loss: float, gradient: list[Tensor], *, norm: bool = False
    ) -> Upload:
        """Encode what was selected; a client that was given no entries sends nothing at all."""
        silent = isinstance(parameter, int) and parameter == 0
        payload = b"" if silent else encode(sparse, self.feedback.values, round=round, compact=self.compact)
        length = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradient)))) if norm else None
        return Upload(payload, sparse, loss, length)
