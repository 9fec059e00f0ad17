"""The client's half of a round: receive the model, let it be trained, select, encode, keep the rest."""

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.compressors import COMPRESSORS, Compressor, Gradient, per_tensor
from dagc.errors import InvalidInput, MalformedPayload, OutOfSync, unknown
from dagc.feedback import ErrorFeedback
from dagc.protocol.downlink import broadcasts, checksum, sizes_of
from dagc.protocol.messages import Download, Order, Upload
from dagc.sparse import Sparse
from dagc.state import below
from dagc.wire import Memory, decode, encode, has_signs, is_coded
from dagc.wire.coder import Shapes
from dagc.wire.values import value_codec

__all__ = ["Client"]

PIECE = 1 << 14
"""Entries per partial sum of a norm: few enough for float32, and as float64 they fit into a core's own cache."""
TINY, HUGE = 1e-28, 1e30
"""Between them, a sum of squares in float32 is far from both ends of its range."""


class Client:
    """One client's side of Algorithm 1. An engine carries the bytes and stores the state.

    A round is `receive` (if the engine keeps a model per client), training from `model`, and `upload`. The next order
    says whether the server accepted it, which goes to `settle`.

    Args:
        shapes: The shapes of the model's tensors; a number stands for a vector of that length.
        device: Where the gradients are.
        first_model: The initial model, if this client can create it itself.

    Attributes:
        model: The client's model, a vector; None if it has none, or if the engine keeps one model for all clients.
        version: The version of that model; -1 if there is none.
        feedback: What was not sent.
        sent: The round of the last upload; 0 if there is none.
        last: The norm of the last change passed to `upload`.
        pending: The last upload, until the server has said whether it was accepted.
        memory: What both sides remember of this client's coded uploads; None before the first.
        heard: The same for the server's broadcasts.
        touched: Arrays of indices where the model may have changed since it was created or loaded. They may overlap.

    Example:
        >>> client = Client([6])
        >>> order = Order(round=1, parameter=2, compressor="top-k")
        >>> client.upload(torch.tensor([1.0, 5.0, 2.0, -3.0, 0.0, 0.5]), order).sparse.indices
        array([1, 3])
        >>> client.settle(taken=0)                      # the server never received it
        >>> client.feedback.residual
        tensor([ 1.0000,  5.0000,  2.0000, -3.0000,  0.0000,  0.5000])
    """

    def __init__(self, shapes: Shapes, device: Any = "cpu", first_model: torch.Tensor | None = None) -> None:
        """Start with an empty residual."""
        self.shapes = shapes
        self.sizes = sizes_of(shapes)
        self.size = sum(self.sizes)
        self.feedback = ErrorFeedback(COMPRESSORS["top-k"], self.size, device=device)
        self.model = first_model
        self.version = -1 if first_model is None else 0
        self.sent = 0
        self.last = 0.0
        self.pending: Sparse | None = None
        self.memory: Memory | None = None
        self.heard: Memory | None = None
        self.touched: list[NDArray[np.int64]] = []
        self._counts = False  # whether the memory counts the pending upload if it is accepted

    def receive(self, download: Download) -> torch.Tensor:
        """Bring the model up to date.

        Raises:
            OutOfSync: If the download does not build on this client's model. It needs the full model.
            MalformedPayload: If the download is damaged.
        """
        if download.since < -1 or download.version < 0 or download.steps < 0:
            raise MalformedPayload(
                f"{download.steps} steps cannot lead from version {download.since} to {download.version}"
            )
        if download.since >= 0 and (self.model is None or self.version < download.since):
            has = "no model" if self.model is None else f"version {self.version}"
            raise OutOfSync(f"the download builds on version {download.since} of the model, but this client has {has}")
        model = torch.from_numpy(pool.take(self.size, np.dtype(np.float32)))
        model = model.zero_() if self.model is None else model.copy_(self.model)
        heard, self.heard = self.heard, None  # if this fails halfway, the full model is next
        touched = []
        if download.steps:
            known = self.version - download.since  # a lost order may have delivered some already
            for stamp, frame in islice(broadcasts(download), known, None):
                if is_coded(frame):
                    heard = heard or Memory(self.shapes, signs=has_signs(frame))
                sparse = self._hear(frame, stamp, heard)
                model.numpy()[sparse.indices] += sparse.values
                touched.append(sparse.indices)
        elif download.frame:
            sparse = decode(download.frame, size=self.size)
            model.numpy()[sparse.indices] = sparse.values
            touched.append(sparse.indices)
            heard = None
        if checksum(model.numpy()) != download.checksum:
            raise OutOfSync("the model differs from the server's after the download")
        self.model, self.version, self.heard = model, download.version, heard
        self.touched += touched
        if sum(map(len, self.touched)) > 2 * self.size:  # bounded, even if nobody ever reads it
            self.touched = [np.unique(np.concatenate(self.touched))]
        return model

    def _hear(self, frame: memoryview, stamp: int, heard: Memory | None) -> Sparse:
        """Decode a broadcast, and count it as the server does."""
        try:
            sparse = decode(frame, size=self.size, round=stamp, memory=heard)
        except MalformedPayload as error:
            if not is_coded(frame):
                raise
            raise OutOfSync(f"broadcast {stamp} does not fit this client's memory: {error}") from error
        if heard is not None and (is_coded(frame) or heard.frames):
            heard.learn(sparse)
        return sparse

    def start(self, model: torch.Tensor, order: Order, unit: float = 1.0) -> torch.Tensor:
        """Where to train from: ahead of the model by part of the residual, but no farther than the last update moved.

        The residual will move the model later. Training from there, the client does not learn it again.

        Args:
            model: The client's model.
            order: Its `step_ahead` is the part.
            unit: How far a change of 1 moves the model: the learning rate, if changes are gradients.
        """
        residual = self.feedback.residual
        length = _length([residual]) if order.step_ahead and self.last else 0.0
        if not length:
            return model
        room = torch.from_numpy(pool.take(self.size, np.dtype(np.float32))) if residual.is_cpu else None
        return torch.add(model, residual, alpha=-unit * min(order.step_ahead, self.last / length), out=room)

    def upload(self, change: Gradient, order: Order) -> Upload:
        """What to send of a gradient, or of a change of the model, and of the residual.

        The upload is pending until `settle`. If the gradient is refused, nothing changes.
        """
        feedback = self.feedback
        feedback.compressor, feedback.values, feedback.seed = self._compressor(order), order.values, order.seed
        feedback.clip = order.clip
        sparse = feedback.step(change, 0 if order.silent else order.parameter)
        frame = b"" if order.silent else self._encode(sparse, order)
        if order.step_ahead:
            self.last = _length([change] if isinstance(change, torch.Tensor) else change)
        self.sent, self.pending, self._counts = order.round, sparse, self._to_be_counted(frame, order)
        return Upload("", sparse, frame, _norm(change) if order.norm else None)

    def settle(self, taken: int) -> None:
        """Forget the pending upload if the server accepted it or a later one; otherwise keep its entries for later."""
        if self.pending is not None and self.sent > taken:
            self.feedback.unsend(self.pending)
        elif self.pending is not None and self._counts and self.memory is not None:
            self.memory.learn(self.pending)
        self.pending = None

    def _to_be_counted(self, frame: bytes, order: Order) -> bool:
        """Whether this client's memory counts a frame. If it is accepted, the server's memory counts it, too.

        If the two have counted different numbers of frames, only a coded frame brings them together again.
        """
        if order.frames != "coded" or not frame or self.memory is None:
            return False
        return is_coded(frame) or self.memory.frames == order.counted

    def _encode(self, sparse: Sparse, order: Order) -> bytes:
        memory = None
        if order.frames == "coded":
            signs, memory = order.values == "sign", self.memory
            if memory is None or (memory.clocks, memory.signs, memory.frames) != (order.clocks, signs, order.counted):
                self.memory = memory = Memory(self.shapes, order.clocks, signs)
        return encode(
            sparse,
            order.values,
            round=order.stamp,
            frames=order.frames,
            memory=memory,
            most=order.most,
        )

    def _compressor(self, order: Order) -> Compressor:
        if order.compressor not in COMPRESSORS:
            raise unknown("compressor", order.compressor, COMPRESSORS)
        value_codec(order.values)
        compressor = COMPRESSORS[order.compressor]
        if order.silent or not order.per_tensor:
            return COMPRESSORS["top-k"] if order.silent else compressor
        return per_tensor(compressor, self.sizes)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the state, not copied: write or copy them before the next step."""
        found: dict[str, NDArray[Any]] = {"residual": self.feedback.residual.cpu().numpy()}
        if self.model is not None:
            found["model"] = self.model.numpy()
        if self.pending is not None:
            found |= {"pending.indices": self.pending.indices, "pending.values": self.pending.values}
        for name, memory in self._memories().items():
            found |= {f"{name}.{key}": array for key, array in memory.arrays().items()}
        return found

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, ready for JSON."""
        found: dict[str, Any] = {"steps": self.feedback.steps, "sent": self.sent, "version": self.version}
        found |= {"last": self.last, "counts": self._counts}
        return {**found, **{name: memory.numbers() for name, memory in self._memories().items()}}

    def _memories(self) -> dict[str, Memory]:
        both = {"memory": self.memory, "heard": self.heard}
        return {name: memory for name, memory in both.items() if memory is not None}

    def load(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any], trusted: bool = False) -> None:
        """Continue from `arrays` and `numbers`. State that does not fit is refused, and then nothing changes.

        Args:
            arrays: As returned by `arrays`.
            numbers: As returned by `numbers`.
            trusted: Whether the residual is known to be intact, and may be used without a copy.
        """
        try:
            steps, sent, version = (int(numbers[name]) for name in ("steps", "sent", "version"))
            counts, last = bool(numbers.get("counts", False)), float(numbers.get("last", 0.0))  # older states have none
            residual = arrays["residual"]
            memories = {
                name: Memory.restored(self.shapes, below(arrays, f"{name}."), numbers[name])
                for name in ("memory", "heard")
                if name in numbers
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is not a client's state: {error!r}") from error
        model, pending = arrays.get("model"), None
        if model is not None and (model.shape != (self.size,) or model.dtype != np.float32):
            raise InvalidInput(f"the model must be {self.size} float32 numbers, not {model.dtype} {model.shape}")
        if "pending.indices" in arrays:
            pending = Sparse(self.size, arrays["pending.indices"], arrays["pending.values"])
        if pending is not None and counts and "memory" not in memories:
            raise InvalidInput("this is not a client's state: it has a pending coded upload, but the memory is missing")
        if not 0 <= last < float("inf"):
            raise InvalidInput(f"this is not a client's state: the last change has norm {last}")
        if trusted:
            self.feedback.residual, self.feedback.steps = torch.from_numpy(residual), steps
        else:
            self.feedback.load_state_dict({"residual": residual, "steps": np.array(steps)})
        self.touched = []
        self.model = None if model is None else torch.from_numpy(model)
        self.version, self.sent, self.pending, self._counts, self.last = version, sent, pending, counts, last
        self.memory, self.heard = memories.get("memory"), memories.get("heard")


def _length(parts: Iterable[torch.Tensor]) -> float:
    """The norm of all parts together, the same on any number of threads."""
    return math.sqrt(sum(_squares(part.detach().cpu().numpy().reshape(-1)) for part in parts))


def _squares(numbers: NDArray[Any]) -> float:
    """The sum of their squares, piece by piece: in float32, or where that is too narrow in float64."""
    end = numbers.size // PIECE * PIECE
    pieces = (numbers[:end].reshape(-1, PIECE), numbers[end:].reshape(1, -1))
    if numbers.dtype == np.float32:
        found = sum(float(np.einsum("ij,ij->i", some, some).sum(dtype=np.float64)) for some in pieces)
        if TINY < found < HUGE:
            return found
    return sum(float(np.square(piece, dtype=np.float64).sum()) for some in pieces for piece in some)


def _norm(change: Gradient) -> float:
    parts = [change] if isinstance(change, torch.Tensor) else list(change)
    return float(torch.nn.utils.get_total_norm([part.float() for part in parts]))
