"""The frame: one checksummed message with one `Sparse`. `docs/reference/wire-entries.md` has every byte.

    rule and codec | entries | indices | values | CRC-16, or CRC-32 from 1024 bytes on

Both sides know the size of the vector and the round; they are under the checksum. If both sides also remember what was
sent before (`dagc.wire.coder`), everything but exact values can be coded with that:

    8 or 9 and codec | entries, indices, signs and magnitude, coded | other values | checksum
"""

import zlib
from binascii import crc_hqx
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagc.errors import InvalidInput, MalformedPayload
from dagc.sparse import MAX_SIZE, Sparse
from dagc.wire import indices
from dagc.wire.coder import Memory
from dagc.wire.values import VALUE_CODECS, ValueCodec, codec_of, quantize, value_codec

__all__ = ["checksum", "crc", "decode", "encode", "encode_coded", "has_signs", "is_coded", "payload_size", "varint"]

VERSION = 1  # it is not sent but is part of the checksum, so it costs no bytes
SHORT_BELOW = 1024
"""Frames of this length and more have a checksum of 32 bits, others of 16. No frame has 1024 or 1025 bytes."""
SHORT, LONG = 2, 4
CODED, CODED_FIRST = 8, 9  # used instead of an index rule: coded with a memory; coded with an empty memory
_OURS = set(VALUE_CODECS.values())  # what codecs from elsewhere have read is checked again


def encode(
    sparse: Sparse, values: str = "fp32", *, round: int = 0, memory: Memory | None = None, most: int | None = None
) -> bytes:
    """Encode these entries as one frame. The reader must know the size, and the round.

    Args:
        sparse: What to send.
        values: The value codec: fp32, int8 or sign.
        round: The round it belongs to, from 0 to 2^48 - 1.
        memory: What both sides remember of earlier frames. It is used if it makes the frame smaller; the reader needs
            an identical one.
        most: The most entries that the reader expects, for frames that use a memory; None if it has no expectation.

    Example:
        >>> payload = encode(Sparse(1000, [3, 500], [0.5, -0.5]), values="sign")
        >>> len(payload), decode(payload, 1000) == Sparse(1000, [3, 500], [0.5, -0.5])
        (10, True)
    """
    codec = value_codec(values)
    sparse.checked()
    if not 0 <= round < MAX_SIZE:
        raise InvalidInput(f"round must be from 0 to 2^48 - 1, not {round}")
    if memory is not None and (memory.size, memory.signs) != (sparse.size, values == "sign"):
        raise InvalidInput(
            f"the memory is for {memory.size} entries {'with' if memory.signs else 'without'} signs, "
            f"not for {sparse.size} entries sent as {values}"
        )
    rule, section = indices.write_indices(sparse, codec.index_bytes)
    body = bytes((rule << 4 | codec.id,)) + varint(len(sparse)) + section + codec.write(sparse.values)
    frame = body + checksum(body, sparse.size, round)
    coded = None if memory is None else encode_coded(sparse, codec, round, memory, most, len(frame) - 1)
    return coded or frame


def encode_coded(
    sparse: Sparse, codec: ValueCodec, round: int, memory: Memory, most: int | None, limit: int
) -> bytes | None:
    """Encode with the memory; None if the frame would be longer than the limit."""
    if memory.signs:
        sparse = Sparse.trusted(sparse.size, sparse.indices, quantize(sparse.values, "sign"))
    rest = b"" if memory.signs else codec.write(sparse.values)
    room = limit - 1 - len(rest) - SHORT
    section = memory.write(sparse, most, room) if room > 0 else None
    if section is None:
        return None
    rule = CODED if memory.frames else CODED_FIRST
    body = bytes((rule << 4 | codec.id,)) + section + rest
    frame = body + checksum(body, sparse.size, round, memory, most)
    return frame if len(frame) <= limit else None


def has_signs(frame: bytes | memoryview) -> bool:
    """Whether the values of a frame are signs."""
    return frame[0] & 15 == VALUE_CODECS["sign"].id


def is_coded(frame: bytes | memoryview) -> bool:
    """Whether a frame uses a memory. If it is accepted, both sides then count it."""
    return bool(len(frame)) and frame[0] >> 4 in (CODED, CODED_FIRST)


def decode(
    payload: bytes | bytearray | memoryview,
    size: int,
    *,
    values: str | None = None,
    round: int = 0,
    memory: Memory | None = None,
    most: int | None = None,
) -> Sparse:
    """Decode the entries of a frame. Whatever the bytes are, the only error they can raise is `MalformedPayload`.

    Lengths and checksum are checked before anything is allocated, so memory stays in proportion to the payload.

    Args:
        payload: The bytes received.
        size: The length of the vector.
        values: If given, the value codec that the frame must have.
        round: The round that the frame must belong to.
        memory: What both sides remember of earlier frames; it is not changed.
        most: If given, the most entries that the frame may have.
    """
    body, check = body_of(payload)
    codec, coded = codec_of(body[0] & 15), is_coded(body)
    if values is not None and codec is not value_codec(values):
        raise MalformedPayload(f"the frame has value codec {codec.id}, not {values}")
    if coded and memory is None:
        raise MalformedPayload("the frame is coded with a memory of earlier frames, but memory= is not given")
    if coded and memory and (memory.size, memory.signs) != (size, has_signs(body)):
        raise MalformedPayload(f"value codec {codec.id} of a vector of {size} does not fit the reader's memory")
    if checksum(body, size, round, memory if coded else None, most) != check:
        raise MalformedPayload(
            "the checksum does not match: damaged in transit, or from another round, model or version of dagc, "
            "or coded with another memory of earlier frames"
        )
    if coded and memory:
        sparse = _read_coded(body, codec, memory, most)
    else:
        sparse = _read_alone(body, codec, size, size if most is None else min(size, most))
    if not np.isfinite(sparse.values).all():
        raise MalformedPayload("a value is NaN or infinite")
    if codec in _OURS:
        return sparse
    try:
        return Sparse(sparse.size, sparse.indices, sparse.values)
    except InvalidInput as error:
        raise MalformedPayload(f"the value codec {codec.id} returned bad entries: {error}") from error


