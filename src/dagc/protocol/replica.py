"""What a client has: its copy of the model, kept up to date by downloads."""

from functools import partial
from itertools import islice

import numpy as np
import torch

from dagc._memory import pool
from dagc.errors import MalformedPayload, OutOfSync
from dagc.protocol.broadcasts import broadcasts
from dagc.protocol.downlink import checksum
from dagc.protocol.messages import STAMPS, Download
from dagc.state import Check, Stateful, fields, like, optional, whole
from dagc.updates import decode_update, is_update
from dagc.wire import Memory, decode, has_signs, is_coded
from dagc.wire.shapes import Shapes, sizes_of


class Replica(Stateful):
    """A client's copy of the model.

    Args:
        shapes: The shapes of the model's tensors; a number stands for a vector of that length.
        first_model: The initial model, if this client can create it itself.
    """

    FITS = "this client's model"
    STATE = fields(version=partial(whole, least=-1))

    def __init__(self, shapes: Shapes, first_model: torch.Tensor | None = None) -> None:
        self.shapes, self.size = shapes, sum(sizes_of(shapes))
        self.model = first_model  # a vector; None before the first download
        self.version = -1 if first_model is None else 0
        self.memory: Memory | None = None  # what both sides remember of coded broadcasts

    def checks(self) -> dict[str, Check]:
        copied, memory = like(np.broadcast_to(np.float32(0), self.size)), partial(Memory.restored, self.shapes)
        model = optional(lambda array: torch.from_numpy(copied(array)))
        return {**super().checks(), "model": model, "memory": optional(memory)}

    def loaded(self) -> None:
        if self.model is None and self.version >= 0:  # a model without a version was rounded, for a visit
            raise ValueError(f"version {self.version} does not go with no model")

    def receive(self, download: Download) -> torch.Tensor:
        """Bring the model up to date.

        Raises:
            OutOfSync: If the download does not build on this client's model. It needs the full model.
            MalformedPayload: If the download is damaged.
        """
        download.checked()
        if download.version == -1:  # a rounded model, for a visit: no later download builds on it
            return self._take(download, decode_update(download.frame, self.shapes).dense(), None)
        if download.since >= 0 and (self.model is None or self.version < download.since):
            present = "no model" if self.model is None else f"version {self.version}"
            raise OutOfSync(
                f"the download builds on version {download.since} of the model, but this client has {present}"
            )
        model = pool.vector(self.size)
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
            memory = None
            if is_update(download.frame):
                decode_update(download.frame, self.shapes).add_to(model.zero_())
            else:
                sparse = decode(download.frame, self.size, round=download.version % STAMPS)
                model.numpy()[sparse.indices] = sparse.values
        return self._take(download, model, memory)

    def _take(self, download: Download, model: torch.Tensor, memory: Memory | None) -> torch.Tensor:
        if checksum(model.numpy()) != download.checksum:
            raise OutOfSync("the model differs from the server's after the download")
        self.model, self.version, self.memory = model, download.version, memory
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
