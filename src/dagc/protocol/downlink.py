"""The downlink: like a client, the server sends the largest entries of what the clients do not have yet."""

import zlib
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.policies import Plan
from dagc.protocol.broadcasts import Broadcaster, Log
from dagc.protocol.extras import Ways
from dagc.protocol.messages import MOST_VERSIONS, STAMPS, Download
from dagc.sparse import Sparse
from dagc.state import BLOCK, Stateful, fields, like, nested, raw, whole
from dagc.state import checksum as rows_checksum
from dagc.updates import encode_dense
from dagc.wire import encode
from dagc.wire.shapes import Shapes

KEPT = 4  # how many downloads are cached for clients with the same version; each may be as large as the model
ROUNDED = 2
"""A visitor's model is off by at most so many times what the last round moved; with 4, training ends a little lower."""
ROW = BLOCK // 4  # entries in a row of the table that `checksum` sums up


def checksum(model: NDArray[np.float32]) -> int:
    """A CRC-32 of sums of a model, to detect a client whose model is not the one the server expects.

    The sums are over the rows and over the columns of a table of words, so that one changed word and two that have
    changed places are both detected, many times faster than by the CRC-32 of all bytes.
    """
    words = model.astype("<f4", copy=False)[: len(model) // ROW * ROW].view("<u8").reshape(-1, ROW // 2)
    return zlib.crc32(words.sum(axis=0, dtype="<u8").data, rows_checksum(model))


class Downlink(Stateful):
    """The model that the clients have, and the downloads that bring each of them up to date.

    The server's model is x, the clients' is y: they train on y, and y is evaluated and served. A round moves x. Then
    the server broadcasts what carries most of x - y within its budget, and y moves by exactly what was sent; the rest
    stays in x - y for later. That is error feedback, as on a client. Without a budget everything is sent, and y is x.

    A client that was away gets the cheapest of: the broadcasts it missed, the values of y that have changed since, all
    of y, or the first model and all broadcasts.

    Args:
        plan: The server's own plan, `Plan.downward`; None to send everything.
        model: The initial model, a float32 vector; copied.
        shapes: The shapes of the model's tensors.
        rounds: How many rounds the training has, for a rate per training.
        values: The value codec of downloads that are not broadcasts.
        first_bits: The training starts from the initial model rounded to so many bits per entry; None not to round it.
    """

    FITS = "this plan and model"
    STATE = fields(version=partial(whole, below=MOST_VERSIONS), model=like, changed=like, _first=raw, budgeted=nested)

    def __init__(
        self,
        plan: Plan | None,
        model: NDArray[np.float32],
        shapes: Shapes | None = None,
        rounds: int | None = None,
        values: str = "fp32",
        first_bits: int | None = None,
    ) -> None:
        self.values = values
        self.version = 0  # how often y has changed
        self._shapes = [len(model)] if shapes is None else shapes
        self._first = b""  # the first model's frame, if it was rounded
        self.model = model.copy()  # y
        if first_bits is not None:
            self._first, rounded = encode_dense(model, self._shapes, first_bits)
            self.model = rounded.dense().numpy()
        self.changed = np.zeros(len(model), dtype=np.int32)  # the version in which each entry of y last changed
        self.budgeted = None if plan is None else Broadcaster(plan, self.model, self._shapes, rounds)
        self.loaded()

    def loaded(self) -> None:
        """Nothing that was computed from the model is valid any more."""
        self._checksum: int | None = None
        self._visit: Download | None = None
        self._kept: dict[tuple[int, bool], Download] = {}

    @property
    def target(self) -> NDArray[np.float32]:
        """The server's model, x."""
        return self.model if self.budgeted is None else self.budgeted.target

    @property
    def carried(self) -> float | None:
        """The share of the energy of x - y that the last broadcast carried; None if that is not known."""
        return None if self.budgeted is None else self.budgeted.carried

    def advance(
        self,
        model: NDArray[np.float32] | None,
        round: int = 0,
        share: float = 1.0,
        seconds: float = 0.0,
        extras: Ways = (),
    ) -> None:
        """Finish a round after which the server has this model; None if it changed nothing.

        The broadcast has this share of the budget per round, or more bytes where `extras` allow it.
        """
        if self.budgeted is None:
            if model is not None:
                indices = np.flatnonzero(model.view(np.int32) != self.model.view(np.int32))  # 0.0 is not -0.0
                self._set(indices, model[indices])
            return
        if model is not None:
            self.target[:] = model
        stamp = (self.version + 1) % STAMPS
        update = self.budgeted.broadcast(self.model, stamp, round, share, seconds, extras)
        if update is not None:
            self._changes()
            update.add_to(torch.from_numpy(self.model))
            for start, length in update.spans():
                self.changed[start : start + length] = self.version
            self.changed[update.sparse.indices] = self.version

    def jump(self, model: NDArray[np.float32] | None) -> None:
        """Finish a round whose clients all visit: they get the model itself, rounded, so that nothing is broadcast."""
        if model is None or self.budgeted is None:  # where everything is sent, a visitor is like any client
            self.advance(model)
            return
        self.budgeted.moved = float(np.linalg.norm((model - self.model).astype(np.float64)))
        self.budgeted.carried = None
        self.target[:] = model
        self.budgeted.log.clear()
        self._set(np.arange(len(model)), model)

    def _set(self, indices: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        if len(indices):
            self._changes()
            self.model[indices] = values
            self.changed[indices] = self.version

    def _changes(self) -> None:
        self.version += 1
        self.loaded()

    def since(self, version: int, remembers: bool = True) -> Download:
        """The download for a client with this version; -1 if it has none.

        One that does not remember what earlier broadcasts held cannot read those that it missed if they are coded.
        """
        key = version, remembers
        download = self._kept.pop(key, None)
        if download is None:
            if self._checksum is None:
                self._checksum = checksum(self.model)
            since, steps, frame = self._cheapest(version, remembers)
            download = Download(since, self.version, self._checksum, steps, frame)
        self._kept[key] = download  # the last one
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return download

    def visit(self) -> Download:
        """The model for a client that comes rarely: rounded so that it is off by no more than two usual updates."""
        if self._visit is None:
            moved = 0.0 if self.budgeted is None else self.budgeted.moved
            for bits in range(3, 9):
                frame, update = encode_dense(self.model, self._shapes, bits)
                rounded = update.dense().numpy()
                if float(np.linalg.norm((self.model - rounded).astype(np.float64))) <= ROUNDED * moved:
                    break
            self._visit = Download(-1, -1, checksum(rounded), 0, frame)
        return self._visit

    def note_download(self, download: Download) -> None:
        """Note that a client with this download reads the next broadcasts, perhaps without those before."""
        skips = download.since != download.version and not download.steps
        if skips and self.budgeted is not None and self.budgeted.entries is not None:
            self.budgeted.entries.restart = True

    def _cheapest(self, version: int, remembers: bool) -> tuple[int, int, bytes]:
        """The version it builds on, the number of steps, and the frame."""
        missed = self.version - version
        if not missed:
            return version, 0, b""
        ways: list[tuple[int, int, bytes]] = []
        log = Log(0) if self.budgeted is None else self.budgeted.log
        if version >= 0 and missed <= len(log) and remembers:
            ways.append((version, missed, log.last(missed)))
        if self._first and self.version <= len(log):
            ways.append((-1, self.version, log.last(self.version, self._first)))
        indices = np.flatnonzero(self.changed > version)
        if not ways or len(ways[0][2]) > 4 * len(indices):
            values = self._values(indices)
            if len(indices) < len(self.model) and len(values) > self.model.nbytes:
                values = min(values, self._values(np.arange(len(self.model))), key=len)
            ways.append((version, 0, values))
        return min(ways, key=lambda way: len(way[2]))

    def _values(self, indices: NDArray[np.int64]) -> bytes:
        sparse = Sparse.trusted(len(self.model), indices, self.model[indices])
        return encode(sparse, self.values, round=self.version % STAMPS)
