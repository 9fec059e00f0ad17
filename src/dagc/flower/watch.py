"""Finds tensors that an app does not take from the server: it trains on from a model that it keeps itself.

What such an app returns depends on what it has returned before, not on the model that it was given. The difference
between the two, which dagc sends, grows round by round with everything that was not sent before, and counts it again.
What an app keeps in Flower's context is seen there at once; of what it keeps elsewhere, only this growth is seen.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from dagc.state import Stateful, fields, flag, like

SAMPLE = 256  # entries of each tensor that are looked at
ROUNDS = 5  # so many rounds in a row must look like it; `tests/flower/test_watch.py` has apps of both kinds
# What comes back is this close to what came back in the last round, in units of the difference to the given model, and
# that difference is this many times the first one. In apps that take the model, one or the other was not so.
CLOSE, FAR = 0.3, 2.0


def also_kept(state: RecordDict, arrays: ArrayRecord) -> list[str]:
    """Which of these arrays are in an app's state, bit for bit, whatever they are called there.

    A layer's own `state_dict` calls them otherwise than the model's.
    """
    own = [array for record in state.array_records.values() for array in record.values()]
    return [
        name
        for name, array in arrays.items()
        if prod(array.shape) > 1
        and any((each.dtype, each.shape) == (array.dtype, array.shape) and each.data == array.data for each in own)
    ]


class Watch(Stateful):
    """Some entries of what an app has returned, and for how many rounds in a row each tensor has looked untaken."""

    STATE = fields(returned=like, first=like, streak=like, warned=flag)

    def __init__(self, sizes: Sequence[int]) -> None:
        starts = np.cumsum([0, *sizes[:-1]])
        parts = [
            at + np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64) for at, n in zip(starts, sizes, strict=True)
        ]
        self._places = np.concatenate(parts)
        self._tensor = np.repeat(np.arange(len(sizes)), [len(part) for part in parts])
        self.returned = np.zeros(len(self._places), np.float32)
        self.first, self.streak = np.zeros(len(sizes)), np.zeros(len(sizes), np.int64)  # first: norms of the changes
        self.warned = False

    def look(self, model: torch.Tensor, change: torch.Tensor) -> list[int]:
        """Which tensors the app does not take, if that is newly known; `change` is the model minus what it returned."""
        change_here = change.numpy()[self._places]
        returned = model.numpy()[self._places] - change_here
        norms = self._norms(change_here)
        moved = self._norms(returned - self.returned)
        kept = (self.first > 0) & (norms > FAR * self.first) & (moved < CLOSE * norms)
        self.streak = np.where(kept, self.streak + 1, 0)
        self.first, self.returned = np.where(self.first > 0, self.first, norms), returned
        tensors = [] if self.warned else [int(number) for number in np.flatnonzero(self.streak >= ROUNDS)]
        self.warned |= bool(tensors)
        return tensors

    def _norms(self, entries: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.sqrt(np.bincount(self._tensor, entries.astype(np.float64) ** 2, len(self.first)))
