"""An update's frame: a byte for its kind, the coded part, a checksum. `docs/reference/wire-updates.md` has every step.

The size of the vector, the shapes of the tensors and the round are known to both sides and are under the checksum.
"""

import zlib
from collections.abc import Sequence
from math import ldexp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload
from dagc.sparse import MAX_SIZE, Sparse
from dagc.updates import dense
from dagc.updates._kernels import COUNT, OTHER, RANK
from dagc.updates.stream import Stream, nearest
from dagc.updates.update import MOST_SUM, Terms, Update
from dagc.wire.frame import LONG, SHORT, SHORT_BELOW, body_of, crc, varint
from dagc.wire.shapes import Shapes, extents

__all__ = ["DENSE", "MIXED", "MOST_TERMS", "Entries", "decode_update", "encode_dense", "is_update", "seal"]

Ints = NDArray[np.int64]
MIXED, DENSE = 0xB0, 0xC0
"""The first byte of a frame: terms and entries, or small integers for all entries (plus their bits)."""
VERSION = 1  # it is not sent but is part of the checksum
MOST_TERMS = 64  # of one matrix
DECISIONS = 180
"""A byte stands for fewer decisions than this. An integer of a factor takes at least one, an entry three."""
LARGEST = 2.0**100  # no decoded number is larger
NONE = (0, 0, 0)  # levels 1, 2 and all higher ones are moved by so many 16ths of a step, −8 to 7: here by none
OFFSETS_FROM = 16  # frames with fewer entries have no such offsets


class Entries(NamedTuple):
    """Entries before they are coded: indices, levels, their step, and what moves the levels."""

    indices: Ints
    levels: Ints
    step: int
    offsets: Sequence[int]


def is_update(frame: bytes | bytearray | memoryview) -> bool:
    """Whether a frame holds an update of this format. An empty frame is an update that says nothing."""
    return not len(frame) or frame[0] & 0xF0 in (MIXED, DENSE)


def seal(body: bytes, shapes: Shapes, round: int) -> bytes:
    """The body with its checksum."""
    return body + _checksum(body, shapes, round)


def _checksum(body: bytes | memoryview, shapes: Shapes, round: int) -> bytes:
    sides = b"".join(varint(side) for part in extents(shapes) for side in part[1:])
    return crc(body, (VERSION, round, size_of(shapes), zlib.crc32(sides)))


def most_body(max_bytes: int) -> int:
    """The longest body of a frame of at most `max_bytes` bytes.

    Example:
        >>> [most_body(total) for total in (10, 1023, 1024, 1026, 2000)]
        [8, 1021, 1021, 1022, 1996]
    """
    return max_bytes - SHORT if max_bytes < SHORT_BELOW else max(max_bytes - LONG, SHORT_BELOW - 1 - SHORT)


def size_of(shapes: Shapes) -> int:
    """The entries of all tensors."""
    size = sum(rows * columns for _, rows, columns in extents(shapes))
    if not 1 <= size <= MAX_SIZE:
        raise InvalidInput(f"the shapes have {size} entries; a model has from 1 to 2^48")
    return size


def code_terms(stream: Stream, step: int, shapes: Shapes, all_terms: Sequence[Terms] = ()) -> list[Terms]:
    """Write the terms of all matrices, or read them. Tensors with one row or one column have none."""
    by_start = {terms.start: terms for terms in all_terms}
    done = []
    for start, rows, columns in extents(shapes):
        if min(rows, columns) == 1:
            continue
        terms = by_start.get(start)
        count = stream.number(RANK, len(terms.scales) if terms else 0)
        most = DECISIONS * (len(stream.data) + 8) // (rows + columns)
        if count > min(rows, columns, MOST_TERMS, most if stream.reading else MOST_TERMS):
            raise MalformedPayload(f"a matrix of {rows} × {columns} has {count} terms: that is too many")
        if terms:
            scales = nearest(np.ldexp(terms.scales * 1.0, terms.exponent))
            stream.matrix(step, scales, terms.left, terms.right)
        elif count:
            left, right = (np.zeros((count, length), dtype=np.int8) for length in (rows, columns))
            scales = np.zeros(count, dtype=np.int64)
            stream.matrix(step, scales, left, right)
            done.append(assemble(start, left, right, scales))
    return done


def assemble(start: int, left: NDArray[np.int8], right: NDArray[np.int8], scales: Ints) -> Terms:
    """Terms with one common exponent. `MalformedPayload` if their sum could be inexact or too large."""
    exponent = int(scales.min()) // 16
    if int(scales.max()) // 16 - exponent > 30:
        raise MalformedPayload("the scales of a matrix are too far apart")
    terms = Terms(start, left, right, common(scales, exponent), exponent)
    largest = terms.largest
    if largest >= MOST_SUM:
        raise MalformedPayload("the terms of a matrix may add up to more than float32 holds exactly")
    if ldexp(largest, exponent) > LARGEST:
        raise MalformedPayload("the terms of a matrix may add up to more than 2^100")
    return terms


