"""The frame: one versioned, checksummed message with one `Sparse`. `docs/reference/wire-format.md` has every byte.

    magic DA 6C | version | codecs | round | size | entries | index bytes | indices | values | CRC-32

Round, size, entries and index bytes are varints, so that a few entries cost a few bytes. If both sides know the round
and the size, a small frame can be compact:

    codecs | entries | indices | values | CRC-16

If both sides also remember what was sent before (`dagc.wire.coder`), its indices can be coded with that:

    codecs | entries, indices, signs and magnitude, coded | other values | CRC-16, or CRC-32 from 1024 bytes on
"""

import zlib
from binascii import crc_hqx
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagc.errors import InvalidInput, MalformedPayload, unknown
from dagc.sparse import MAX_SIZE, Sparse
from dagc.wire import rice
from dagc.wire.coder import Memory
from dagc.wire.indices import INDEX_CODECS, by_number, largest_section, smallest
from dagc.wire.values import RETIRED, VALUE_CODECS, ValueCodec, quantise, value_codec

__all__ = ["FRAMES", "Header", "decode", "encode", "has_signs", "is_coded", "payload_size", "read_header"]

FRAMES = ("plain", "compact", "coded", "raw")
"""The kinds of frames; a coded one without a memory is compact."""
MAGIC = b"\xda\x6c"
VERSION = 1
COMPACT_VERSION = 1
"""The version of compact frames. It is not sent but is part of their checksum, so it costs no bytes."""
CODED_VERSION = 1
"""The version of coded frames, in the same way."""
CHECKSUM = 4
SHORT_CHECKSUM = 2
COMPACT_BELOW = 1024
"""Only smaller frames are made compact: there the header matters, and a checksum of 16 bits is enough."""
CODED, CODED_FIRST = 8, 9
"""Used instead of an index codec: coded with a memory; coded with an empty memory."""
_SMALLEST = len(MAGIC) + 1 + 1 + 4 + CHECKSUM
_OURS = {*INDEX_CODECS.values(), *VALUE_CODECS.values()}
"""What codecs from elsewhere have read is checked again."""


class Header(NamedTuple):
    """The header of a frame, without its entries. In a compact frame, round and size are those the reader gave."""

    round: int
    size: int
    entries: int
    index_codec: str
    value_codec: str
    index_bytes: int
    value_bytes: int
    header_bytes: int
    compact: bool


def encode(
    sparse: Sparse,
    values: str = "fp32",
    *,
    round: int = 0,
    indices: str | None = None,
    frames: str = "plain",
    memory: Memory | None = None,
    most: int | None = None,
) -> bytes:
    """Encode these entries as one frame.

    Args:
        sparse: What to send.
        values: The value codec: fp32, fp16, bf16, int8, two-bit or sign.
        round: A number that comes back in `read_header`, to tell rounds apart.
        indices: The index codec; if not given, the one that takes the fewest bytes.
        frames: A name in `FRAMES`. All but plain frames leave out what the reader knows, if they then take less than
            1024 bytes: the reader must pass the size to `decode`, and the round if it is not 0. Raw ones have int32
            indices, unless every entry is sent.
        memory: What both sides remember of earlier frames. It is used if it makes the frame smaller; the reader needs
            an identical one.
        most: The most entries that the reader expects, for frames that use a memory; None if it has no expectation.

    Example:
        >>> payload = encode(Sparse(1000, [3, 500], [0.5, -2.0]), values="fp16")
        >>> len(payload), decode(payload) == Sparse(1000, [3, 500], [0.5, -2.0])
        (21, True)
        >>> len(encode(Sparse(1000, [3, 500], [0.5, -2.0]), values="fp16", frames="compact"))
        11
    """
    codec = value_codec(values)
    compact = _is_compact(frames)
    sparse.checked()
    if codec.id in RETIRED or not 0 <= codec.id < 16 or by_number(VALUE_CODECS, codec.id) != values:
        raise InvalidInput(
            f"the value codec {values!r} has the number {codec.id}, which is taken or not from 0 to 15: give it another"
        )
    if not 0 <= round < MAX_SIZE:
        raise InvalidInput(f"round must be from 0 to 2^48 - 1, not {round}")
    if frames == "raw" and len(sparse) < sparse.size:
        indices = "raw"
    if memory is not None and (memory.size, memory.signs) != (sparse.size, values == "sign"):
        raise InvalidInput(
            f"the memory is for {memory.size} entries {'with' if memory.signs else 'without'} signs, "
            f"not for {sparse.size} entries sent as {values}"
        )
    frame = _without_memory(sparse, codec, round, indices, compact)
    if memory is not None:
        return _coded(sparse, codec, round, memory, most, len(frame) - 1) or frame
    return frame


