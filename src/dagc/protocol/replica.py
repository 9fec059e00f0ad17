"""What a client has: its copy of the model, kept up to date by downloads."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from dagc._memory import pool
from dagc.errors import MalformedPayload, OutOfSync
from dagc.protocol.broadcasts import broadcasts
from dagc.protocol.downlink import checksum
from dagc.protocol.messages import STAMPS, Download
from dagc.state import all_or_nothing, whole
from dagc.updates import decode_update, is_update
from dagc.wire import Memory, decode, has_signs, is_coded
from dagc.wire.shapes import Shapes, sizes_of

__all__ = ["Replica"]


class Replica:
    """A client's copy of the model.

    Args:
        shapes: The shapes of the model's tensors; a number stands for a vector of that length.
        first_model: The initial model, if this client can create it itself.

    Attributes:
        model: A vector; None before the first download.
        version: The version of that model; -1 if there is none.
        memory: What both sides remember of the server's broadcasts; None before the first coded one.

    Example:
        >>> from dagc.protocol import Downlink
        >>> downlink = Downlink(None, np.arange(3, dtype=np.float32))
        >>> replica = Replica([3])
        >>> replica.receive(downlink.since(replica.version))
        tensor([0., 1., 2.])
        >>> downlink.advance(np.array([0, 1, 5], dtype=np.float32))
        >>> replica.receive(downlink.since(replica.version)), replica.version
        (tensor([0., 1., 5.]), 1)
    """

    def __init__(self, shapes: Shapes, first_model: torch.Tensor | None = None) -> None:
        self.shapes = shapes
        self.size = sum(sizes_of(shapes))
        self.model = first_model
        self.version = -1 if first_model is None else 0
        self.memory: Memory | None = None

    def receive(self, download: Download) -> torch.Tensor:
        """Bring the model up to date.

        Raises:
            OutOfSync: If the download does not build on this client's model. It needs the full model.
            MalformedPayload: If the download is damaged.
        """
        download.checked()
        if download.version == -1:
            return self._receive_rounded(download)
        if download.since >= 0 and (self.model is None or self.version < download.since):
            present = "no model" if self.model is None else f"version {self.version}"
            raise OutOfSync(
                f"the download builds on version {download.since} of the model, but this client has {present}"
            )
        model = torch.from_numpy(pool.take(self.size, np.dtype(np.float32)))
        model = model.zero_() if self.model is None else model.copy_(self.model)
        memory, self.memory = self.memory, None  # if this fails halfway, the full model is next
        if download.steps:
            known = self.version - download.since  # a lost order may have delivered some already
            if download.since < 0:
                known, memory = 0, None
                model.zero_()
            for stamp, frame in islice(broadcasts(download), known, None):
                if is_coded(frame):
                    memory = memory or Memory(self.shapes, signs=has_signs(frame))
                self._add_broadcast(model, frame, stamp, memory)
        elif download.frame:
            if is_update(download.frame):
                decode_update(download.frame, self.shapes).add_to(model.zero_())
            else:
                sparse = decode(download.frame, self.size, round=download.version % STAMPS)
                model.numpy()[sparse.indices] = sparse.values
            memory = None
        if checksum(model.numpy()) != download.checksum:
            raise OutOfSync("the model differs from the server's after the download")
        self.model, self.version, self.memory = model, download.version, memory
        return model

    def _receive_rounded(self, download: Download) -> torch.Tensor:
        """Take a rounded model, for a visit; no later download builds on it."""
        model = decode_update(download.frame, self.shapes).dense()
        if checksum(model.numpy()) != download.checksum:
            raise OutOfSync("the model differs from the server's after the download")
        self.model, self.version, self.memory = model, -1, None
        return model

    def _add_broadcast(self, model: torch.Tensor, frame: memoryview, stamp: int, memory: Memory | None) -> None:
        """Add a broadcast to the model, and count it as the server does."""
        if is_update(frame):
            decode_update(frame, self.shapes, round=stamp).add_to(model)
            return
        try:
            sparse = decode(frame, self.size, round=stamp, memory=memory)
        except MalformedPayload as error:
            if not is_coded(frame):
                raise
            raise OutOfSync(f"broadcast {stamp} does not fit this client's memory: {error}") from error
        if memory is not None and (is_coded(frame) or memory.frames):
            memory.learn(sparse)
        model.numpy()[sparse.indices] += sparse.values

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""
        return {
            "version": self.version,
            "model": None if self.model is None else self.model.numpy(),
            "memory": None if self.memory is None else self.memory.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. State that does not fit is refused, and then nothing changes."""
        with all_or_nothing(self, "this client's model"):
            model, memory = state["model"], state["memory"]
            if model is not None and (model.shape != (self.size,) or model.dtype != np.float32):
                raise ValueError(f"the model must be {self.size} float32 numbers, not {model.dtype} {model.shape}")
            self.version = whole(state["version"], -1)
            if model is None and self.version >= 0:  # a model without a version was rounded, for a visit
                raise ValueError(f"version {self.version} does not go with no model")
            self.model = None if model is None else torch.from_numpy(model.copy())
            self.memory = None if memory is None else Memory.restored(self.shapes, memory)

    def snapshot(self) -> tuple[Any, ...]:
        """What `rollback` needs."""
        return self.model, self.version, self.memory

    def rollback(self, snapshot: tuple[Any, ...]) -> None:
        """Undo everything since `snapshot`."""
        self.model, self.version, self.memory = snapshot
