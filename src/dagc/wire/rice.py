"""Rice codes for ascending indices: each gap as `b` low bits and a quotient in unary (that many zeros, then a one).

One bit string, filled from the lowest bit of each byte up: parameters, the low bits of all gaps, all quotients. With
the parts separate, low bits are at known places and quotients are found by their ones, so both directions work on whole
arrays. There are two ways to choose `b`:

    even     the best for this many indices spread over the whole vector, which the reader knows
    blocks   the best for each block of 128 indices, sent in 6 bits: for indices that cluster
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import MalformedPayload

__all__ = ["BLOCK", "Rice", "largest", "last_counts", "plan", "read", "write"]

BLOCK = 128
"""How many indices share a parameter that is sent."""
PARAMETER_BITS = 6
LARGEST_PARAMETER = 48

Ints = NDArray[np.int64]
Bits = NDArray[np.uint8]


class Rice(NamedTuple):
    """How indices would be written, computed before anything is: to compare ways, and then to write."""

    indices: Ints
    block: int
    parameters: Ints  # of each block
    sent: int  # bits of a parameter
    head: int  # bits of all parameters and low bits
    unary: int  # bits of all quotients

    @property
    def size(self) -> int:
        """Bytes."""
        return -(-(self.head + self.unary) // 8)


def plan(indices: Ints, size: int, blocks: bool) -> Rice:
    """Choose the parameters and compute the exact length."""
    indices = np.ascontiguousarray(indices)
    block, counts, sent = _blocks(len(indices), blocks)
    parameters = _best_parameter(_totals(indices, counts) if blocks else size - counts, counts)
    if compiled():
        quotients = _kernels().quotients(indices, block, parameters)
    else:
        quotients = int((_gaps(indices) >> np.repeat(parameters, counts)).sum())
    head = sent * len(parameters) + int((parameters * counts).sum())
    return Rice(indices, block, parameters, sent, head, len(indices) + quotients)


def write(rice: Rice) -> bytes:
    """The section's bytes; there are `rice.size` of them."""
    if not compiled():
        return _write(rice)
    out = np.zeros(rice.size, dtype=np.uint8)
    _kernels().rice_write(rice.indices, rice.block, rice.parameters, rice.sent, rice.head, out)
    return out.tobytes()


def read(section: memoryview, size: int, count: int, blocks: bool) -> Ints:
    """Decode the indices of an untrusted section; `MalformedPayload` if it is not exactly right."""
    block, counts, sent = _blocks(count, blocks) if count <= 8 * len(section) else (1, np.zeros(0, dtype=np.int64), 0)
    if count > 8 * len(section) or sent * len(counts) > 8 * len(section):
        raise MalformedPayload(f"the index section is too short for {count} indices: {len(section)} bytes")
    data = np.frombuffer(section, dtype=np.uint8)
    if not blocks:
        parameters = _best_parameter(size - counts, counts)
    else:
        parameters = _unpacked(data, sent * len(counts)).reshape(-1, sent) @ (1 << np.arange(sent))
        if parameters.max(initial=0) > LARGEST_PARAMETER:
            raise MalformedPayload(f"a Rice parameter is {parameters.max()}, above {LARGEST_PARAMETER}")
    low = sent * len(counts)
    head = low + int((parameters * counts).sum())
    if head + count > 8 * len(section):
        raise MalformedPayload(f"the index section is too short for {count} indices: {len(section)} bytes")
    if compiled():
        indices = np.empty(count, dtype=np.int64)
        if _kernels().rice_read(data, block, parameters, low, head, size, indices):
            return indices
    return _read(data, np.repeat(parameters, counts), low, head, size)  # which also reports what is wrong