def _is_compact(frames: str) -> bool:
    if frames not in FRAMES:
        raise unknown("kind of frames", frames, FRAMES)
    return frames != "plain"


def _without_memory(sparse: Sparse, codec: ValueCodec, round: int, indices: str | None, compact: bool) -> bytes:
    if compact:
        index_id, index_section = smallest(sparse, indices, compact=True)
        head = bytes((index_id << 4 | codec.id,)) + varint(len(sparse))
        body = b"".join((head, index_section, codec.write(sparse.values)))
        if len(body) + SHORT_CHECKSUM < COMPACT_BELOW:
            return body + _short_checksum(body, sparse.size, round)
    index_id, index_section = smallest(sparse, indices)
    numbers = (round, sparse.size, len(sparse), len(index_section))
    head = MAGIC + bytes((VERSION, index_id << 4 | codec.id)) + b"".join(map(varint, numbers))
    body = b"".join((head, index_section, codec.write(sparse.values)))
    return body + zlib.crc32(body).to_bytes(CHECKSUM, "little")


def _coded(sparse: Sparse, codec: ValueCodec, round: int, memory: Memory, most: int | None, limit: int) -> bytes | None:
    """Encode with the memory; None if the frame would be longer than the limit."""
    if memory.signs:
        sparse = Sparse.trusted(sparse.size, sparse.indices, quantise(sparse.values, "sign"))
    rest = b"" if memory.signs else codec.write(sparse.values)
    room = limit - 1 - len(rest) - SHORT_CHECKSUM
    section = memory.write(sparse, most, room) if room > 0 else None
    if section is None:
        return None
    kind = CODED if memory.frames else CODED_FIRST
    body = b"".join((bytes((kind << 4 | codec.id,)), section, rest))
    frame = body + _coded_checksum(body, round, memory, most, kind == CODED_FIRST)
    return frame if len(frame) <= limit else None


def has_signs(frame: bytes | memoryview) -> bool:
    """Whether the values of a coded frame are signs."""
    return frame[0] & 15 == VALUE_CODECS["sign"].id


def is_coded(frame: bytes | memoryview) -> bool:
    """Whether a frame uses a memory. If it is accepted, both sides then count it."""
    return bool(len(frame)) and frame[0] >> 4 in (CODED, CODED_FIRST)


def decode(
    payload: bytes | bytearray | memoryview,
    *,
    size: int | None = None,
    round: int = 0,
    memory: Memory | None = None,
    most: int | None = None,
) -> Sparse:
    """Decode the entries of a frame. Whatever the bytes are, the only error they can raise is `MalformedPayload`.

    Lengths and checksum are checked before anything is allocated, so memory stays in proportion to the payload.

    Args:
        payload: The bytes received.
        size: If given, the length the vector must have. A compact frame cannot be read without it.
        round: The round a compact frame must belong to; other frames carry theirs.
        memory: What both sides remember of earlier frames; it is not changed.
        most: As given to `encode`.
    """
    view = _view(payload)
    if is_coded(view):
        return _decode_coded(view, size, round, memory, most)
    header = read_header(view, size=size, round=round)
    if size is not None and header.size != size:
        raise MalformedPayload(f"the frame is for a vector of {header.size} entries, expected {size}")
    end = len(view) - (SHORT_CHECKSUM if header.compact else CHECKSUM)
    if header.compact:
        if _short_checksum(view[:end], header.size, round) != view[end:]:
            raise MalformedPayload(
                "the checksum does not match: damaged in transit, or from another round, model or version of dagc"
            )
    elif zlib.crc32(view[:end]) != int.from_bytes(view[end:], "little"):
        raise MalformedPayload("the checksum does not match: the bytes were damaged in transit")
    start, middle = header.header_bytes, header.header_bytes + header.index_bytes
    index_section, value_section = view[start:middle], view[middle:end]
    indices = INDEX_CODECS[header.index_codec].read(index_section, header.size, header.entries)
    values = VALUE_CODECS[header.value_codec].read(value_section, header.entries)
    if not np.isfinite(values).all():
        raise MalformedPayload("a value is NaN or infinite")
    if {INDEX_CODECS[header.index_codec], VALUE_CODECS[header.value_codec]} - _OURS:
        return _checked(header.size, indices, values, header.index_codec, header.value_codec)
    seed = int.from_bytes(index_section, "little") if header.index_codec == "seed" else None
    return Sparse.trusted(header.size, indices, values, seed)


