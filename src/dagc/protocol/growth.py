"""Finds tensors of which more and more is left unsent: too few bytes, or a client that ignores the model it gets."""

from collections.abc import Iterable, Sequence
from logging import getLogger
from typing import Any

import numpy as np
import torch

from dagc.state import Stateful, fields, flag, like

log = getLogger("dagc.protocol")
EVERY = 20  # uploads between two looks: the norms of all tensors take about as long as adding two vectors
LARGER = 100.0
"""What is left is suspicious from this many usual updates on. `tests/protocol/test_growth.py` has what is usual."""
FASTER = 1.1  # and if it has grown by this factor since the look before
LOOKS = 3  # so many looks in a row


class Growth(Stateful):
    """The norms of a client's residual, tensor by tensor."""

    STATE = fields(norms=like, usual=like, streak=like, warned=flag)

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.norms = np.zeros(len(sizes))  # of the residual of each tensor at the last look
        self.usual = np.zeros(len(sizes))  # the norm of the largest update of each that was looked at
        self.streak = np.zeros(len(sizes), np.int64)  # for how many looks in a row its residual was large and grew
        self.warned = False

    def look(self, residual: torch.Tensor, change: Sequence[torch.Tensor]) -> list[int]:
        """The tensors whose residual keeps growing after this change of all tensors, if that is newly known."""
        parts = list(torch.split(change[0].reshape(-1), self.sizes)) if len(change) == 1 else list(change)
        if self.warned or len(parts) != len(self.sizes):
            return []
        norms, update = (norms_of(each).cpu().double().numpy() for each in (torch.split(residual, self.sizes), parts))
        self.usual = np.maximum(self.usual, update)
        suspicious = (self.usual > 0) & (norms >= LARGER * self.usual) & (norms > FASTER * self.norms)
        self.norms, self.streak = norms, np.where(suspicious, self.streak + 1, 0)
        tensors = [int(place) for place in np.flatnonzero(self.streak >= LOOKS)]
        self.warned = bool(tensors)
        return tensors

    def warn(self, tensors: Sequence[int], shapes: Sequence[Any]) -> None:
        """Log what was found, once."""
        names = ", ".join(f"tensor {place} of shape {shapes[place]}" for place in tensors[:5])
        log.warning(
            "what is not sent of %s is more than %d usual updates, and has kept growing for %d rounds: give a larger "
            "budget or a lower learning rate, and check that the client trains on the model it is given",
            names, LARGER, LOOKS * EVERY,
        )  # fmt: skip


def norms_of(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """The norm of each part, in float32 without a copy in it."""
    return torch.stack([torch.linalg.vector_norm(part.detach(), dtype=torch.float32) for part in parts])
