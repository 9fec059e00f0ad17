"""Finds tensors that an app does not take from the server: what it did not send arrives again in every round.

Such an app trains on from a model of its own, e.g. a head that it keeps in `context.state`. The difference between the
model that it was given and the one it returns then grows round by round, along the residual that grows with it. In an
app that starts from the model it was given, the difference is one round's learning and does not grow for long.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["Watch"]

ROUNDS = 5
"""So many rounds in a row must look like it. `tests/flower/test_watch.py` has what honest apps look like."""
LARGER = 2.0
"""The change must be this many times the first one."""
ALIKE = 0.5
"""And point in the direction of the residual: the cosine of the angle between them."""


class Watch:
    """The norms of a node's changes and residuals, tensor by tensor.

    Attributes:
        first: The norm of the first change of each tensor; 0 before it.
        residual: The norm of what was not sent, in the last round.
        streak: For how many rounds in a row a tensor has looked as if the app did not take it.
        warned: Whether the warning was given.
    """

    def __init__(self, tensors: int) -> None:
        self.first, self.residual = np.zeros(tensors), np.zeros(tensors)
        self.streak = np.zeros(tensors, np.int64)
        self.warned = False

    def look(self, changes: Sequence[torch.Tensor], residuals: Sequence[torch.Tensor]) -> list[int]:
        """Note a round; which tensors the app does not take from the server, if that is newly known.

        Args:
            changes: How the app has changed each tensor.
            residuals: What of each had not been sent before.
        """
        if self.warned:
            return []
        change, residual, along = np.array(
            [_norms(*pair) for pair in zip(changes, residuals, strict=True)], np.float64
        ).T
        suspicious = (residual > self.residual) & (change > LARGER * self.first) & (self.first > 0)
        suspicious &= along > ALIKE * change * residual
        self.streak = np.where(suspicious, self.streak + 1, 0)
        self.first = np.where(self.first > 0, self.first, change)
        self.residual = residual
        tensors = [int(number) for number in np.flatnonzero(self.streak >= ROUNDS)]
        self.warned = bool(tensors)
        return tensors

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""
        return {"first": self.first, "residual": self.residual, "streak": self.streak, "warned": self.warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.first, self.residual, self.streak = (
            state[name].astype(like.dtype).reshape(like.shape)
            for name, like in (("first", self.first), ("residual", self.residual), ("streak", self.streak))
        )
        self.warned = bool(state["warned"])


def _norms(change: torch.Tensor, residual: torch.Tensor) -> tuple[float, float, float]:
    """The norm of each, and their inner product."""
    a, b = change.numpy(), residual.numpy()
    return float(np.dot(a, a)) ** 0.5, float(np.dot(b, b)) ** 0.5, float(np.dot(a, b))
