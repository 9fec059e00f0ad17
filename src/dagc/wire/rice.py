"""Rice codes for ascending indices: each gap as a unary quotient and `b` low bits, one `b` for all or one per block.

The section holds three bit strings, each padded with zeros to a whole byte and filled from the lowest bit up: the
parameters, the low bits of all gaps, and the unary quotients (that many zeros, then a one). With the parts separate,
low bits are at known places and quotients are found by their ones, so both directions work on whole arrays.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import MalformedPayload

__all__ = ["BLOCK", "Rice", "best_parameter", "from_gaps", "last_counts", "plan", "read", "write"]

BLOCK = 128
"""How many indices share a parameter in the adaptive code."""
PARAMETER_BITS = 6
LARGEST_PARAMETER = 48

Ints = NDArray[np.int64]
Bits = NDArray[np.uint8]


class Rice(NamedTuple):
    """How indices would be written: computed before anything is, to compare codecs and then to write."""

    indices: Ints
    parameters: Ints  # one for all, or one per block
    low: int  # bits
    unary: int  # bits
    size: int  # bytes in the section


def plan(indices: Ints, adaptive: bool) -> Rice:
    """Choose the parameters and compute the exact size of the section."""
    if compiled():
        indices = np.ascontiguousarray(indices)
        parameters = np.empty(_blocks(len(indices), adaptive), dtype=np.int64)
        low, unary = _kernels().rice_parameters(indices, BLOCK if adaptive else max(1, len(indices)), parameters)
    else:
        parameters, low, unary = _parameters(indices, adaptive)
    size = _parameter_bytes(len(indices), adaptive) + _bytes(low) + _bytes(unary)
    return Rice(indices, parameters, low, unary, size)


def write(rice: Rice, adaptive: bool) -> bytes:
    """The section's bytes; there are `rice.size` of them."""
    if not compiled():
        return _write(rice, adaptive)
    head = _parameter_bytes(len(rice.indices), adaptive)
    middle = head + _bytes(rice.low)
    out = np.empty(rice.size + 16, dtype=np.uint8)
    bits, block = (PARAMETER_BITS, BLOCK) if adaptive else (8, max(1, len(rice.indices)))
    _kernels().rice_write(rice.indices, block, rice.parameters, bits, head, middle + 8, out)
    return b"".join((out[:middle].data, out[middle + 8 : -8].data))


def read(section: memoryview, size: int, count: int, adaptive: bool) -> Ints:
    """Decode the indices of an untrusted section; `MalformedPayload` if it is not exactly right."""
    head = _parameter_bytes(count, adaptive)
    if compiled() and head <= len(section) and count <= 8 * len(section):
        data = np.frombuffer(b"".join((section, bytes(8))), dtype=np.uint8)
        bits, block = (PARAMETER_BITS, BLOCK) if adaptive else (8, max(1, count))
        parameters = np.empty(_blocks(count, adaptive), dtype=np.int64)
        low = _kernels().rice_read_parameters(data, bits, block, count, LARGEST_PARAMETER, parameters)
        middle, end = head + _bytes(low), len(section)
        if low >= 0 and middle <= end:
            indices = np.empty(count, dtype=np.int64)
            if _kernels().rice_read(data, block, parameters, head, middle, end, size, indices):
                return indices
    return _read(section, size, count, adaptive)  # which also reports what is wrong


@cache
def _kernels() -> Any:
    """Imported on first use and cached: an import statement costs as much as writing a thousand indices."""
    from dagc.wire import _kernels

    return _kernels


def _parameters(indices: Ints, adaptive: bool) -> tuple[Ints, int, int]:
    """The best parameters, and the number of low and of unary bits they give: the reference for `plan`."""
    gaps = np.diff(indices, prepend=-1) - 1
    starts = np.arange(0, len(gaps), BLOCK) if adaptive else np.zeros(min(1, len(gaps)), dtype=np.int64)
    counts = np.diff(starts, append=len(gaps))
    parameters = best_parameter(np.add.reduceat(gaps, starts) if len(gaps) else gaps, counts)
    quotients = gaps >> np.repeat(parameters, counts)
    return parameters, int((parameters * counts).sum()), int(quotients.sum()) + len(gaps)


def _write(rice: Rice, adaptive: bool) -> bytes:
    """The reference for `write`: one byte per bit, then packed."""
    gaps = np.diff(rice.indices, prepend=-1) - 1
    widths = _widths(rice.parameters, len(gaps), adaptive)
    quotients = gaps >> widths
    unary = np.zeros(rice.unary, dtype=np.uint8)
    unary[np.cumsum(quotients + 1) - 1] = 1
    return (
        _pack_parameters(rice.parameters, adaptive).tobytes()
        + _pack(gaps - (quotients << widths), widths).tobytes()
        + np.packbits(unary, bitorder="little").tobytes()
    )


