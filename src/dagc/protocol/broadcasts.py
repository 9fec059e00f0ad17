"""Broadcasts: how the server chooses and encodes one, and the log of those that clients who were away may need."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from dagc.compressors import per_tensor, top_k
from dagc.errors import MalformedPayload
from dagc.policies import Plan
from dagc.protocol.extras import FIRST_TIMES
from dagc.protocol.messages import STAMPS, Download
from dagc.sparse import Sparse
from dagc.state import flag, sequence, whole
from dagc.updates import Update, encode_update
from dagc.wire import Memory, encode, is_coded, quantise
from dagc.wire.frame import read_varint, varint
from dagc.wire.shapes import Shapes, sizes_of

__all__ = ["EntryBroadcasts", "Log", "best_broadcast", "broadcasts"]


def best_broadcast(
    difference: torch.Tensor, shapes: Shapes, amount: int, stamp: int, least_carried: float
) -> tuple[bytes, Update, float]:
    """What carries most of a difference within this many bytes: the frame, the update, and the share it carries.

    If the share is below `least_carried`, the frame takes up to `FIRST_TIMES` as many bytes.
    """
    energy = max(float(difference.double().square().sum()), 1e-300)
    frame, update = encode_update(difference, shapes, amount, round=stamp)
    if update.energy < least_carried * energy:
        frame, update = encode_update(difference, shapes, FIRST_TIMES * amount, share=least_carried, round=stamp)
    return frame, update, update.energy / energy


class EntryBroadcasts:
    """Broadcasts of the largest entries, as clients send them.

    Args:
        plan: The server's own plan.
        shapes: The shapes of the model's tensors.
    """

    def __init__(self, plan: Plan, shapes: Shapes) -> None:
        self._values = plan.values
        self._shapes = shapes
        self._select = per_tensor(top_k, sizes_of(shapes)) if plan.per_tensor else top_k
        self._memory = Memory(shapes, signs=plan.values == "sign") if plan.frames == "coded" else None
        self._restart = False  # whether a client that reads the next broadcast has skipped some

    def skipped(self) -> None:
        """A client that reads the next broadcast does not remember those before it: coding starts again."""
        self._restart = True

    def broadcast(self, difference: torch.Tensor, entries: int, stamp: int) -> tuple[bytes, Update]:
        """The frame with the largest entries, empty if all are zero; and the update that it holds."""
        sparse = self._select(difference, entries)
        if not len(sparse):
            return b"", Update.empty(sparse.size)
        sparse = Sparse.trusted(sparse.size, sparse.indices, quantise(sparse.values, self._values))
        memory = self._memory
        if memory is not None and self._restart:
            memory.reset()
        self._restart = False
        frame = encode(sparse, self._values, round=stamp, memory=memory)
        if memory is not None and (is_coded(frame) or memory.frames):
            memory.learn(sparse)
        return frame, Update.of(sparse)

    def state_dict(self) -> dict[str, Any]:
        return {"memory": None if self._memory is None else self._memory.state_dict(), "restart": self._restart}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (self._memory is None) != (state["memory"] is None):
            raise ValueError("the coder's memory does not go with this kind of frames")
        if self._memory is not None:
            self._memory = Memory.restored(self._shapes, state["memory"])
        self._restart = flag(state["restart"])


class Log:
    """The last broadcasts. They never take more bytes than the model, so memory does not grow with clients.

    Args:
        most: The bytes of the model.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.clear()

    def clear(self) -> None:
        """Forget all broadcasts."""
        self._frames: deque[bytes] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: bytes) -> None:
        """Add the newest, and forget the oldest if it has no room."""
        self._frames.append(frame)
        self._bytes += len(frame)
        while self._bytes > self._most:
            self._bytes -= len(self._frames.popleft())

    def last(self, count: int, first: bytes = b"") -> bytes:
        """The last broadcasts as one frame, after the first model if it is given.

        If there are several, each has its length before it.
        """
        frames = [self._frames[place] for place in range(len(self) - count, len(self))]
        frames = [first, *frames] if first else frames
        return frames[0] if len(frames) == 1 else b"".join(varint(len(frame)) + frame for frame in frames)

    def state_dict(self) -> dict[str, Any]:
        frames = np.frombuffer(b"".join(self._frames), dtype=np.uint8)
        return {"frames": frames, "lengths": [len(frame) for frame in self._frames]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; ValueError if it does not fit."""
        frames, lengths = state["frames"], [whole(length) for length in sequence(state["lengths"])]
        if frames.dtype != np.uint8 or frames.shape != (sum(lengths),):
            raise ValueError(f"its log is {frames.dtype} {frames.shape}, not {sum(lengths)} bytes")
        self.clear()
        for end, length in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
            self.add(frames[end - length : end].tobytes())


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
