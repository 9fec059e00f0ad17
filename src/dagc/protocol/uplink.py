"""What a client sends: it adds what was not sent before to its change, selects, encodes, and keeps the rest."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.compressors import COMPRESSORS, Compressor, Gradient, per_tensor
from dagc.compressors import compressor as declared
from dagc.draws import scramble
from dagc.errors import shown, unknown
from dagc.feedback import ErrorFeedback
from dagc.policies import ClientPlan
from dagc.protocol.growth import EVERY, Growth, norms_of
from dagc.protocol.messages import BEST, STAMPS, Order, Upload
from dagc.sparse import Sparse
from dagc.state import Check, Stateful, all_or_nothing, fields, finite, flag, nested, optional, plain, raw, whole
from dagc.updates import Update, decode_update, encode_update
from dagc.wire import Memory, encode, is_coded
from dagc.wire.shapes import Shapes, sizes_of

PIECE = 1 << 14
"""Entries per partial sum of a norm: few enough for float32, and as float64 they fit into a core's own cache."""
CLIPPED = 4  # how often a vector is scaled for its frame to be within the bound of its norm, before nothing is sent
TINY, HUGE = 1e-28, 1e30  # between them, a sum of squares in float32 is far from both ends of its range


class Uplink(Stateful):
    """The sending half of one client, Algorithm 1. An engine carries the bytes and stores the state.

    A round is training, `upload`, and then `settle` with what the next order says about that upload.

    Args:
        plan: What clients must know, `Plan.for_clients`.
        shapes: The shapes of the model's tensors; a number stands for a vector of that length.
        device: Where the gradients are.
    """

    FITS = "this client"
    STATE = fields(sent_round=whole, last_update_norm=partial(finite, least=0.0), _counts=flag, growth=nested)

    def __init__(self, plan: ClientPlan, shapes: Shapes, device: Any = "cpu") -> None:
        self.plan, self.shapes, self.sizes = plan, shapes, sizes_of(shapes)
        self.size = sum(self.sizes)
        self.feedback = ErrorFeedback(COMPRESSORS["top-k"], self.size, values=plan.values, device=device)
        self.sent_round = 0  # that of the last upload
        self.last_update_norm = 0.0  # of the last change, if the plan trains ahead
        self.pending: Sparse | Update | None = None  # the last upload, until it is settled
        self.memory: Memory | None = None  # what both sides remember of coded uploads
        self.excluded: Sequence[slice] = ()  # parts of the vector, ascending, from which nothing is sent
        self.growth = Growth(self.sizes)
        self._frame = b""  # of a pending update
        self._counts = False  # whether the memory counts the pending upload if it is accepted

    def start(self, model: torch.Tensor, unit: float = 1.0) -> torch.Tensor:
        """Where to train from: ahead of the model by part of the residual, but no farther than the last update moved.

        The residual will move the model later: from there, the client does not learn it again. A change of 1 moves the
        model by `unit`: the learning rate, if changes are gradients.
        """
        residual, most = self.feedback.residual, self.plan.step_ahead
        length = vector_norm([residual]) if most and self.last_update_norm else 0.0
        if not length:
            return model
        ahead = -unit * min(most, self.last_update_norm / length)
        return torch.add(model, residual, alpha=ahead, out=pool.vector(self.size, residual.device))

    def upload(self, change: Gradient, order: Order) -> Upload:
        """What to send of a change and of the residual; pending until `settle`. If it is refused, nothing changes."""
        parts = [change] if isinstance(change, torch.Tensor) else list(change)
        order.checked()
        update_norm = vector_norm(parts) if self.plan.step_ahead else 0.0
        encode = self._encode_best if order.compressor == BEST else self._encode_entries
        self._frame, update = encode(parts, order)
        self.last_update_norm, self.sent_round = update_norm, order.round
        # As the server's memory does. If the two differ, only a coded frame reconciles them.
        counts = self.memory is not None and (is_coded(self._frame) or self.memory.frames == order.counted)
        self._counts = bool(self._frame) and self.plan.frames == "coded" and counts
        self.pending = None if order.visit else update
        if self.feedback.steps % EVERY == 0 and (growing := self.growth.look(self.feedback.residual, parts)):
            self.growth.warn(growing, [shape for shape in self.shapes if sizes_of([shape])])
        norm = float(torch.linalg.vector_norm(norms_of(parts))) if order.norm else None
        return Upload("", update, self._frame, norm)

    def _encode_best(self, parts: list[torch.Tensor], order: Order) -> tuple[bytes, Update]:
        """The frame that carries most within the order's bytes, or what the order says is enough."""

        def encoder(vector: torch.Tensor) -> tuple[bytes, Update]:
            vector = hidden(vector, self.excluded) if self.excluded else vector
            for _ in range(1 + CLIPPED):
                share, least = order.share or None, order.least
                frame, update = encode_update(
                    vector, self.shapes, order.amount, share=share, least_bytes=least, round=order.stamp
                )
                if not order.clip or update.norm() <= order.clip:
                    return frame, update
                vector = vector * (0.999 * order.clip / update.norm())
            return b"", Update.empty(self.size)

        return self.feedback.encode(parts, encoder, forget=order.visit)

    def _encode_entries(self, parts: list[torch.Tensor], order: Order) -> tuple[bytes, Sparse]:
        """The entries that the order's compressor selects."""
        feedback = self.feedback
        feedback.compressor, feedback.seed = self._compressor(order), scramble(self.plan.seed, order.number)
        feedback.clip = order.clip
        sparse = feedback.step(parts, 0 if order.silent else order.amount)
        if order.silent:
            return b"", sparse
        values, memory = self.plan.values, None
        if self.plan.frames == "coded":
            signs, memory = values == "sign", self.memory
            if memory is None or (memory.clocks, memory.signs, memory.frames) != (order.clocks, signs, order.counted):
                self.memory = memory = Memory(self.shapes, order.clocks, signs)
        return encode(sparse, values, round=order.stamp, memory=memory, most=order.most_entries), sparse

    def settle(self, accepted_round: int) -> None:
        """Forget the pending upload if the server accepted it or a later one; otherwise keep its entries for later."""
        if self.pending is not None and self.sent_round > accepted_round:
            self.feedback.unsend(self.pending)
        elif self._counts and self.memory is not None and isinstance(self.pending, Sparse):
            self.memory.learn(self.pending)
        self.pending = None

    def _compressor(self, order: Order) -> Compressor:
        if order.compressor not in COMPRESSORS:
            raise unknown("compressor", order.compressor, COMPRESSORS)
        if order.silent:
            return COMPRESSORS["top-k"]
        compressor = COMPRESSORS[order.compressor]
        if self.plan.per_tensor:
            compressor = per_tensor(compressor, self.sizes)
        return without(compressor, self.excluded) if self.excluded else compressor

    def checks(self) -> dict[str, Check]:
        memory = optional(partial(Memory.restored, self.shapes))
        return {**super().checks(), "pending": optional(self._loaded_pending), "memory": memory}

    def _loaded_pending(self, state: Mapping[str, Any]) -> Sparse | Update:
        if not isinstance(state, Mapping):
            raise ValueError(f"the pending upload {shown(state, 50)} must be a mapping")
        if "frame" in state:
            self._frame = raw(state["frame"])
            return decode_update(self._frame, self.shapes, round=whole(state["stamp"]))
        indices, values = state["indices"], state["values"]
        if (indices.dtype, values.dtype) != (np.int64, np.float32):
            raise ValueError(f"the entries are {indices.dtype} and {values.dtype}")
        return Sparse(self.size, indices.copy(), values.copy())

    def loaded(self) -> None:
        if self.pending is not None and self._counts and self.memory is None:
            raise ValueError("it has a pending coded upload, but the memory is missing")

    def state_dict(self) -> dict[str, Any]:
        feedback, pending = self.feedback, self.pending
        state = {"residual": plain(feedback.residual), "steps": feedback.steps, **super().state_dict()}
        if isinstance(pending, Update):
            state["pending"] = {"frame": plain(self._frame), "stamp": self.sent_round % STAMPS}
        elif pending is not None:
            state["pending"] = {"indices": pending.indices, "values": pending.values}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with all_or_nothing(self, self.FITS):
            self.feedback.load_state_dict({name: state[name] for name in ("residual", "steps")})
            super().load_state_dict(state)