def _read(section: memoryview, size: int, count: int, adaptive: bool) -> Ints:
    """The reference for `read`."""
    parameters, head, middle = _frame(section, count, adaptive)
    data = np.frombuffer(section, dtype=np.uint8)
    widths = _widths(parameters, count, adaptive)
    low = _unpack(data[head:middle], widths)
    unary = np.unpackbits(data[middle:], bitorder="little")
    ends = np.flatnonzero(unary)
    if len(ends) != count or len(unary) - (ends[-1] + 1 if count else 0) >= 8:
        raise MalformedPayload(
            f"the unary part holds {len(ends)} quotients for {count} indices, or does not end with them"
        )
    quotients = np.diff(ends, prepend=-1) - 1
    return from_gaps(quotients, widths, low, size)


def from_gaps(quotients: Ints, widths: Ints | int, low: Ints, size: int) -> Ints:
    """The indices whose gaps have these quotients and low bits; `MalformedPayload` if one is out of range."""
    if np.any(quotients > size >> widths):
        raise MalformedPayload(f"an index is out of range for a vector of {size}")
    steps = (quotients << widths) + low + 1
    if steps.sum(dtype=np.float64) > 2.0 * size:  # before an exact sum could overflow
        raise MalformedPayload(f"an index is out of range for a vector of {size}")
    indices = np.cumsum(steps) - 1
    if len(indices) and indices[-1] >= size:
        raise MalformedPayload(f"index {indices[-1]} is out of range for a vector of {size}")
    return indices


def _frame(section: memoryview, count: int, adaptive: bool) -> tuple[Ints, int, int]:
    """The parameters of a section, and where its low bits and its unary quotients begin."""
    head = _parameter_bytes(count, adaptive)
    if len(section) < head:
        raise MalformedPayload(
            f"the index section is too short for the Rice parameters: {len(section)} of {head} bytes"
        )
    data = np.frombuffer(section, dtype=np.uint8)
    blocks = _blocks(count, adaptive)
    parameters = _unpack(data[:head], np.full(blocks, PARAMETER_BITS)) if adaptive else data[:head].astype(np.int64)
    if len(parameters) and parameters.max() > LARGEST_PARAMETER:
        raise MalformedPayload(f"a Rice parameter is {parameters.max()}, above {LARGEST_PARAMETER}")
    counts = np.full(blocks, BLOCK) if adaptive else np.full(blocks, count)
    counts[-1:] += count - counts.sum()
    low = int((parameters * counts).sum())
    middle = head + _bytes(low)
    if len(section) < middle:
        raise MalformedPayload(f"the index section is too short for the low bits: {len(section)} of {middle} bytes")
    if low % 8 and data[middle - 1] >> low % 8:
        raise MalformedPayload("the padding of a bit string is not zero")
    if count > 8 * (len(section) - middle):
        raise MalformedPayload(f"the unary part is too short for {count} indices: {len(section) - middle} bytes")
    return parameters, head, middle


def best_parameter(total: Ints, count: Ints) -> Ints:
    """The bit length of ⌊0.4812·(mean gap + ½)⌋, the best for geometric gaps; in integers, so the same everywhere."""
    x = (2 * total + count) * 4812 // (20000 * count)
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def last_counts(size: int) -> Ints:
    """The largest count for each best parameter, from the largest parameter to 1, if gaps add up to size − count.

    With one more index the parameter is smaller. Between two of these counts, more indices never take fewer bits.
    """
    return np.array([2 * 4812 * size // ((20000 << b - 1) + 4812) for b in range(LARGEST_PARAMETER, 0, -1)])


def _widths(parameters: Ints, count: int, adaptive: bool) -> Ints:
    return np.repeat(parameters, BLOCK)[:count] if adaptive else np.repeat(parameters, count)[:count]


def _blocks(count: int, adaptive: bool) -> int:
    return -(-count // BLOCK) if adaptive else min(1, count)


def _parameter_bytes(count: int, adaptive: bool) -> int:
    blocks = _blocks(count, adaptive)
    return _bytes(blocks * PARAMETER_BITS) if adaptive else blocks


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def _pack_parameters(parameters: Ints, adaptive: bool) -> Bits:
    if adaptive:
        return _pack(parameters, np.full(len(parameters), PARAMETER_BITS))
    return parameters.astype(np.uint8)


def _pack(numbers: Ints, widths: Ints) -> Bits:
    """The lowest `width` bits of each number, one after the other."""
    starts = np.cumsum(widths) - widths
    bits = np.zeros(int(widths.sum()), dtype=np.uint8)
    wide = np.arange(len(widths))
    for bit in range(int(widths.max(initial=0))):
        wide = wide[widths[wide] > bit]  # fewer each time: no more work than there are bits
        bits[starts[wide] + bit] = (numbers[wide] >> bit) & 1
    return np.packbits(bits, bitorder="little")


def _unpack(data: Bits, widths: Ints) -> Ints:
    """The inverse of `_pack`; the padding must be zero."""
    starts = np.cumsum(widths) - widths
    bits = np.unpackbits(data, bitorder="little")
    if bits[int(widths.sum()) :].any():
        raise MalformedPayload("the padding of a bit string is not zero")
    numbers = np.zeros(len(widths), dtype=np.int64)
    wide = np.arange(len(widths))
    for bit in range(int(widths.max(initial=0))):
        wide = wide[widths[wide] > bit]
        numbers[wide] |= bits[starts[wide] + bit].astype(np.int64) << bit
    return numbers
