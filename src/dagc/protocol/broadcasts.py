"""Broadcasts: how the server chooses and encodes one, and the log of those that clients who were away may need."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.compressors import per_tensor, top_k
from dagc.errors import MalformedPayload
from dagc.policies import Plan, Situation
from dagc.protocol.extras import Ways
from dagc.protocol.messages import STAMPS, Download
from dagc.sparse import Sparse
from dagc.state import Check, Stateful, fields, finite, flag, like, listed, nested, raw, whole
from dagc.updates import Update, encode_update
from dagc.wire import Memory, encode, is_coded, quantize
from dagc.wire.frame import read_varint, varint
from dagc.wire.shapes import Shapes, sizes_of

SERVER = "server"


class Broadcaster(Stateful):
    """Sends what carries most of the difference between the server's model and the clients' within a budget.

    That is the budget of `Plan.downward`, whose only client the server is.
    """

    STATE = fields(
        target=like, moved=finite, log=nested, entries=nested, _turns=finite, _policy=nested, _account=nested
    )

    def __init__(self, plan: Plan, model: NDArray[np.float32], shapes: Shapes, rounds: int | None) -> None:
        self.target = model.copy()  # the server's model
        self.moved = 0.0  # how far the last broadcast moved the clients' model
        self.carried: float | None = None  # the share of the difference's energy that it carried, if that is known
        self.log = Log(model.nbytes)
        self._shapes, self._turns = shapes, 0.0  # rounds that were not used, if the budget is not in bytes
        self._policy, self._account = plan.policy(len(model)), plan.account(rounds)
        self.entries = None if plan.method_spec.encodes else EntryBroadcasts(plan, shapes)

    def broadcast(
        self, model: NDArray[np.float32], stamp: int, round: int, share: float, seconds: float, extras: Ways
    ) -> Update | None:
        """What clients with this model add to it; None if nothing is sent. The arguments are `Downlink.advance`'s."""
        amount = self._amount(round, share, seconds)
        if not amount:
            return None
        difference = torch.from_numpy(self.target - model)
        if self.entries is not None:
            frame, update = self.entries.broadcast(difference, amount, stamp)
            paid, carried = len(frame), _carried(difference, update)
        else:
            frame, update, carried = best_broadcast(difference, self._shapes, amount, stamp, extras)
            paid = min(len(frame), amount)
        if not frame:
            return None
        if self._account is not None:
            self._account.spend(paid + len(varint(paid)))  # several are sent together, each with its length
        self.log.add(frame)
        self.moved, self.carried = update.norm(), carried
        return update

    def _amount(self, round: int, share: float, seconds: float) -> int:
        """How many entries or bytes there are for this part of a round's budget; 0 if there is none yet."""
        allowance = None
        if self._account is not None:
            self._account.earn(share, seconds)
            allowance = self._account.balance
        else:
            self._turns += share
            if self._turns < 1 - 1e-9:
                return 0
            self._turns -= 1
        (amount,) = self._policy.decide(Situation(round, [SERVER], {SERVER: 1.0}, (), allowance))
        return int(amount)


def best_broadcast(
    difference: torch.Tensor, shapes: Shapes, amount: int, stamp: int, extras: Ways
) -> tuple[bytes, Update, float]:
    """What carries most of a difference within this many bytes: the frame, the update, and the share it carries.

    If that is below one of the shares of `extras`, the frame takes up to so many times as many bytes.
    """
    energy = max(float(difference.double().square().sum()), 1e-300)
    frame, update = encode_update(difference, shapes, amount, round=stamp)
    for least, times in extras:
        if update.energy < least * energy:
            frame, update = encode_update(difference, shapes, int(times * amount), share=least, round=stamp)
    return frame, update, update.energy / energy


def _carried(difference: torch.Tensor, update: Update) -> float:
    """The share of the difference's energy that adding these entries takes away."""
    sent = torch.from_numpy(update.sparse.values).double()
    at = difference[torch.from_numpy(update.sparse.indices)].double()
    energy = max(float(difference.double().square().sum()), 1e-300)
    return float((sent * (2 * at - sent)).sum()) / energy


class EntryBroadcasts(Stateful):
    """Broadcasts of the largest entries, as clients send them."""

    STATE = fields(_memory=nested, restart=flag)

    def __init__(self, plan: Plan, shapes: Shapes) -> None:
        self._values, self._shapes = plan.values, shapes
        self._select = per_tensor(top_k, sizes_of(shapes)) if plan.per_tensor else top_k
        self._memory = Memory(shapes, signs=plan.values == "sign") if plan.frames == "coded" else None
        self.restart = False  # whether a client that reads the next broadcast has skipped some: coding starts again

    def checks(self) -> dict[str, Check]:
        coded = self._memory is not None
        return {**super().checks(), "_memory": partial(Memory.restored, self._shapes) if coded else nested(None)}

    def broadcast(self, difference: torch.Tensor, entries: int, stamp: int) -> tuple[bytes, Update]:
        """The frame with the largest entries, empty if all are zero; and the update that it holds."""
        sparse = self._select(difference, entries)
        if not len(sparse):
            return b"", Update.empty(sparse.size)
        sparse = Sparse.trusted(sparse.size, sparse.indices, quantize(sparse.values, self._values))
        memory = self._memory
        if memory is not None and self.restart:
            memory.reset()
        self.restart = False
        frame = encode(sparse, self._values, round=stamp, memory=memory)
        if memory is not None and (is_coded(frame) or memory.frames):
            memory.learn(sparse)
        return frame, Update.of(sparse)


class Log(Stateful):
    """The last broadcasts: never more bytes than this, those of the model, so memory does not grow with clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        """Forget all broadcasts."""
        self._frames: list[bytes] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: bytes) -> None:
        """Add the newest, and forget the oldest if it has no room."""
        self._frames.append(frame)
        self._bytes += len(frame)
        while self._bytes > self._most:
            self._bytes -= len(self._frames.pop(0))

    def last(self, count: int, first: bytes = b"") -> bytes:
        """The last broadcasts as one frame, after the first model if it is given; several each after its length."""
        frames = ([first] if first else []) + self._frames[len(self) - count :]
        return frames[0] if len(frames) == 1 else b"".join(varint(len(frame)) + frame for frame in frames)

    def state_dict(self) -> dict[str, Any]:
        frames = np.frombuffer(b"".join(self._frames), dtype=np.uint8)
        return {"frames": frames, "lengths": [len(frame) for frame in self._frames]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        frames, lengths = raw(state["frames"]), listed(whole)(state["lengths"])
        if len(frames) != sum(lengths):
            raise ValueError(f"its log has {len(frames)} bytes, not {sum(lengths)}")
        self.clear()
        for end, length in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
            self.add(frames[end - length : end])


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
            length, at = read_varint(rest, 0)
            frame, rest = rest[at : at + length], rest[at + length :]
            if len(frame) < length:
                raise MalformedPayload(f"broadcast {step + 1} of {count} is truncated")
        if not len(frame):  # no server broadcasts nothing: a byte each, they would cost a client minutes
            raise MalformedPayload(f"broadcast {step + 1} of {count} is empty")
        yield (step if first else download.since + step + 1) % STAMPS, frame
    if count > 1 and len(rest):
        raise MalformedPayload(f"{len(rest)} bytes follow the last broadcast")
