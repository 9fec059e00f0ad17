"""Rice codes for ascending indices: each gap as `b` low bits and a quotient in unary (that many zeros, then a one).

One bit string, filled from the lowest bit of each byte up: parameters, the low bits of all gaps, all quotients. There
are two ways to choose `b`:

    even     the best for this many indices spread over the whole vector, which the reader knows
    blocks   the best for each block of 128 indices, sent in 6 bits: for indices that cluster
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload

__all__ = ["BLOCK", "Rice", "largest", "last_counts", "plan", "read", "write"]

BLOCK = 128  # how many indices share a parameter that is sent
PARAMETER_BITS = 6
LARGEST_PARAMETER = 48

Ints = NDArray[np.int64]


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
    from dagc.wire import _kernels  # compiles, so only on use

    indices = np.ascontiguousarray(indices)
    block, counts, sent = _blocks(len(indices), blocks)
    parameters = _best_parameter(_totals(indices, counts) if blocks else size - counts, counts)
    head = sent * len(parameters) + int((parameters * counts).sum())
    unary = len(indices) + int(_kernels.quotients(indices, block, parameters))
    return Rice(indices, block, parameters, sent, head, unary)


def write(rice: Rice) -> bytes:
    """The section's bytes; there are `rice.size` of them."""
    from dagc.wire import _kernels

    out = np.zeros(rice.size, dtype=np.uint8)
    _kernels.rice_write(rice.indices, rice.block, rice.parameters, rice.sent, rice.head, out)
    return out.tobytes()


def read(section: memoryview, size: int, count: int, blocks: bool) -> Ints:
    """Decode the indices of an untrusted section; `MalformedPayload` if it is not exactly right."""
    from dagc.wire import _kernels

    short = MalformedPayload(f"the index section is too short for {count} indices: {len(section)} bytes")
    if count > 8 * len(section):
        raise short
    block, counts, sent = _blocks(count, blocks)
    low = sent * len(counts)
    if low > 8 * len(section):
        raise short
    data = np.frombuffer(section, dtype=np.uint8)
    if blocks:
        parameters = np.unpackbits(data, count=low, bitorder="little").reshape(-1, sent) @ (1 << np.arange(sent))
        if parameters.max(initial=0) > LARGEST_PARAMETER:
            raise MalformedPayload(f"a Rice parameter is {parameters.max()}, above {LARGEST_PARAMETER}")
    else:
        parameters = _best_parameter(size - counts, counts)
    head = low + int((parameters * counts).sum())
    if head + count > 8 * len(section):
        raise short
    indices = np.empty(count, dtype=np.int64)
    if not _kernels.rice_read(data, block, parameters, low, head, size, indices):
        raise MalformedPayload(
            f"the index section does not hold {count} indices: one is missing or out of range for a vector of {size}, "
            "or bytes follow"
        )
    return indices


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


def _blocks(count: int, blocks: bool) -> tuple[int, Ints, int]:
    """How long a block is, how many indices each has, and in how many bits its parameter is sent."""
    block = BLOCK if blocks else max(1, count)
    counts = np.full(-(-count // block), block, dtype=np.int64)
    counts[-1:] -= -count % block
    return block, counts, PARAMETER_BITS if blocks else 0


def _totals(indices: Ints, counts: Ints) -> Ints:
    """The sum of the gaps in each block."""
    lasts = np.append(indices[BLOCK - 1 :: BLOCK], indices[-1:])[: len(counts)]
    return np.diff(lasts, prepend=-1) - counts


def _best_parameter(totals: Ints, counts: Ints) -> Ints:
    """The bit length of ⌊0.4812·(mean gap + ½)⌋, the best for geometric gaps; in integers, so the same everywhere."""
    x = (2 * totals + counts) * 4812 // (20000 * counts)
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)
