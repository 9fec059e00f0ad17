"""The downlink: like a client, the server sends the largest entries of what the clients do not have yet."""

import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.compressors import per_tensor, top_k
from dagc.errors import MalformedPayload
from dagc.policies import Account, Plan, Situation
from dagc.policies.rate import finite
from dagc.protocol.messages import STAMPS, Download
from dagc.sparse import Sparse
from dagc.state import BLOCK, all_or_nothing, flag, load_part, sequence, whole
from dagc.state import checksum as rows_checksum
from dagc.updates import encode_dense, encode_update
from dagc.wire import Memory, encode, is_coded, quantise
from dagc.wire.coder import Shapes
from dagc.wire.frame import read_varint, varint

__all__ = ["Downlink", "broadcasts", "checksum", "sizes_of"]

KEPT = 4
"""How many downloads are cached for clients with the same version; each may be as large as the model."""
MOST_RAISED = 8
"""A broadcast that must carry `least_carried` takes at most so many times the bytes it would have."""
ROUNDED = 2
"""A visitor's model is off by at most so many times what the last round moved; with 4, training ends a little lower."""
SERVER = "server"
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
    of y, or the first model and all broadcasts. The log of broadcasts is never larger than the model, so memory does
    not grow with clients.

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
        least_carried: The share that each broadcast carries, though that may take several times its bytes. A server
            with momentum needs 0.4, unless the user has said how many bytes there are.

    Example:
        >>> downlink = Downlink(Plan(method="top-k", ratio=0.05), np.zeros(40, np.float32))
        >>> downlink.advance(np.arange(40, dtype=np.float32))
        >>> downlink.model[-4:], (downlink.target - downlink.model)[-4:]
        (array([ 0.,  0., 38., 39.], dtype=float32), array([36., 37.,  0.,  0.], dtype=float32))
        >>> from dagc.wire import decode
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
        self._turns = 0.0  # unused rounds of a budget in entries
        self._log: deque[bytes] = deque()
        self._log_bytes = 0
        self._checksum: int | None = None
        self._visit: Download | None = None
        self.carried: float | None = None
        self.least_carried = 0.0
        self._moved = 0.0  # how far the last broadcast moved the model
        self._kept: OrderedDict[int, Download] = OrderedDict()
        self.account: Account | None = None
        self._memory: Memory | None = None
        self._restart = False  # whether a member with this version has skipped broadcasts
        if plan is not None:
            self._policy = plan.policy(len(model))
            self._select = per_tensor(top_k, sizes_of(self._shapes)) if plan.per_tensor else top_k
            self.account = plan.account(rounds)
            if plan.frames == "coded":
                self._memory = Memory(self._shapes, signs=plan.values == "sign")

    def advance(
        self, model: NDArray[np.float32] | None, round: int = 0, share: float = 1.0, seconds: float = 0.0
    ) -> None:
        """Finish a round that produced this model; None if it changed nothing.

        Args:
            model: The server's model.
            round: How many rounds are done.
            share: The part of the budget for this round, `Plan.down_share`.
            seconds: Time since the start, for a rate per hour.
        """
        if self.plan is None:
            if model is not None:
                indices = np.flatnonzero(model.view(np.int32) != self.model.view(np.int32))  # 0.0 is not -0.0
                self._set(indices, model[indices])
            return
        if model is not None:
            self.target[:] = model
        amount = self._allowed(round, share, seconds)
        if not amount:
            return
        difference = torch.from_numpy(self.target - self.model)
        if self.plan.method_spec.encodes:
            self._broadcast_best(difference, amount)
        else:
            self._broadcast_entries(difference, amount)

    def jump(self, model: NDArray[np.float32] | None) -> None:
        """Finish a round whose clients all visit: they get the model itself, rounded, so that nothing is broadcast."""
        if model is None:
            return
        self._moved = float(np.linalg.norm((model - self.model).astype(np.float64)))
        self.carried = None
        self.target[:] = model
        self._log.clear()
        self._log_bytes = 0
        self._set(np.arange(len(model)), model)

    def _broadcast_best(self, difference: torch.Tensor, amount: int) -> None:
        """Broadcast what carries most of the difference within this many bytes."""
        stamp, energy = (self.version + 1) % STAMPS, max(float(difference.double().square().sum()), 1e-300)
        frame, update = encode_update(difference, self._shapes, amount, round=stamp)
        if update.energy < self.least_carried * energy:
            most, share = MOST_RAISED * amount, self.least_carried
            frame, update = encode_update(difference, self._shapes, most, share=share, round=stamp)
        if not frame:
            return
        self._keep(frame)
        self._pay(min(len(frame), amount))
        self.carried = update.energy / energy
        model = torch.from_numpy(self.model)
        self.version += 1
        update.add_to(model)
        self._moved = update.norm()
        for start, length in update.spans():
            self.changed[start : start + length] = self.version
        self.changed[update.alone()[0]] = self.version
        self._forget()

    def _forget(self) -> None:
        """The model has changed: nothing computed from it is valid any more."""
        self._checksum, self._visit = None, None
        self._kept.clear()

    def _broadcast_entries(self, difference: torch.Tensor, entries: int) -> None:
        """Broadcast the largest entries of the difference."""
        assert self.plan is not None
        sparse = self._select(difference, entries)
        if not len(sparse):
            return
        sparse = Sparse.trusted(sparse.size, sparse.indices, quantise(sparse.values, self.plan.values))
        self._remember(self._encode(sparse, self.plan))
        self._set(sparse.indices, self.model[sparse.indices] + sparse.values)

    def _encode(self, sparse: Sparse, plan: Plan) -> bytes:
        """Encode a broadcast. Unless all clients remember the ones before it, it is coded as the first for all."""
        memory = self._memory
        if memory is not None and self._restart:
            memory.reset()
        self._restart = False
        stamp = (self.version + 1) % STAMPS
        frame = encode(sparse, plan.values, round=stamp, memory=memory)
        if memory is not None and (is_coded(frame) or memory.frames):
            memory.learn(sparse)
        return frame

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
            bits = next((bits for bits in range(3, 8) if self._rounding_error(bits) <= ROUNDED * self._moved), 8)
            frame, update = encode_dense(self.model, self._shapes, bits)
            self._visit = Download(-1, -1, checksum(update.dense().numpy()), 0, frame)
        return self._visit

    def _rounding_error(self, bits: int) -> float:
        rounded = encode_dense(self.model, self._shapes, bits)[1].dense().numpy()
        return float(np.linalg.norm((self.model - rounded).astype(np.float64)))

    def note_download(self, download: Download) -> None:
        """Note that a client with this download reads the next broadcasts. If it skipped some, coding starts again."""
        self._restart |= download.since != download.version and not download.steps

    def _allowed(self, round: int, share: float, seconds: float) -> int:
        """How many entries or bytes the server may send now, as the only client of its own plan."""
        allowance = None
        if self.account is not None:
            self.account.earn(share, seconds)
            allowance = self.account.balance
        else:
            self._turns += share
            if self._turns < 1 - 1e-9:
                return 0
            self._turns -= 1
        (amount,) = self._policy.decide(Situation(round, [SERVER], {SERVER: 1.0}, (), allowance))
        return int(amount)

    def _set(self, indices: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        if not len(indices):
            return
        self.version += 1
        self._forget()
        self.model[indices] = values
        self.changed[indices] = self.version

    def _remember(self, frame: bytes) -> None:
        """Log and pay for a broadcast."""
        self._pay(len(frame))
        self._keep(frame)

    def _pay(self, length: int) -> None:
        if self.account is not None:
            self.account.spend(length + len(varint(length)))  # several are sent together, each with its length

    def _keep(self, frame: bytes) -> None:
        """Log a broadcast for clients that are away. The log is never larger than the model."""
        self._log.append(frame)
        self._log_bytes += len(frame)
        while self._log_bytes > self.model.nbytes:
            self._log_bytes -= len(self._log.popleft())

    def _cheapest(self, version: int) -> tuple[int, int, bytes]:
        """The version it builds on, the number of steps, and the frame."""
        missed = self.version - version
        if not missed:
            return version, 0, b""
        ways: list[tuple[int, int, bytes]] = []
        if version >= 0 and missed <= len(self._log):
            ways.append((version, missed, self._steps(missed)))
        if self._first and self.version <= len(self._log):
            ways.append((-1, self.version, _with_length(self._first) + self._steps(self.version, always=True)))
            if not self.version:
                ways[-1] = (-1, 0, self._first)
        indices = np.flatnonzero(self.changed > version)
        if not ways or len(ways[0][2]) > 4 * len(indices):
            values = self._values(indices)
            if len(indices) < len(self.model) and len(values) > self.model.nbytes:
                values = min(values, self._values(np.arange(len(self.model))), key=len)
            ways.append((version, 0, values))
        return min(ways, key=lambda way: len(way[2]))

    def _steps(self, count: int, always: bool = False) -> bytes:
        """The last broadcasts; several have their lengths before them."""
        frames = [self._log[place] for place in range(len(self._log) - count, len(self._log))]
        return frames[0] if count == 1 and not always else b"".join(map(_with_length, frames))

    def _values(self, indices: NDArray[np.int64]) -> bytes:
        sparse = Sparse.trusted(len(self.model), indices, self.model[indices])
        return encode(sparse, self.values, round=self.version % STAMPS)

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""
        state: dict[str, Any] = {"version": self.version, "model": self.model, "changed": self.changed}
        state["first"] = np.frombuffer(self._first, dtype=np.uint8)
        if self.plan is not None:
            state |= {
                "target": self.target,
                "log": np.frombuffer(b"".join(self._log), dtype=np.uint8),
                "log_lengths": [len(frame) for frame in self._log],
                "turns": self._turns,
                "moved": self._moved,
                "policy": self._policy.state_dict(),
                "account": None if self.account is None else self.account.state_dict(),
                "memory": None if self._memory is None else self._memory.state_dict(),
                "restart": self._restart,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        with all_or_nothing(self, "this plan and model"):
            for name in ("model", "changed") if self.plan is None else ("model", "changed", "target"):
                expected, array = getattr(self, name), state[name]
                if array.shape != expected.shape or array.dtype != expected.dtype:
                    raise ValueError(f"its {name} is {array.dtype} {array.shape}, not {expected.shape}")
            self.version = whole(state["version"], below=1 << 31)
            self.model, self.changed = state["model"].copy(), state["changed"].copy()
            if state["first"].dtype != np.uint8 or state["first"].ndim != 1:
                raise ValueError(f"the first model's frame is {state['first'].dtype} {state['first'].shape}")
            self._first = state["first"].tobytes()
            self._forget()
            self.target = self.model
            if self.plan is not None:
                self._load_budgeted(state)

    def _load_budgeted(self, state: Mapping[str, Any]) -> None:
        """The part of the state that only a downlink with a budget has."""
        self.target, self._turns = state["target"].copy(), finite(state["turns"])
        self._moved = finite(state["moved"])
        log, self._log = state["log"], deque()
        lengths = [whole(length) for length in sequence(state["log_lengths"])]
        if log.dtype != np.uint8 or log.shape != (sum(lengths),):
            raise ValueError(f"its log is {log.dtype} {log.shape}, not {sum(lengths)} bytes")
        self._log_bytes, at = 0, 0
        for length in lengths:
            self._keep(log[at : at + length].tobytes())
            at += length
        self._policy.load_state_dict(state["policy"])
        load_part(self.account, state["account"])
        if (self._memory is None) != (state["memory"] is None):
            raise ValueError("the coder's memory does not go with this kind of frames")
        if self._memory is not None:
            self._memory = Memory.restored(self._shapes, state["memory"])
        self._restart = flag(state["restart"])

    def snapshot(self) -> dict[str, Any]:
        """What `rollback` needs: valid until the next `advance`."""
        return self.state_dict()

    def rollback(self, snapshot: dict[str, Any]) -> None:
        """Undo a `load_state_dict` that failed."""
        self.version, self.model, self.changed = snapshot["version"], snapshot["model"], snapshot["changed"]
        self._first = snapshot["first"].tobytes()
        self._forget()
        if self.plan is None:
            self.target = self.model
        else:
            self._load_budgeted(snapshot)


def broadcasts(download: Download) -> Iterator[tuple[int, memoryview]]:
    """The broadcasts in a download, oldest first: the stamp and the frame of each.

    A download with steps that builds on nothing begins with the first model, whose stamp is 0.
    """
    first = download.since < 0
    count = download.steps + first
    rest = memoryview(download.frame)
    for step in range(count):
        frame = rest
        if count > 1:
            length, at = read_varint(rest, 0, len(rest))
            frame, rest = rest[at : at + length], rest[at + length :]
            if len(frame) < length:
                raise MalformedPayload(f"broadcast {step + 1} of {count} is truncated")
        yield (step if first else download.since + step + 1) % STAMPS, frame
    if count > 1 and len(rest):
        raise MalformedPayload(f"{len(rest)} bytes follow the last broadcast")


def _with_length(frame: bytes) -> bytes:
    return varint(len(frame)) + frame


def sizes_of(shapes: Shapes) -> list[int]:
    """The number of entries in each tensor that is not empty."""
    sizes = [shape if isinstance(shape, int) else prod(shape) for shape in shapes]
    return [size for size in sizes if size]