def _decode_coded(view: memoryview, size: int | None, round: int, memory: Memory | None, most: int | None) -> Sparse:
    if memory is None:
        raise MalformedPayload("the frame is coded with a memory of earlier frames, but memory= is not given")
    if size is not None and size != memory.size:
        raise MalformedPayload(f"the frame is for a vector of {memory.size} entries, expected {size}")
    first = view[0] >> 4 == CODED_FIRST
    name = _value_name(view[0] & 15)
    codec = VALUE_CODECS[name]
    if memory.signs != (codec is VALUE_CODECS["sign"]):
        raise MalformedPayload(f"the frame has value codec {view[0] & 15}, which does not fit the reader's memory")
    end = len(view) - (SHORT_CHECKSUM if len(view) < COMPACT_BELOW else CHECKSUM)
    if end < 1 or _coded_checksum(view[:end], round, memory, most, first) != view[end:]:
        raise MalformedPayload(
            "the checksum does not match: damaged in transit, or coded with another memory of earlier frames"
        )
    sparse, length = memory.read(view[1:end], most, first)
    section = view[1 + length : end]
    if len(section) != (0 if memory.signs else codec.size(len(sparse))):
        raise MalformedPayload(f"{len(section)} bytes follow the coded entries, not those of {len(sparse)} values")
    if memory.signs:
        return sparse
    values = codec.read(section, len(sparse))
    if not np.isfinite(values).all():
        raise MalformedPayload("a value is NaN or infinite")
    if codec not in _OURS:
        return _checked(sparse.size, sparse.indices, values, name)
    return Sparse.trusted(sparse.size, sparse.indices, values)


def _checked(size: int, indices: ArrayLike, values: ArrayLike, *codecs: str) -> Sparse:
    """What codecs from elsewhere have read, checked."""
    try:
        return Sparse(size, indices, values)
    except InvalidInput as error:
        raise MalformedPayload(f"the codecs {', '.join(codecs)} returned bad entries: {error}") from error


def read_header(payload: bytes | bytearray | memoryview, *, size: int | None = None, round: int = 0) -> Header:
    """Read a frame's header and check all lengths. The entries are not read.

    Args:
        payload: The bytes received.
        size: For compact frames, which do not carry it: the length of the vector.
        round: For compact frames: the round they belong to.
    """
    view = _view(payload)
    if len(view) and view[0] < 0x80:
        return _compact_header(view, size, round)
    if len(view) < _SMALLEST:
        raise MalformedPayload(f"{len(view)} bytes are too few for a frame, which has at least {_SMALLEST}")
    if view[:2] != MAGIC:
        raise MalformedPayload("this is not a dagc frame: it does not begin with DA 6C")
    if view[2] != VERSION:
        raise MalformedPayload(f"the frame has version {view[2]}, this library reads version {VERSION}: update it")
    index_name, value_name = _codecs(view[3])
    at = 4
    round, at = read_varint(view, at)
    size, at = read_varint(view, at)
    entries, at = read_varint(view, at)
    index_bytes, at = read_varint(view, at)
    if not 1 <= size <= MAX_SIZE:
        raise MalformedPayload(f"the frame is for a vector of {size} entries; 1 to 2^48 are allowed")
    if entries > size:
        raise MalformedPayload(f"the frame claims {entries} entries of a vector of {size}")
    value_bytes = VALUE_CODECS[value_name].size(entries)
    expected = at + index_bytes + value_bytes + CHECKSUM
    if len(view) < expected:
        raise MalformedPayload(f"the frame is truncated: {len(view)} of {expected} bytes")
    if len(view) > expected:
        raise MalformedPayload(f"{len(view) - expected} bytes follow the end of the frame")
    return Header(round, size, entries, index_name, value_name, index_bytes, value_bytes, at, False)


def _compact_header(view: memoryview, size: int | None, round: int) -> Header:
    """The header of a compact frame: its index section has the length that the other parts leave."""
    if not 1 + 1 + SHORT_CHECKSUM <= len(view) < COMPACT_BELOW:
        raise MalformedPayload(f"a compact frame has from 4 to {COMPACT_BELOW - 1} bytes, not {len(view)}")
    if size is None:
        raise MalformedPayload("this is not a dagc frame, or it is a compact one, which cannot be read without size=")
    index_name, value_name = _codecs(view[0])
    entries, at = read_varint(view, 1, SHORT_CHECKSUM)
    if entries > size:
        raise MalformedPayload(f"the frame claims {entries} entries of a vector of {size}")
    value_bytes = VALUE_CODECS[value_name].size(entries)
    index_bytes = len(view) - at - value_bytes - SHORT_CHECKSUM
    if index_bytes < 0:
        raise MalformedPayload(f"the frame is truncated: {len(view)} of at least {len(view) - index_bytes} bytes")
    return Header(round, size, entries, index_name, value_name, index_bytes, value_bytes, at, True)


