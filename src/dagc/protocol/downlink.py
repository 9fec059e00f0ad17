"""The lossless downlink: the new values of the entries that have changed since the model that a client has."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from dagc.protocol.messages import Download
from dagc.sparse import Sparse
from dagc.state import checksum
from dagc.wire import encode

__all__ = ["Downlink"]

KEPT = 4
"""Downloads that are kept for clients in the same position; each may be as large as the model."""


class Downlink:
    """What the clients have, which of its entries changed when, and the frames that bring clients up to date.

    A frame holds the values themselves, not differences: a client that has the model of the round it starts from, or of
    any later one, has the newest after it.

    Args:
        model: The first model, a float32 vector; copied.

    Attributes:
        round: How many rounds are done; the newest model is of this round.
        model: The newest model.
        changed: The round in which an entry last changed.

    Example:
        >>> from dagc import decode
        >>> downlink = Downlink(np.array([1.0, 2.0, 3.0], dtype=np.float32))
        >>> downlink.advance(np.array([1.0, 2.0, 5.0], dtype=np.float32))
        >>> decode(downlink.since(0).frame).indices, decode(downlink.since(-1).frame).indices
        (array([2]), array([0, 1, 2]))
    """

    def __init__(self, model: NDArray[np.float32]) -> None:
        """Begin at round 0."""
        self.round = 0
        self.model = model.copy()
        self.changed = np.zeros(len(model), dtype=np.int32)
        self._checksum: int | None = None
        self._kept: OrderedDict[int, Download] = OrderedDict()

    def since(self, round: int) -> Download:
        """What a client needs that has the model of this round; -1 for one that has none."""
        if round not in self._kept:
            if self._checksum is None:
                self._checksum = checksum(self.model)
            indices = np.flatnonzero(self.changed > round)
            frame = self._encode(indices)
            if len(indices) < len(self.model) and len(frame) > self.model.nbytes:
                frame = min(frame, self._encode(np.arange(len(self.model))), key=len)
            self._kept[round] = Download(round, self.round, self._checksum, frame)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(round)
        return self._kept[round]

    def advance(self, model: NDArray[np.float32] | None) -> None:
        """A round is done and made this model; None if it changed nothing."""
        self.round += 1
        self._kept.clear()
        if model is None:
            return
        self.changed[model.view(np.int32) != self.model.view(np.int32)] = self.round  # bits: 0.0 is not -0.0
        self.model[:] = model
        self._checksum = None

    def load(self, round: int, model: NDArray[np.float32], changed: NDArray[np.int32]) -> None:
        """Continue from there."""
        self.round, self._checksum = round, None
        self.model[:], self.changed[:] = model, changed
        self._kept.clear()

    def _encode(self, indices: NDArray[np.int64]) -> bytes:
        return encode(Sparse.trusted(len(self.model), indices, self.model[indices]), round=self.round)
