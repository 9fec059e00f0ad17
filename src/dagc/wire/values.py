"""How values are written: six codecs. Each is a projection: decoded values encode to the same bytes again.

So error feedback knows exactly what the server will read, before anything is sent.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import MalformedPayload, unknown

__all__ = ["RETIRED", "VALUE_CODECS", "ValueCodec", "quantise", "value_codec"]

Floats = NDArray[np.float32]

BLOCK = 256
"""How many values share a scale with int8, or two magnitudes with two-bit."""
ROUNDS = 8
"""How often the two magnitudes of a block are fitted, at most; more would reduce the error by less than 1 %."""
NORMAL = np.finfo(np.float32).smallest_normal


class ValueCodec(NamedTuple):
    """One way to write float32 values.

    Attributes:
        id: Its number on the wire, from 0 to 15.
        size: The number of bytes for a number of values; more values never take fewer.
        write: Encodes finite values. Those beyond the codec's range become its largest.
        read: Decodes exactly `size(count)` bytes, and raises `MalformedPayload` for bytes that `write` never makes.
    """

    id: int
    size: Callable[[int], int]
    write: Callable[[Floats], bytes]
    read: Callable[[memoryview, int], Floats]


def _read_fp32(section: memoryview, count: int) -> Floats:
    return np.frombuffer(section, dtype="<f4").astype(np.float32)


def _write_fp16(values: Floats) -> bytes:
    return np.clip(values, -65504, 65504).astype("<f2").tobytes()


def _read_fp16(section: memoryview, count: int) -> Floats:
    return np.frombuffer(section, dtype="<f2").astype(np.float32)


def _write_bf16(values: Floats) -> bytes:
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    overflow = (rounded & 0x7F80) == 0x7F80
    return np.where(overflow, (rounded & 0x8000) | 0x7F7F, rounded).astype("<u2").tobytes()


def _read_bf16(section: memoryview, count: int) -> Floats:
    return (np.frombuffer(section, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


def _write_int8(values: Floats) -> bytes:
    """A scale for each block, so that its largest value is 127 times the scale; then the values in scales.

    The scale is rounded up to 16 significant bits, so that 127 scales, and every decoded value, is exact in float32.
    Denormal numbers do not have that many bits: a scale that would be denormal is 0.
    """
    if not len(values):
        return b""
    if compiled():
        from dagc.wire import _kernels

        scales, steps = np.empty(-(-len(values) // BLOCK), dtype="<f4"), np.empty(len(values), dtype=np.int8)
        _kernels.int8_write(np.ascontiguousarray(values), BLOCK, scales, steps)
        return scales.tobytes() + steps.tobytes()
    largest = np.maximum.reduceat(np.abs(values), np.arange(0, len(values), BLOCK))
    bits = (largest / np.float32(127)).view(np.uint32)
    mask = np.uint32(0xFFFFFF00)
    up, down = ((bits + np.uint32(0xFF)) & mask).view(np.float32), (bits & mask).view(np.float32)
    scales = np.where(_overflows(up), down, np.where(up < NORMAL, np.float32(0), up))
    spread = np.repeat(np.where(scales > 0, scales, 1), BLOCK)[: len(values)]
    rounded = np.where(np.repeat(scales, BLOCK)[: len(values)] > 0, np.rint(values / spread), 0)
    return scales.astype("<f4").tobytes() + np.clip(rounded, -127, 127).astype(np.int8).tobytes()


def _overflows(scales: Floats) -> NDArray[np.bool_]:
    return np.asarray(scales.astype(np.float64) * 127 > np.finfo(np.float32).max)


def _read_int8(section: memoryview, count: int) -> Floats:
    blocks = -(-count // BLOCK)
    scales = np.frombuffer(section[: 4 * blocks], dtype="<f4").astype(np.float32)
    steps = np.frombuffer(section[4 * blocks :], dtype=np.int8)
    bits = scales.view(np.uint32)
    if np.any(bits & 0xFF) or np.any(bits >= 0x7F800000) or np.any(_overflows(scales) | (bits > 0) & (scales < NORMAL)):
        raise MalformedPayload(
            "a scale of the int8 values is not finite, is negative or denormal, or has too many digits"
        )
    if np.any(steps == -128):
        raise MalformedPayload("an int8 value is -128, which is never written")
    values = steps.astype(np.float32)
    whole = count // BLOCK * BLOCK
    values[:whole].reshape(-1, BLOCK)[:] *= scales[: count // BLOCK, None]
    values[whole:] *= scales[-1:]
    return values


def _write_sign(values: Floats) -> bytes:
    """The mean magnitude as bf16, then one bit per value: 1 for negative."""
    if not len(values):
        return b""
    mean = _write_bf16(np.abs(values).mean(dtype=np.float64, keepdims=True).astype(np.float32))
    return mean + np.packbits((values < 0) & (_read_bf16(memoryview(mean), 1) > 0), bitorder="little").tobytes()


def _read_sign(section: memoryview, count: int) -> Floats:
    if not count:
        return np.zeros(0, dtype=np.float32)
    mean = _read_bf16(section[:2], 1)[0]
    negative = np.unpackbits(np.frombuffer(section[2:], dtype=np.uint8), bitorder="little")
    if np.signbit(mean) or negative[count:].any() or (mean == 0 and negative.any()):
        raise MalformedPayload("the mean magnitude is negative, or sign bits are set where there is no value")
    return np.array([mean, -mean], dtype=np.float32)[negative[:count]]


def _write_two_bit(values: Floats) -> bytes:
    """Two magnitudes per block as bf16, then two bits per value: whether it is negative, whether it is large.

    The magnitudes are the means of the block's small and of its large values, divided halfway between the two means
    (Lloyd's method). Values of only two magnitudes are their own means, so decoded values encode to the same bytes.
    """
    if not len(values):
        return b""
    starts = np.arange(0, len(values), BLOCK)
    counts = np.diff(starts, append=len(values))
    magnitudes = np.abs(values).astype(np.float64)

    def means(chosen: NDArray[np.bool_], otherwise: NDArray[np.float64]) -> NDArray[np.float64]:
        number = np.add.reduceat(chosen, starts, dtype=np.int64)
        total = np.add.reduceat(np.where(chosen, magnitudes, 0.0), starts)
        return np.where(number > 0, total / np.maximum(number, 1), otherwise)

    split = np.add.reduceat(magnitudes, starts) / counts
    for _ in range(ROUNDS):
        large = magnitudes > np.repeat(split, counts)
        low = means(~large, split)
        high = means(large, low)
        middle = (low + high) / 2
        if np.array_equal(middle, split):
            break
        split = middle
    pairs = _write_bf16(np.stack([low, high], axis=1).astype(np.float32).ravel())
    lows, highs = _read_bf16(memoryview(pairs), 2 * len(starts)).reshape(-1, 2).T
    large &= np.repeat(lows < highs, counts)
    negative = (values < 0) & (np.where(large, np.repeat(highs, counts), np.repeat(lows, counts)) > 0)
    return pairs + np.packbits(np.stack([negative, large], axis=1).ravel(), bitorder="little").tobytes()


def _read_two_bit(section: memoryview, count: int) -> Floats:
    if not count:
        return np.zeros(0, dtype=np.float32)
    starts = np.arange(0, count, BLOCK)
    counts = np.diff(starts, append=count)
    lows, highs = _read_bf16(section[: 4 * len(starts)], 2 * len(starts)).reshape(-1, 2).T
    if np.signbit(lows).any() or not np.all(lows <= highs):
        raise MalformedPayload("a small magnitude of the two-bit values is negative or above the large one")
    bits = np.unpackbits(np.frombuffer(section[4 * len(starts) :], dtype=np.uint8), bitorder="little")
    negative, large = bits[: 2 * count].reshape(-1, 2).astype(np.bool_).T
    number = np.add.reduceat(large, starts, dtype=np.int64)
    if np.any(np.where(lows < highs, (number == 0) | (number == counts), number > 0)):
        raise MalformedPayload("a block of the two-bit values does not use both of its magnitudes, or they are equal")
    values = np.where(large, np.repeat(highs, counts), np.repeat(lows, counts))
    if bits[2 * count :].any() or np.any(negative & (values == 0)):
        raise MalformedPayload("bits of the two-bit values are set where there is no value")
    return np.where(negative, -values, values)


VALUE_CODECS: dict[str, ValueCodec] = {
    "fp32": ValueCodec(0, lambda count: 4 * count, lambda values: values.astype("<f4").tobytes(), _read_fp32),
    "fp16": ValueCodec(1, lambda count: 2 * count, _write_fp16, _read_fp16),
    "bf16": ValueCodec(2, lambda count: 2 * count, _write_bf16, _read_bf16),
    "int8": ValueCodec(3, lambda count: count + 4 * -(-count // BLOCK), _write_int8, _read_int8),
    "sign": ValueCodec(5, lambda count: 2 * min(1, count) + -(-count // 8), _write_sign, _read_sign),
    "two-bit": ValueCodec(6, lambda count: 4 * -(-count // BLOCK) + -(-count // 4), _write_two_bit, _read_two_bit),
}
"""Every value codec by name."""
RETIRED = {4: "signs with a mean of 4 bytes"}
"""The ids of former codecs, and what they were. They must never be reused."""


def value_codec(name: str) -> ValueCodec:
    """The codec of that name; an unknown name is refused with a list of all names."""
    if name not in VALUE_CODECS:
        raise unknown("value codec", name, VALUE_CODECS)
    return VALUE_CODECS[name]


def quantise(values: Floats, name: str) -> Floats:
    """The values as the receiver will read them; quantising them again changes nothing.

    Example:
        >>> quantise(np.array([1.0, -0.25, 3.0], dtype=np.float32), "sign")
        array([ 1.4140625, -1.4140625,  1.4140625], dtype=float32)
    """
    codec = value_codec(name)
    values = np.ascontiguousarray(values, dtype=np.float32)
    return codec.read(memoryview(codec.write(values)), len(values))
