"""How values are written: three codecs. Each is a projection: decoded values encode to the same bytes again.

So error feedback knows exactly what the server will read, before anything is sent.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload, unknown

__all__ = ["VALUE_CODECS", "ValueCodec", "codec_of", "quantize", "value_codec"]

Floats = NDArray[np.float32]

BLOCK = 256  # how many int8 values share a scale
NORMAL, LARGEST = np.finfo(np.float32).smallest_normal, np.float64(np.finfo(np.float32).max) / 127
"""Scales are 0 or from one to the other, so that decoded values are finite."""


class ValueCodec(NamedTuple):
    """One way to write float32 values.

    Attributes:
        id: Its number on the wire, from 0 to 15.
        size: The number of bytes for a number of values; more values never take fewer.
        write: Encodes finite values. Those beyond the codec's range become its largest.
        read: Decodes exactly `size(count)` bytes, and raises `MalformedPayload` for bytes that `write` never makes.
        index_bytes: If not 0, each index is written next to its value, as an integer of 4 or 8 bytes. Other systems
            do this; a codec with it is a baseline.
    """

    id: int
    size: Callable[[int], int]
    write: Callable[[Floats], bytes]
    read: Callable[[memoryview, int], Floats]
    index_bytes: int = 0


def _read_fp32(section: memoryview, count: int) -> Floats:
    return np.frombuffer(section, dtype="<f4").astype(np.float32)


def _in_blocks(values: NDArray[np.generic]) -> Floats:
    """One row for each block, filled up with zeros."""
    blocks = np.zeros((-(-len(values) // BLOCK), BLOCK), dtype=np.float32)
    blocks.reshape(-1)[: len(values)] = values
    return blocks


def _write_int8(values: Floats) -> bytes:
    """A scale for each block, so that its largest value is 127 times the scale; then the values in scales.

    The scale is rounded up to 16 significant bits, so that 127 scales, and every decoded value, is exact in float32.
    Denormal numbers do not have that many bits: a scale that would be denormal is 0.
    """
    blocks = _in_blocks(values)
    bits = (np.maximum(blocks.max(axis=1), -blocks.min(axis=1)) / np.float32(127)).view(np.uint32)
    mask = np.uint32(0xFFFFFF00)
    up, down = ((bits + np.uint32(0xFF)) & mask).view(np.float32), (bits & mask).view(np.float32)
    scales = np.where(up > LARGEST, down, np.where(up < NORMAL, np.float32(0), up))
    blocks /= np.where(scales > 0, scales, np.float32(np.inf))[:, None]
    np.clip(np.rint(blocks, out=blocks), -127, 127, out=blocks)
    return scales.astype("<f4").tobytes() + blocks.astype(np.int8).reshape(-1)[: len(values)].tobytes()


def _read_int8(section: memoryview, count: int) -> Floats:
    middle = 4 * -(-count // BLOCK)
    scales = np.frombuffer(section[:middle], dtype="<f4").astype(np.float32)
    steps = np.frombuffer(section[middle:], dtype=np.int8)
    bits = scales.view(np.uint32)
    if not np.all((bits == 0) | (scales >= NORMAL) & (scales <= LARGEST) & (bits & 0xFF == 0)):
        raise MalformedPayload(
            "a scale of the int8 values is not finite, is negative or denormal, or has too many digits"
        )
    if np.any(steps == -128):
        raise MalformedPayload("an int8 value is -128, which is never written")
    return np.asarray((_in_blocks(steps) * scales[:, None]).reshape(-1)[:count])


def _write_sign(values: Floats) -> bytes:
    """The mean magnitude as bf16, rounded to even, then one bit per value: 1 for negative."""
    if not len(values):
        return b""
    mean = int(np.float32(np.abs(values).mean(dtype=np.float64)).view(np.uint32))
    mean = min((mean + 0x7FFF + (mean >> 16 & 1)) >> 16, 0x7F7F)
    negative = (values < 0) & (mean > 0)
    return mean.to_bytes(2, "little") + np.packbits(negative, bitorder="little").tobytes()


def _read_sign(section: memoryview, count: int) -> Floats:
    bits = int.from_bytes(section[:2], "little")
    negative = np.unpackbits(np.frombuffer(section[2:], dtype=np.uint8), bitorder="little")
    if bits >> 15 or negative[count:].any() or (bits == 0 and negative.any()):
        raise MalformedPayload("the mean magnitude is negative, or sign bits are set where there is no value")
    mean = np.uint32(bits << 16).view(np.float32)
    return np.array([mean, -mean], dtype=np.float32)[negative[:count]]


VALUE_CODECS: dict[str, ValueCodec] = {
    "fp32": ValueCodec(0, lambda count: 4 * count, lambda values: values.astype("<f4").tobytes(), _read_fp32),
    "int8": ValueCodec(1, lambda count: count + 4 * -(-count // BLOCK), _write_int8, _read_int8),
    "sign": ValueCodec(2, lambda count: 2 * min(1, count) + -(-count // 8), _write_sign, _read_sign),
}
"""Every value codec by name."""


def value_codec(name: str) -> ValueCodec:
    """The codec of that name; its number must be its own."""
    if name not in VALUE_CODECS:
        raise unknown("value codec", name, VALUE_CODECS)
    codec = VALUE_CODECS[name]
    if not 0 <= codec.id < 16 or codec_of(codec.id) is not codec:
        raise InvalidInput(
            f"the value codec {name!r} has the number {codec.id}, which is taken or not from 0 to 15: give it another"
        )
    return codec


def codec_of(number: int) -> ValueCodec:
    """The first codec that was registered with this number."""
    for codec in VALUE_CODECS.values():
        if codec.id == number:
            return codec
    raise MalformedPayload(f"the frame uses the unknown value codec {number}")


def quantize(values: Floats, name: str) -> Floats:
    """The values as the receiver will read them; quantizing them again changes nothing.

    Example:
        >>> quantize(np.array([1.0, -0.25, 3.0], dtype=np.float32), "sign")
        array([ 1.4140625, -1.4140625,  1.4140625], dtype=float32)
    """
    codec = value_codec(name)
    values = np.ascontiguousarray(values, dtype=np.float32)
    return codec.read(memoryview(codec.write(values)), len(values))
