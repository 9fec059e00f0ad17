"""The downlink: like a client, the server sends the largest entries of what the clients do not have yet."""

import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.policies import Plan
from dagc.policies.rate import finite
from dagc.protocol.broadcasts import EntryBroadcasts, Log, best_broadcast
from dagc.protocol.budget import Allowance
from dagc.protocol.messages import STAMPS, Download
from dagc.sparse import Sparse
from dagc.state import BLOCK, all_or_nothing, load_part, whole
from dagc.state import checksum as rows_checksum
from dagc.updates import encode_dense
from dagc.wire import encode
from dagc.wire.shapes import Shapes

__all__ = ["Downlink", "checksum"]

KEPT = 4
"""How many downloads are cached for clients with the same version; each may be as large as the model."""
ROUNDED = 2
"""A visitor's model is off by at most so many times what the last round moved; with 4, training ends a little lower."""
ROW = BLOCK // 4
"""Entries in a row of the table that `checksum` sums up."""


def checksum(model: NDArray[np.float32]) -> int:
    """A CRC-32 of sums of a model, to detect a client whose model is not the one the server expects.

    The sums are over the rows and over the columns of a table of words, so that one changed word and two that have
    changed places are both detected, many times faster than by the CRC-32 of all bytes.
    """
    words = model.astype("<f4", copy=False)[: len(model) // ROW * ROW].view("<u8").reshape(-1, ROW // 2)
    return zlib.crc32(words.sum(axis=0, dtype="<u8").data, rows_checksum(model))


class Downlink:
    """The model that the clients have, and the downloads that bring each of them up to date.

    The server's model is x, the clients' is y: they train on y, and y is evaluated and served. A round moves x. Then
    the server broadcasts what carries most of x - y within its budget, and y moves by exactly what was sent; the rest
    stays in x - y for later. That is error feedback, as on a client. Without a budget everything is sent, and y is x.

    A client that was away gets the cheapest of: the broadcasts it missed, the values of y that have changed since, all
    of y, or the first model and all broadcasts.

    Args:
        plan: The server's own plan, `Plan.downward`; None to send everything.
        model: The initial model, a float32 vector; copied.
        shapes: The shapes of the model's tensors, for plans that select per tensor and for coded frames.
        rounds: How many rounds the training has, for a rate per training.
        values: The value codec of downloads that are not broadcasts, `Plan.exact_values`.
        first_bits: The training starts from the initial model rounded to so many bits per entry; None not to round it.

    Attributes:
        version: How often y has changed.
        model: The clients' model, y.
        target: The server's model, x.
        changed: The version in which each entry of y last changed.
        carried: The share of the energy of x - y that the last broadcast carried; None if that is not known.

    Example:
        >>> downlink = Downlink(Plan(method="top-k", ratio=0.05), np.zeros(40, np.float32))
        >>> downlink.advance(np.arange(40, dtype=np.float32))
        >>> downlink.model[-4:], (downlink.target - downlink.model)[-4:]
        (array([ 0.,  0., 38., 39.], dtype=float32), array([36., 37.,  0.,  0.], dtype=float32))
        >>> from dagc.wire import decode
        >>> from dagc.protocol.broadcasts import broadcasts
        >>> (_, frame), = broadcasts(downlink.since(0))
        >>> decode(frame, 40, round=1).values
        array([38., 39.], dtype=float32)
    """

    def __init__(
        self,
        plan: Plan | None,
        model: NDArray[np.float32],
        shapes: Shapes | None = None,
        rounds: int | None = None,
        values: str = "fp32",
        first_bits: int | None = None,
    ) -> None:
        self.plan, self.values = plan, values
        self.version = 0
        self._shapes = [len(model)] if shapes is None else shapes
        self._first = b""  # the first model's frame, if it was rounded
        self.model = model.copy()
        if first_bits is not None:
            self._first, rounded = encode_dense(model, self._shapes, first_bits)
            self.model = rounded.dense().numpy()
        self.target = self.model if plan is None else self.model.copy()
        self.changed = np.zeros(len(model), dtype=np.int32)
        self.carried: float | None = None
        self._moved = 0.0  # how far the last broadcast moved the model
        self._log = Log(self.model.nbytes)
        self._allowance = None if plan is None else Allowance(plan, len(model), rounds)
        self._entries = None if plan is None or plan.method_spec.encodes else EntryBroadcasts(plan, self._shapes)
        self._forget()

    def advance(
        self,
        model: NDArray[np.float32] | None,
        round: int = 0,
        share: float = 1.0,
        seconds: float = 0.0,
        least_carried: float = 0.0,
    ) -> None:
        """Finish a round that produced this model; None if it changed nothing.

        Args:
            model: The server's model.
            round: How many rounds are done.
            share: The part of the budget for this round, `Plan.down_share`.
            seconds: Time since the start, for a rate per hour.
            least_carried: The share of the energy that the broadcast carries, though that may take several times its
                bytes; `dagc.protocol.extras` says when.
        """
        if self._allowance is None:
            if model is not None:
                indices = np.flatnonzero(model.view(np.int32) != self.model.view(np.int32))  # 0.0 is not -0.0
                self._set(indices, model[indices])
            return
        if model is not None:
            self.target[:] = model
        amount = self._allowance.amount(round, share, seconds)
        if amount:
            self._broadcast(torch.from_numpy(self.target - self.model), amount, least_carried)

    def _broadcast(self, difference: torch.Tensor, amount: int, least_carried: float) -> None:
        """Broadcast what is most worth this many bytes or entries."""
        assert self._allowance is not None
        stamp = (self.version + 1) % STAMPS
        if self._entries is not None:
            frame, update = self._entries.broadcast(difference, amount, stamp)
            paid = len(frame)
        else:
            frame, update, carried = best_broadcast(difference, self._shapes, amount, stamp, least_carried)
            paid = min(len(frame), amount)
            if frame:
                self.carried = carried
        if not frame:
            return
        self._allowance.pay(paid)
        self._log.add(frame)
        self._changes()
        update.add_to(torch.from_numpy(self.model))
        self._moved = update.norm()
        for start, length in update.spans():
            self.changed[start : start + length] = self.version
        self.changed[update.sparse.indices] = self.version

    def jump(self, model: NDArray[np.float32] | None) -> None:
        """Finish a round whose clients all visit: they get the model itself, rounded, so that nothing is broadcast."""
        if model is None:
            return
        self._moved = float(np.linalg.norm((model - self.model).astype(np.float64)))
        self.carried = None
        self.target[:] = model
        self._log.clear()
        self._set(np.arange(len(model)), model)

    def _set(self, indices: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        if len(indices):
            self._changes()
            self.model[indices] = values
            self.changed[indices] = self.version

    def _changes(self) -> None:
        """The model is about to change."""
        self.version += 1
        self._forget()

    def _forget(self) -> None:
        """Nothing that was computed from the model is valid any more."""
        self._checksum: int | None = None
        self._visit: Download | None = None
        self._kept: OrderedDict[int, Download] = OrderedDict()

    def since(self, version: int) -> Download:
        """The download for a client with this version; -1 if it has none."""
        if version not in self._kept:
            if self._checksum is None:
                self._checksum = checksum(self.model)
            since, steps, frame = self._cheapest(version)
            self._kept[version] = Download(since, self.version, self._checksum, steps, frame)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(version)
        return self._kept[version]

    def visit(self) -> Download:
        """The model for a client that comes rarely: rounded so that it is off by no more than two usual updates."""
        if self._visit is None:
            for bits in range(3, 9):
                frame, update = encode_dense(self.model, self._shapes, bits)
                rounded = update.dense().numpy()
                if float(np.linalg.norm((self.model - rounded).astype(np.float64))) <= ROUNDED * self._moved:
                    break
            self._visit = Download(-1, -1, checksum(rounded), 0, frame)
        return self._visit

    def note_download(self, download: Download) -> None:
        """Note that a client with this download reads the next broadcasts."""
        if self._entries is not None and download.since != download.version and not download.steps:
            self._entries.skipped()

    def _cheapest(self, version: int) -> tuple[int, int, bytes]:
        """The version it builds on, the number of steps, and the frame."""
        missed = self.version - version
        if not missed:
            return version, 0, b""
        ways: list[tuple[int, int, bytes]] = []
        if version >= 0 and missed <= len(self._log):
            ways.append((version, missed, self._log.last(missed)))
        if self._first and self.version <= len(self._log):
            ways.append((-1, self.version, self._log.last(self.version, self._first)))
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

    def state_dict(self) -> dict[str, Any]:
        budgeted: dict[str, Any] | None = None
        if self._allowance is not None:
            entries = None if self._entries is None else self._entries.state_dict()
            parts = {"log": self._log.state_dict(), "allowance": self._allowance.state_dict(), "entries": entries}
            budgeted = {"target": self.target, "moved": self._moved, **parts}
        first = np.frombuffer(self._first, dtype=np.uint8)
        return {
            "version": self.version,
            "model": self.model,
            "changed": self.changed,
            "first": first,
            "budgeted": budgeted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with all_or_nothing(self, "this plan and model"):
            model, changed = _like(self.model, state["model"]), _like(self.changed, state["changed"])
            if state["first"].dtype != np.uint8 or state["first"].ndim != 1:
                raise ValueError(f"the first model's frame is {state['first'].dtype} {state['first'].shape}")
            self.rollback({**state, "version": whole(state["version"], below=1 << 31)})
            self.model, self.changed = model.copy(), changed.copy()
            self.target = self.model if self._allowance is None else self.target.copy()

    def snapshot(self) -> dict[str, Any]:
        """What `rollback` needs: valid until the next `advance`."""
        return self.state_dict()

    def rollback(self, snapshot: Mapping[str, Any]) -> None:
        """Undo a `load_state_dict` that failed."""
        self.version, self.model, self.changed = snapshot["version"], snapshot["model"], snapshot["changed"]
        self._first, budgeted = snapshot["first"].tobytes(), snapshot["budgeted"]
        self._forget()
        self.target = self.model
        if (budgeted is None) != (self._allowance is None):
            raise ValueError("the budget of the downlink does not go with this plan")
        if self._allowance is not None:
            self.target, self._moved = _like(self.model, budgeted["target"]), finite(budgeted["moved"])
            self._log.load_state_dict(budgeted["log"])
            self._allowance.load_state_dict(budgeted["allowance"])
            load_part(self._entries, budgeted["entries"])


def _like(expected: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """The array, if it has the expected shape and type."""
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise ValueError(f"an array is {array.dtype} {array.shape}, not {expected.dtype} {expected.shape}")
    return array
