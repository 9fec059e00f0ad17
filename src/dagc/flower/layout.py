"""An app's arrays as one vector to compress, and the few that always go whole: buffers, and whatever is not float32."""

import json
import zlib
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from functools import cached_property
from io import BytesIO
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.common.constant import SType
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload
from dagc.protocol.server import LARGEST
from dagc.sparse import MAX_SIZE
from dagc.state import DIMENSIONS, TYPES

__all__ = ["BUFFERS", "AppModel", "Layout", "Piece"]

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names of buffers. A running variance that is sent in parts turns negative, and the loss NaN."""
CHECKSUM = 4


class Piece(NamedTuple):
    """One of the app's arrays."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    whole: bool


class AppModel(NamedTuple):
    """The app's arrays: the vector to compress, and those that go whole, both in the layout's order."""

    vector: torch.Tensor
    whole: list[NDArray[Any]]


class Layout:
    """Which array is where.

    Attributes:
        pieces: The app's arrays, in its order.
        shapes: Of the compressed arrays.
        sizes: The number of entries of each.
        whole: The arrays that are never compressed.
        size: The number of entries of the vector.

    Example:
        >>> arrays = ArrayRecord({"weight": Array(np.ones((2, 3), np.float32)), "steps": Array(np.array(7))})
        >>> layout = Layout.of(arrays)
        >>> model = layout.split(arrays)
        >>> model.vector, model.whole
        (tensor([1., 1., 1., 1., 1., 1.]), [array(7)])
        >>> layout.join(model)["weight"].shape
        (2, 3)
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Hold the pieces, in the app's order."""
        self.pieces = tuple(pieces)
        self.shapes = [piece.shape for piece in self.pieces if not piece.whole]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.whole = [piece for piece in self.pieces if piece.whole]
        self.size = sum(self.sizes)
        self.whole_bytes = sum(prod(piece.shape) * np.dtype(piece.dtype).itemsize for piece in self.whole)
        if self.size < 1:
            raise InvalidInput(f"there is nothing to compress: none of the arrays is float32 ({self.text:.300})")

    @classmethod
    def of(cls, arrays: ArrayRecord, whole: Collection[str] = ()) -> Self:
        """The layout of an app's arrays; names that match one of `whole`, and buffers, are never compressed."""
        pieces = []
        for name, array in arrays.items():
            dtype = np.dtype(array.dtype)
            if dtype.name not in TYPES:
                raise InvalidInput(f"array {name!r} is of type {array.dtype}: use {', '.join(TYPES)}")
            kept = any(fnmatch(name, pattern) for pattern in (*BUFFERS, *whole))
            pieces.append(Piece(name, tuple(map(int, array.shape)), dtype.name, kept or dtype != np.float32))
        return cls(pieces)

    @cached_property
    def text(self) -> str:
        """As JSON, for a node that does not know it yet."""
        return json.dumps(self.pieces, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Self:
        """From `text`, which a server may have made up; nothing is allocated for what it claims."""
        try:
            pieces = [_piece(*each) for each in json.loads(text)]
            if len({piece.name for piece in pieces}) < len(pieces):
                raise ValueError("two arrays have one name")
            if sum(prod(piece.shape) for piece in pieces) > MAX_SIZE:
                raise ValueError("it has more than 2^48 entries")
            return cls(pieces)
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedPayload(f"this is no layout of a model: {text!r:.100} ({error})") from error

    def split(self, arrays: ArrayRecord) -> AppModel:
        """The model in these arrays, whose names and shapes must be those of the layout."""
        if set(arrays) != {piece.name for piece in self.pieces}:
            odd = sorted(set(arrays) ^ {piece.name for piece in self.pieces})
            raise InvalidInput(f"the model's arrays have changed: {', '.join(odd):.300} is missing or new")
        found = {piece.name: _numbers(arrays[piece.name]) for piece in self.pieces}
        for piece in self.pieces:
            if found[piece.name].shape != piece.shape:
                raise InvalidInput(
                    f"array {piece.name!r} has the shape {found[piece.name].shape}, it had {piece.shape}"
                )
        vector, whole, start = torch.empty(self.size), [], 0
        for piece in self.pieces:
            array = found[piece.name]
            if piece.whole:
                dtype = np.dtype(piece.dtype)
                fraction = array.dtype.kind == "f" and dtype.kind != "f"  # integers that a strategy took the mean of
                whole.append(np.array(np.rint(array) if fraction else array, dtype))
            else:
                vector.numpy()[start : start + array.size] = array.reshape(-1)
                start += array.size
        return AppModel(vector, whole)

    def join(self, model: AppModel) -> ArrayRecord:
        """The app's arrays, from a model."""
        parts, whole = iter(self.parts(model.vector)), iter(model.whole)
        named = {
            piece.name: _array(np.asarray(next(whole)) if piece.whole else next(parts).numpy().reshape(piece.shape))
            for piece in self.pieces
        }
        return ArrayRecord(named)

    def parts(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A view of each compressed array."""
        return list(torch.split(vector, self.sizes))

    def pack(self, frame: bytes, whole: Sequence[NDArray[Any]]) -> bytes:
        """One payload: the frame of the vector's entries and the bytes of all that goes whole."""
        if not self.whole:
            return frame
        rest = b"".join(np.asarray(array, np.dtype(array.dtype).newbyteorder("<")).tobytes() for array in whole)
        return b"".join((frame, rest, zlib.crc32(rest).to_bytes(CHECKSUM, "little")))

    def unpack(self, payload: bytes | memoryview) -> tuple[memoryview, list[NDArray[Any]]]:
        """The frame, and the arrays that go whole; `MalformedPayload` for whatever is not as it should be."""
        view = memoryview(payload)
        if not self.whole:
            return view, []
        start = len(view) - self.whole_bytes - CHECKSUM
        if start < 0:
            raise MalformedPayload(f"{len(view)} bytes are too few for the arrays that go whole")
        rest = view[start:-CHECKSUM]
        if zlib.crc32(rest) != int.from_bytes(view[-CHECKSUM:], "little"):
            raise MalformedPayload("the checksum of the arrays that go whole does not match")
        whole, at = [], 0
        for piece in self.whole:
            dtype = np.dtype(piece.dtype).newbyteorder("<")
            array = np.frombuffer(rest, dtype, prod(piece.shape), at).reshape(piece.shape).astype(piece.dtype)
            if dtype.kind == "f" and not (np.abs(array) <= LARGEST).all():
                raise MalformedPayload(f"array {piece.name!r} holds NaN, infinity or a value above {LARGEST:g}")
            whole.append(array)
            at += array.nbytes
        return view[:start], whole


def _piece(name: Any, shape: Any, dtype: Any, whole: Any) -> Piece:
    """A piece of a layout, if these are one's fields."""
    sizes = isinstance(shape, list) and len(shape) <= DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(name, str) or not sizes or not isinstance(whole, bool):
        raise ValueError("an array has a name, a shape and whether it goes whole")
    if dtype not in TYPES or not (whole or dtype == "float32"):
        raise ValueError(f"{dtype!r:.50} is no type of an array here")
    return Piece(name, tuple(shape), dtype, whole)


def _array(numbers: NDArray[Any]) -> Array:
    """As Flower's own `Array(numbers)`, with one copy instead of three."""
    numbers = np.ascontiguousarray(numbers).reshape(numbers.shape)
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(numbers))
    data = b"".join((head.getvalue(), numbers.data))
    return Array(numbers.dtype.name, numbers.shape, SType.NUMPY, data)


def _numbers(array: Array) -> NDArray[Any]:
    """As Flower's own `array.numpy()`, with no copy where that can be."""
    head = BytesIO(array.data)
    if array.stype != SType.NUMPY or np.lib.format.read_magic(head) != (1, 0):
        return array.numpy()
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(head)
    if by_columns or dtype.hasobject:
        return array.numpy()
    return np.frombuffer(array.data, dtype, offset=head.tell()).reshape(shape)