def common(scales: Ints, exponent: int) -> Ints:
    """The scales over 2^exponent."""
    return (scales % 16 + 16) << (scales // 16 - exponent)


def code_entries(stream: Stream, step: int, shapes: Shapes, entries: Entries | None = None) -> Sparse:
    """Write entries, or read them if none are given."""
    size = size_of(shapes)
    count = stream.number(COUNT, len(entries.indices) if entries else 0)
    if count > size or (entries is None and count > DECISIONS * (len(stream.data) + 8) // 3):
        raise MalformedPayload(f"the frame claims {count} entries of a vector of {size}")
    if not count:
        return Sparse(size, [], [])
    entries = entries or Entries(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), step, NONE)
    entry_step = step + stream.signed(OTHER, entries.step - step)
    offsets: Sequence[int] = NONE
    if count >= OFFSETS_FROM:
        offsets = [stream.raw(4, 8 + offset) - 8 for offset in entries.offsets]
    starts, _, lengths = np.array([*extents(shapes), (size, 0, 0)]).T.copy()
    stream.entries(starts, lengths, size, entries.indices, entries.levels)
    return Sparse.trusted(size, entries.indices, values_of(entry_step, entries.levels, offsets))


def values_of(step: int, levels: Ints, offsets: Sequence[int]) -> NDArray[np.float32]:
    """What levels stand for: exact products of integers and a power of two."""
    sizes = np.abs(levels)
    if not -100 <= step // 16 <= 90 or ldexp(float(sizes.max()), step // 16 + 5) > LARGEST:
        raise MalformedPayload(f"entries with a step of 2^{step // 16} are out of range")
    whole = 16 * sizes + np.array((0, *offsets))[np.minimum(sizes, len(NONE))]
    return np.asarray(np.ldexp((np.sign(levels) * whole * (step % 16 + 16)).astype(np.float32), step // 16 - 4))


def decode_update(
    frame: bytes | bytearray | memoryview, shapes: Shapes, *, max_bytes: int | None = None, round: int = 0
) -> Update:
    """Decode a frame. Whatever the bytes are, the only error they can raise is `MalformedPayload`.

    Frames that are longer than `max_bytes`, or belong to another round, are errors.
    """
    size = size_of(shapes)
    if max_bytes is not None and len(frame) > max_bytes:
        raise MalformedPayload(f"the frame has {len(frame)} bytes, more than {max_bytes}")
    if not len(frame):
        return Update.empty(size)
    body, check = body_of(frame)
    if not is_update(body):
        raise MalformedPayload(f"these {len(frame)} bytes are not the frame of an update")
    if _checksum(body, shapes, round) != check:
        raise MalformedPayload("the checksum does not match: damaged in transit, or from another round or model")
    if body[0] & 0xF0 == DENSE:
        return Update(size, Sparse(size, [], []), whole=dense.read(body[1:], body[0] & 15, extents(shapes)))
    if body[0] != MIXED:
        raise MalformedPayload(f"the frame has the unknown kind {body[0]:#x}")
    stream = Stream(np.frombuffer(body[1:], dtype=np.uint8).copy(), writing=False)
    step, has_terms = code_head(stream)
    terms = code_terms(stream, step, shapes) if has_terms else []
    sparse = code_entries(stream, step, shapes)
    stream.finish()
    return Update(size, sparse, tuple(terms))


def code_head(stream: Stream, step: int = 0, has_terms: bool = False) -> tuple[int, bool]:
    """The step of factors and entries, and whether any matrix has terms."""
    return stream.raw(12, step + 2048) - 2048, bool(stream.raw(1, int(has_terms)))


def encode_dense(vector: Any, shapes: Shapes, bits: int, *, round: int = 0) -> tuple[bytes, Update]:
    """Encode the whole vector with `bits` bits per entry, 2 to 8, and a scale for each row of a tensor.

    Example:
        >>> frame, update = encode_dense(np.array([1.0, -0.5, 0.25, 0.0]), [4], 4)
        >>> len(frame), update.dense()
        (7, tensor([ 1.0049, -0.4307,  0.2871,  0.0000]))
    """
    if not 2 <= bits <= 8:
        raise InvalidInput(f"a dense update has from 2 to 8 bits per entry, not {bits}")
    size = size_of(shapes)
    body, whole = dense.write(vector, extents(shapes), bits)
    return seal(bytes((DENSE + bits,)) + body, shapes, round), Update(size, Sparse(size, [], []), whole=whole)
