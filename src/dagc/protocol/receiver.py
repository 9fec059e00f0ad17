"""What the server accepts: every upload is hostile until it is decoded and checked against its order."""

from collections.abc import Sequence

import numpy as np

from dagc.errors import MalformedPayload, OutsideBound
from dagc.policies import Plan
from dagc.protocol.memories import Memories
from dagc.protocol.messages import BEST, Order, Upload
from dagc.sparse import Sparse
from dagc.state import Stateful, fields, finite, listed, nested
from dagc.updates import decode_update
from dagc.wire import decode, is_coded, payload_size
from dagc.wire.shapes import Shapes

RECENT = 100  # how many recent norms `Plan.norm_bound` takes the median of
LARGEST = 2.0**100  # no value of an honest upload is larger, and sums of smaller ones do not overflow


class Receiver(Stateful):
    """Decodes uploads and bounds their norms."""

    FITS = "this plan and model"
    STATE = fields(_norms=listed(finite), memories=nested)

    def __init__(self, plan: Plan, size: int, shapes: Shapes) -> None:
        self.plan, self.size, self.shapes = plan, size, shapes
        self.memories = Memories(shapes, plan.values) if plan.frames == "coded" else None
        self._norms: list[float] = []  # of recent uploads, including those that were too large
        self._round_norms: dict[str, float] = {}

    def begin(self) -> None:
        """A round begins."""
        self._round_norms = {}

    loaded = begin

    def read(self, name: str, order: Order, frame: bytes | memoryview, norm: float | None) -> Upload:
        """Decode and check a client's answer to its order, except for its norm; `MalformedPayload` if it is none."""
        if norm is not None and not 0 <= norm <= LARGEST * self.size:
            raise MalformedPayload(f"the norm of its gradient is {norm}")
        if order.compressor == BEST:
            update = decode_update(frame, self.shapes, max_bytes=order.amount, round=order.stamp)
            return Upload(name, update, bytes(frame), norm)
        sparse = self._decode(name, order, frame)
        largest = float(np.abs(sparse.values).max(initial=0.0))
        if largest > LARGEST:
            raise MalformedPayload(
                f"{name!r:.120} sends {largest:g}, and the model would overflow: lower the learning rate"
            )
        return Upload(name, sparse, bytes(frame), norm)

    def check_norm(self, upload: Upload, clip: float) -> None:
        """Raise `OutsideBound` if an upload is larger than `clip`, or far larger than most.

        Refused norms count as recent ones, too. The median therefore follows a change that all clients go through, and
        a minority cannot move it beyond what the others send.
        """
        bound = self.plan.norm_bound
        if (bound is None and not clip) or not len(upload.update):
            return
        norm = upload.update.norm()
        if clip and norm > clip:
            raise OutsideBound(f"its upload has norm {norm:.6g}, more than clip = {clip:g}")
        if bound is None:
            return
        self._round_norms[upload.client] = norm
        usual = float(np.median(self._norms)) if self._norms else 0.0
        if usual and norm > bound * usual:
            raise OutsideBound(
                f"its upload has norm {norm:.3g}, more than norm_bound = {bound:g} times the usual {usual:.3g}"
            )

    def close(self, uploads: Sequence[Upload], roster: Sequence[str]) -> None:
        """The round is over, and these uploads were accepted."""
        if self.memories is not None:
            self.memories.close(uploads)
        self._norms += [self._round_norms[name] for name in roster if name in self._round_norms]
        del self._norms[:-RECENT]
        self._round_norms = {}

    def _decode(self, name: str, order: Order, frame: bytes | memoryview) -> Sparse:
        if order.silent:
            if len(frame):
                raise MalformedPayload(f"it sends {len(frame)} bytes, but was ordered to send nothing")
            return Sparse(self.size, [], [])
        memory = None
        if self.memories is not None:
            memory = self.memories.of(name, order)  # a frame counts even if it was smaller without the coder
        elif is_coded(frame):
            raise MalformedPayload(f"its frame is coded, but {self.plan.frames} frames were ordered")
        values, most = self.plan.values, order.most_entries
        if most is not None and len(frame) > (longest := int(payload_size(self.size, most, values)[0])):
            raise MalformedPayload(f"it sends {len(frame)} bytes for {most} entries, which take at most {longest}")
        try:
            return decode(frame, self.size, values=values, round=order.stamp, memory=memory, most=most)
        except MalformedPayload:
            if self.memories is not None and is_coded(frame):
                self.memories.unread.add(name)
            raise