def hidden(vector: torch.Tensor, excluded: Sequence[slice]) -> torch.Tensor:
    """A copy with zeros in some parts."""
    copy = vector.clone()
    for span in excluded:
        copy[span] = 0.0
    return copy


def without(compressor: Compressor, excluded: Sequence[slice]) -> Compressor:
    """A compressor that selects nothing from some parts of the vector; what is there stays in the residual."""

    @declared(compressor.parameter)
    def select(vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
        assert isinstance(vector, torch.Tensor)
        sparse = compressor(hidden(vector, excluded), parameter, seed=seed)
        bounds = np.array([[span.start, span.stop] for span in excluded]).reshape(-1)
        keep = np.searchsorted(bounds, sparse.indices, side="right") % 2 == 0  # between two parts, not within one
        if keep.all():
            return sparse
        return Sparse.trusted(sparse.size, sparse.indices[keep], sparse.values[keep])

    return select


def vector_norm(parts: Iterable[torch.Tensor]) -> float:
    """The norm of all parts together; in CPU memory the same on any number of threads."""
    total = 0.0
    parts = [part.detach() for part in parts]
    if parts and not parts[0].is_cpu:
        return float(torch.linalg.vector_norm(norms_of(parts).double()))
    for tensor in parts:
        numbers = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
        total += _squares(numbers.numpy().reshape(-1))
    return math.sqrt(total)


def _squares(numbers: NDArray[Any]) -> float:
    """The sum of their squares, piece by piece: in float32, or where that is too narrow in float64."""
    end = numbers.size // PIECE * PIECE
    pieces = (numbers[:end].reshape(-1, PIECE), numbers[end:].reshape(1, -1))
    if numbers.dtype == np.float32:
        total = sum(float(np.einsum("ij,ij->i", some, some).sum(dtype=np.float64)) for some in pieces)
        if TINY < total < HUGE:
            return total
    return sum(float(np.square(piece, dtype=np.float64).sum()) for some in pieces for piece in some)