def _codecs(byte: int) -> tuple[str, str]:
    index_name = by_number(INDEX_CODECS, byte >> 4)
    if index_name is None:
        raise MalformedPayload(f"the frame uses the unknown index codec {byte >> 4}")
    return index_name, _value_name(byte & 15)


def _value_name(value_id: int) -> str:
    if value_id in RETIRED:
        raise MalformedPayload(
            f"the frame uses value codec {value_id} ({RETIRED[value_id]}), which is retired: update the sender"
        )
    name = by_number(VALUE_CODECS, value_id)
    if name is None:
        raise MalformedPayload(f"the frame uses the unknown value codec {value_id}")
    return name


def _short_checksum(body: bytes | memoryview, size: int, round: int) -> bytes:
    """Covers what both sides know, too: a frame of another version, round or model is therefore refused."""
    known = bytes((COMPACT_VERSION,)) + varint(round) + varint(size)
    return crc_hqx(body, crc_hqx(known, 0xFFFF)).to_bytes(SHORT_CHECKSUM, "little")


def _coded_checksum(body: bytes | memoryview, round: int, memory: Memory, most: int | None, first: bool) -> bytes:
    """Covers what both sides know, too: version, round, kind of memory, the most entries, what was counted so far."""
    fingerprint = 0 if first else memory.fingerprint
    expected = 0 if most is None else 1 + most
    known = b"".join(map(varint, (CODED_VERSION, round, memory.size, memory.layout, expected, fingerprint)))
    if 1 + len(body) + SHORT_CHECKSUM <= COMPACT_BELOW:
        return crc_hqx(body, crc_hqx(known, 0xFFFF)).to_bytes(SHORT_CHECKSUM, "little")
    return zlib.crc32(body, zlib.crc32(known)).to_bytes(CHECKSUM, "little")


def payload_size(
    size: int, entries: ArrayLike, values: str = "fp32", *, indices: str | None = None, frames: str = "plain"
) -> NDArray[np.int64]:
    """The most bytes that a frame with up to this many entries takes, wherever they are, for rounds below 2²¹.

    The bound never falls as entries are added, so a sender may leave some out, zeros for example. Real gradients
    cluster and take less. Byte budgets rely on this bound.

    Args:
        size: The length of the vector.
        entries: The number of entries, or an array of such numbers.
        values: The value codec.
        indices: "raw" if indices are sent as int32, unless every entry is sent; None for the smallest codec.
        frames: As for `encode`; raw frames always have raw indices.

    Example:
        >>> payload_size(11_000_000, [11_000, 110], "int8")
        array([27627,   389])
    """
    counts = np.atleast_1d(np.asarray(entries, dtype=np.int64))
    largest = int(counts.max(initial=0))
    if not 1 <= size <= MAX_SIZE or counts.min(initial=0) < 0 or largest > size:
        raise InvalidInput(f"cannot send {entries!r:.100} entries of a vector of {size}")
    if indices not in (None, "raw"):
        raise InvalidInput(f"indices must be None or 'raw', not {indices!r}: other codecs have no bound of their own")
    codec, compact, raw = value_codec(values), _is_compact(frames), "raw" in (indices, frames)
    # One more entry can take fewer bytes only here: the Rice parameter falls, or a dense frame needs no indices.
    before = np.append(rice.last_counts(size), size - 1)
    every, where = np.unique(np.concatenate((counts.ravel(), before[before < largest])), return_inverse=True)
    value_bytes = np.array([codec.size(k) for k in every.tolist()], dtype=np.int64)
    index_bytes = largest_section(size, every, raw=raw)
    fixed = len(MAGIC) + 1 + 1 + 3 + len(varint(size)) + CHECKSUM
    total = fixed + _varint_bytes(every) + _varint_bytes(index_bytes) + index_bytes + value_bytes
    if compact:
        index_bytes = largest_section(size, every, compact=True, raw=raw)
        short = 1 + _varint_bytes(every) + index_bytes + value_bytes + SHORT_CHECKSUM
        total = np.where(short < COMPACT_BELOW, short, total)
    return np.maximum.accumulate(total)[where[: counts.size]].reshape(counts.shape)


def _view(payload: bytes | bytearray | memoryview) -> memoryview:
    try:
        return memoryview(payload).cast("B")
    except TypeError as error:
        raise InvalidInput(f"a payload must be bytes, not {type(payload).__name__}") from error


def varint(number: int) -> bytes:
    """Seven bits per byte, lowest first; the high bit means that more follow."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_bytes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes each number takes as a varint."""
    return 1 + np.searchsorted(np.int64(1) << np.arange(7, 56, 7), numbers, side="right")


def read_varint(view: memoryview, at: int, checksum: int = CHECKSUM) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(view) - checksum:
            raise MalformedPayload(f"the frame is truncated: its header does not end within {len(view)} bytes")
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
