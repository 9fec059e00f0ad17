"""An app's arrays as one vector to compress, and the few that are always sent in full: buffers, integers, float64."""

import json
import zlib
from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.errors import InvalidInput, MalformedPayload
from dagc.protocol.messages import BUFFERS
from dagc.protocol.receiver import LARGEST
from dagc.sparse import MAX_SIZE
from dagc.state import TYPES

CHECKSUM = 4
DIMENSIONS = 32  # the most that numpy has supported in all of its versions
NUMPY = "numpy.ndarray"  # how Flower calls arrays that are serialized as numpy does
BFLOAT16 = "bfloat16"  # numpy does not have it: such an array has two bytes per entry, which numpy calls void
HALF = ("float16", BFLOAT16)
COMPRESSED = ("float32", *HALF)
"""Types that are compressed: in the vector all entries are float32, so that nothing is lost to rounding."""


class Piece(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str
    whole: bool


class AppModel(NamedTuple):
    """The app's arrays: the vector to compress, and those sent in full, both in the layout's order."""

    vector: torch.Tensor
    whole: list[NDArray[Any]]


class Layout:
    """Which array is where: those in the vector, and those that are never compressed."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)
        self.whole = [piece for piece in pieces if piece.whole]
        self.compressed = [piece for piece in pieces if not piece.whole]
        self.shapes = [piece.shape for piece in self.compressed]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.size = sum(self.sizes)
        self.whole_bytes = sum(prod(piece.shape) * _wire_type(piece.dtype).itemsize for piece in self.whole)
        if self.size < 1:
            raise InvalidInput(
                f"there is nothing to compress: no array is of {', '.join(COMPRESSED)} and not kept whole "
                f"({self.text:.300})"
            )

    @classmethod
    def of(cls, arrays: ArrayRecord, whole: Collection[str] = ()) -> Self:
        """The layout of an app's arrays; names that match one of `whole`, and buffers, are never compressed."""
        for pattern in whole:
            if not any(fnmatch(name, pattern) for name in arrays):
                raise InvalidInput(f"whole: no array is called {pattern!r}; there are {', '.join(arrays):.300}")
        pieces = []
        for name, array in arrays.items():
            try:
                dtype = BFLOAT16 if array.dtype == BFLOAT16 else np.dtype(array.dtype).name
            except TypeError:  # no type of numpy
                dtype = ""
            if dtype not in (*TYPES, BFLOAT16):
                raise InvalidInput(f"array {name!r} is of type {array.dtype}: use {', '.join((*TYPES, BFLOAT16))}")
            kept = any(fnmatch(name, pattern) for pattern in (*BUFFERS, *whole))
            pieces.append(Piece(name, tuple(map(int, array.shape)), dtype, kept or dtype not in COMPRESSED))
        return cls(pieces)

    @cached_property
    def text(self) -> str:
        return json.dumps(self.pieces, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse `text`, which a hostile server may have made up; nothing is allocated for what it claims."""
        try:
            pieces = [_piece(*each) for each in json.loads(text)]
            if len({piece.name for piece in pieces}) < len(pieces):
                raise ValueError("two arrays have one name")
            if sum(prod(piece.shape) for piece in pieces) > MAX_SIZE:
                raise ValueError("it has more than 2^48 entries")
            return cls(pieces)
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedPayload(f"this is not the layout of a model: {text!r:.100} ({error})") from error

    def split(self, arrays: ArrayRecord, start: torch.Tensor | None = None) -> AppModel:
        """The model in these arrays, which must fit the layout; with `start`, that vector minus the model's."""
        odd = sorted(set(arrays) ^ {piece.name for piece in self.pieces})
        if odd:
            raise InvalidInput(f"the model's arrays have changed: {', '.join(odd):.300} is missing or new")
        vector, whole, at = torch.from_numpy(pool.take(self.size, np.dtype(np.float32))), [], 0
        for piece in self.pieces:
            array = _numbers(arrays[piece.name])
            if array.shape != piece.shape:
                raise InvalidInput(f"array {piece.name!r} has shape {array.shape}, but had {piece.shape} before")
            if piece.whole:
                dtype = np.dtype(np.float32 if piece.dtype == BFLOAT16 else piece.dtype)
                fraction = array.dtype.kind == "f" and dtype.kind != "f"  # integers that a strategy has averaged
                whole.append(np.array(np.rint(array) if fraction else array, dtype))
                continue
            here, at = slice(at, at + array.size), at + array.size
            vector.numpy()[here] = array.reshape(-1)
            if start is not None:
                torch.sub(start[here], vector[here], out=vector[here])
        return AppModel(vector, whole)

    def join(self, model: AppModel, wide: bool = False) -> ArrayRecord:
        """The app's arrays, from a model; if `wide`, half precision becomes float32, in which strategies can add up."""
        parts, whole = iter(self.parts(model.vector)), iter(model.whole)
        named = {}
        for piece in self.pieces:
            numbers = np.asarray(next(whole)) if piece.whole else next(parts).numpy().reshape(piece.shape)
            dtype = numbers.dtype.name if wide or piece.dtype not in HALF else piece.dtype
            if dtype == BFLOAT16:
                data = Array(_to_bfloat16(numbers).view("V2")).data
                named[piece.name] = Array(BFLOAT16, numbers.shape, NUMPY, data)
            else:
                named[piece.name] = Array(np.ascontiguousarray(numbers, dtype).reshape(numbers.shape))
        return ArrayRecord(named)

    def rounded(self, vector: torch.Tensor) -> torch.Tensor:
        """What the app sees of a vector if its arrays have half precision."""
        kinds = [piece.dtype for piece in self.compressed]
        if not set(kinds) & set(HALF):
            return vector
        pairs = zip(kinds, self.parts(vector), strict=True)
        return torch.cat([part.to(getattr(torch, kind)).float() for kind, part in pairs])

    def parts(self, vector: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.split(vector, self.sizes))

    def pack(self, frame: bytes, whole: Sequence[NDArray[Any]]) -> bytes:
        """One payload: the frame of the vector's entries, and the bytes of the arrays sent in full."""
        if not self.whole:
            return frame
        raw = []
        for piece, array in zip(self.whole, whole, strict=True):
            numbers = _to_bfloat16(array) if piece.dtype == BFLOAT16 else array
            raw.append(np.asarray(numbers, _wire_type(piece.dtype)).tobytes())
        rest = b"".join(raw)
        return b"".join((frame, rest, zlib.crc32(rest).to_bytes(CHECKSUM, "little")))

    def unpack(self, payload: bytes | memoryview) -> tuple[memoryview, list[NDArray[Any]]]:
        """The frame, and the arrays sent in full; `MalformedPayload` for anything invalid."""
        view = memoryview(payload)
        if not self.whole:
            return view, []
        start = len(view) - self.whole_bytes - CHECKSUM
        if start < 0:
            raise MalformedPayload(f"{len(view)} bytes are too few for the arrays that are sent in full")
        rest = view[start:-CHECKSUM]
        if zlib.crc32(rest) != int.from_bytes(view[-CHECKSUM:], "little"):
            raise MalformedPayload("the checksum of the arrays that are sent in full does not match")
        whole, at = [], 0
        for piece in self.whole:
            dtype, entries = _wire_type(piece.dtype), prod(piece.shape)
            raw = np.frombuffer(rest, dtype, entries, at).reshape(piece.shape)
            array = _from_bfloat16(raw) if piece.dtype == BFLOAT16 else raw.astype(piece.dtype)
            # As float64: among float16 numbers, the limit itself would be infinity.
            if array.dtype.kind == "f" and not (np.abs(array, dtype=np.float64) <= LARGEST).all():
                raise MalformedPayload(f"array {piece.name!r} holds NaN, infinity or a value above {LARGEST:g}")
            whole.append(array)
            at += entries * dtype.itemsize
        return view[:start], whole


def _piece(name: Any, shape: Any, dtype: Any, whole: Any) -> Piece:
    sizes = isinstance(shape, list) and len(shape) <= DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    if not isinstance(name, str) or not sizes or not isinstance(whole, bool):
        raise ValueError("an array needs a name, a shape and whether it is sent in full")
    if dtype not in (*TYPES, BFLOAT16) or not (whole or dtype in COMPRESSED):
        raise ValueError(f"{dtype!r:.50} is not a supported type of array")
    return Piece(name, tuple(shape), dtype, whole)


def _wire_type(name: str) -> np.dtype[Any]:
    return np.dtype("<u2") if name == BFLOAT16 else np.dtype(name).newbyteorder("<")


def _to_bfloat16(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    wide = torch.from_numpy(np.ascontiguousarray(numbers, np.float32))
    bits: NDArray[np.uint16] = wide.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return bits.reshape(numbers.shape)


def _from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _numbers(array: Array) -> NDArray[Any]:
    """The numbers in an array of Flower's; bfloat16 becomes float32."""
    numbers = array.numpy()
    if array.dtype != BFLOAT16:
        return numbers
    if numbers.dtype.itemsize != 2:
        raise InvalidInput(f"an array says it is {BFLOAT16}, but has {numbers.dtype.itemsize} bytes for an entry")
    return _from_bfloat16(np.ascontiguousarray(numbers).reshape(numbers.shape).view(np.uint16))