def largest(size: int, counts: Ints) -> Ints:
    """The most bytes that these numbers of indices can take: their gaps add up to at most size − count."""
    k = np.maximum(counts, 1)
    b = _best_parameter(size - k, k)
    return np.where(counts == 0, 0, -(-(k * (b + 1) + ((size - k) >> b)) // 8))


def last_counts(size: int) -> Ints:
    """The largest count for each even parameter, from the largest parameter to 1.

    With one more index the parameter is smaller. Between two of these counts, more indices never take fewer bits.
    """
    return np.array([2 * 4812 * size // ((20000 << b - 1) + 4812) for b in range(LARGEST_PARAMETER, 0, -1)])


@cache
def _kernels() -> Any:
    """Imported on first use and cached: an import statement costs as much as writing a thousand indices."""
    from dagc.wire import _kernels

    return _kernels


def _blocks(count: int, blocks: bool) -> tuple[int, Ints, int]:
    """How long a block is, how many indices each has, and in how many bits its parameter is sent."""
    block = BLOCK if blocks else max(1, count)
    counts = np.full(-(-count // block), block, dtype=np.int64)
    counts[-1:] -= -count % block
    return block, counts, PARAMETER_BITS if blocks else 0


def _totals(indices: Ints, counts: Ints) -> Ints:
    """The sum of the gaps in each block."""
    lasts = np.append(indices[BLOCK - 1 :: BLOCK], indices[-1:])[: len(counts)]
    totals = lasts - counts
    totals[1:] -= lasts[:-1]
    totals[:1] += 1
    return totals


def _best_parameter(totals: Ints, counts: Ints) -> Ints:
    """The bit length of ⌊0.4812·(mean gap + ½)⌋, the best for geometric gaps; in integers, so the same everywhere."""
    x = (2 * totals + counts) * 4812 // (20000 * counts)
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)


def _gaps(indices: Ints) -> Ints:
    return np.diff(indices, prepend=-1) - 1


def _write(rice: Rice) -> bytes:
    """The reference for `write`: one byte per bit, then packed."""
    gaps = _gaps(rice.indices)
    widths = np.repeat(rice.parameters, rice.block)[: len(gaps)]
    unary = np.zeros(rice.unary, dtype=np.uint8)
    unary[np.cumsum((gaps >> widths) + 1) - 1] = 1
    head = _bits(rice.parameters, np.full(len(rice.parameters), rice.sent))
    return np.packbits(np.concatenate((head, _bits(gaps, widths), unary)), bitorder="little").tobytes()


def _read(data: Bits, widths: Ints, low: int, head: int, size: int) -> Ints:
    """The reference for `read`: low bits from bit `low` on, quotients from bit `head` on."""
    bits = _unpacked(data, 8 * len(data))
    unary, count = bits[head:], len(widths)
    ends = np.flatnonzero(unary)
    if len(ends) != count or len(unary) - (ends[-1] + 1 if count else 0) >= 8:
        raise MalformedPayload(f"there are {len(ends)} quotients for {count} indices, or bytes follow them")
    quotients = np.diff(ends, prepend=-1) - 1
    if np.any(quotients > size >> widths):
        raise MalformedPayload(f"an index is out of range for a vector of {size}")
    steps = (quotients << widths) + _numbers(bits[low:head], widths) + 1
    if steps.sum(dtype=np.float64) > 2.0 * size:  # before an exact sum could overflow
        raise MalformedPayload(f"an index is out of range for a vector of {size}")
    indices = np.cumsum(steps) - 1
    if count and indices[-1] >= size:
        raise MalformedPayload(f"index {indices[-1]} is out of range for a vector of {size}")
    return indices


def _unpacked(data: Bits, count: int) -> Bits:
    """The first bits, one byte each."""
    return np.unpackbits(data, count=count, bitorder="little")


def _bits(numbers: Ints, widths: Ints) -> Bits:
    """The lowest `width` bits of each number, one after the other, one byte each."""
    starts = np.cumsum(widths) - widths
    bits = np.zeros(int(widths.sum()), dtype=np.uint8)
    wide = np.arange(len(widths))
    for bit in range(int(widths.max(initial=0))):
        wide = wide[widths[wide] > bit]  # fewer each time: no more work than there are bits
        bits[starts[wide] + bit] = (numbers[wide] >> bit) & 1
    return bits


def _numbers(bits: Bits, widths: Ints) -> Ints:
    """The inverse of `_bits`."""
    starts = np.cumsum(widths) - widths
    numbers = np.zeros(len(widths), dtype=np.int64)
    wide = np.arange(len(widths))
    for bit in range(int(widths.max(initial=0))):
        wide = wide[widths[wide] > bit]
        numbers[wide] |= bits[starts[wide] + bit].astype(np.int64) << bit
    return numbers
