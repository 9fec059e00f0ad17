"""The lossless downlink: the new values of the entries that have changed since the model that a client has."""

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.sparse import Sparse
from dagc.wire import encode

__all__ = ["Downlink"]


class Downlink:
    """Which entries of the model have changed when, and the frames that bring clients up to date.

    A frame holds the values themselves, not differences: whoever has the model of the round it starts from, or of any
    later one, has the newest after it.

    Attributes:
        round: How many rounds are done; the newest model is of this round.
        changed: The round in which an entry last changed.

    Example:
        >>> from dagc import decode
        >>> downlink = Downlink(3)
        >>> before, after = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 5.0])
        >>> downlink.advance(before, after)
        >>> decode(downlink.frame(after, since=0)).indices, decode(downlink.frame(after, since=-1)).indices
        (array([2]), array([0, 1, 2]))
    """

    def __init__(self, size: int) -> None:
        """Nothing has changed yet."""
        self.round = 0
        self.changed = np.zeros(size, dtype=np.int32)
        self._frames: dict[int, bytes] = {}

    def frame(self, vector: torch.Tensor, since: int) -> bytes:
        """What a client needs that has the model of round `since`; -1 for one that has none."""
        if since not in self._frames:
            indices = np.flatnonzero(self.changed > since)
            frame = self._encode(vector, indices)
            if len(indices) < len(vector) and len(frame) > vector.nbytes:
                frame = min(frame, self._encode(vector, np.arange(len(vector))), key=len)
            self._frames[since] = frame
        return self._frames[since]

    def advance(self, before: torch.Tensor, after: torch.Tensor) -> None:
        """A round is done, which made this of the model."""
        self.begin(self.round + 1)
        self.changed[(after != before).cpu().numpy()] = self.round

    def begin(self, round: int) -> None:
        """Stand at this round; nothing has changed in it yet."""
        self.round = round
        self._frames.clear()

    def _encode(self, vector: torch.Tensor, indices: NDArray[np.int64]) -> bytes:
        values = vector.detach().cpu().numpy()[indices]
        return encode(Sparse.trusted(len(vector), indices, values), round=self.round)