def _read_alone(body: memoryview, codec: ValueCodec, size: int, limit: int) -> Sparse:
    count, start = read_varint(body, 1)
    if count > limit:
        raise MalformedPayload(f"the frame claims {count} entries, of at most {limit} in a vector of {size}")
    middle = len(body) - codec.size(count)
    if middle < start:
        raise MalformedPayload(f"the frame is truncated: {len(body)} of at least {len(body) + start - middle} bytes")
    rule, section = body[0] >> 4, body[start:middle]
    places = indices.read_indices(rule, section, size, count, codec.index_bytes)
    seed = int.from_bytes(section, "little") if rule == indices.SEED else None
    return Sparse.trusted(size, places, codec.read(body[middle:], count), seed)


def _read_coded(body: memoryview, codec: ValueCodec, memory: Memory, most: int | None) -> Sparse:
    sparse, length = memory.read(body[1:], most, body[0] >> 4 == CODED_FIRST)
    section = body[1 + length :]
    if len(section) != (0 if memory.signs else codec.size(len(sparse))):
        raise MalformedPayload(f"{len(section)} bytes follow the coded entries, not those of {len(sparse)} values")
    return sparse if memory.signs else Sparse.trusted(sparse.size, sparse.indices, codec.read(section, len(sparse)))


def body_of(payload: bytes | bytearray | memoryview) -> tuple[memoryview, memoryview]:
    """A frame's body, which is not empty, and its checksum, which is not verified."""
    try:
        view = memoryview(payload).cast("B")
    except TypeError as error:
        raise InvalidInput(f"a payload must be bytes, not {type(payload).__name__}") from error
    if len(view) < 1 + SHORT:
        raise MalformedPayload(f"{len(view)} bytes are too few for a frame")
    end = len(view) - (SHORT if len(view) < SHORT_BELOW else LONG)
    return view[:end], view[end:]


def checksum(
    body: bytes | memoryview, size: int, round: int = 0, memory: Memory | None = None, most: int | None = None
) -> bytes:
    """The checksum of a frame.

    It covers what both sides know, too, so that a frame of another version, round, model or memory does not match.
    """
    known = [VERSION, round, size]
    if memory is not None:
        expected = 0 if most is None else 1 + most
        known += [memory.layout, expected, 0 if body[0] >> 4 == CODED_FIRST else memory.fingerprint]
    return crc(body, known)


def crc(body: bytes | memoryview, known: Iterable[int]) -> bytes:
    """A checksum of a body and of numbers that both sides know: short or long, by the length of the frame with it."""
    start = b"".join(map(varint, known))
    if len(body) + SHORT < SHORT_BELOW:
        return crc_hqx(body, crc_hqx(start, 0xFFFF)).to_bytes(SHORT, "little")
    return zlib.crc32(body, zlib.crc32(start)).to_bytes(LONG, "little")


def payload_size(size: int, entries: ArrayLike, values: str = "fp32") -> NDArray[np.int64]:
    """The most bytes that a frame with up to this many entries takes, wherever they are, with or without a memory.

    The bound never falls as entries are added, so a sender may leave some out, zeros for example. Real gradients
    cluster and take less. Byte budgets rely on this bound.

    Args:
        size: The length of the vector.
        entries: The number of entries, or an array of such numbers.
        values: The value codec.

    Example:
        >>> payload_size(11_000_000, [11_000, 110], "int8")
        array([27612,   373])
    """
    counts = np.atleast_1d(np.asarray(entries, dtype=np.int64))
    largest = int(counts.max(initial=0))
    if not 1 <= size <= MAX_SIZE or counts.min(initial=0) < 0 or largest > size:
        raise InvalidInput(f"cannot send {entries!r:.100} entries of a vector of {size}")
    codec = value_codec(values)
    # One more entry can take fewer bytes only here: the Rice parameter falls, or a full frame needs no indices.
    before = np.append(indices.last_counts(size), size - 1)
    every, where = np.unique(np.concatenate((counts.ravel(), before[before < largest])), return_inverse=True)
    count_bytes = 1 + np.searchsorted(np.int64(1) << np.arange(7, 56, 7), every, side="right")
    index_bytes = codec.index_bytes * every if codec.index_bytes else indices.largest(size, every)
    value_bytes = np.array([codec.size(count) for count in every.tolist()], dtype=np.int64)
    total = 1 + count_bytes + np.where(every == size, 0, index_bytes) + value_bytes + SHORT
    total = np.where(total < SHORT_BELOW, total, total + LONG - SHORT)
    return np.maximum.accumulate(total)[where[: counts.size]].reshape(counts.shape)


def varint(number: int) -> bytes:
    """Seven bits per byte, lowest first; the high bit means that more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """The number at this place, and the place behind it."""
    number = shift = 0
    while True:
        if at >= len(view):
            raise MalformedPayload(f"the frame is truncated: a number does not end within {len(view)} bytes")
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            if byte == 0 and shift > 7:
                raise MalformedPayload("a number in the header is written with more bytes than it needs")
            return number, at
        if shift == 49:
            raise MalformedPayload("a number in the header is too large")
