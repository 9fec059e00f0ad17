"""How the indices of a frame are written: by whichever of four rules applies and takes the fewest bytes.

Two rules are Rice codes: each gap as `b` low bits and a quotient in unary (that many zeros, then a one). They are one
bit string, filled from the lowest bit of each byte up: parameters, the low bits of all gaps, all quotients. `b` is

    even     the best for this many indices spread over the whole vector, which the reader knows
    blocks   the best for each block of 128 indices, sent in 6 bits: for indices that cluster
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.draws import draw
from dagc.errors import InvalidInput, MalformedPayload
from dagc.sparse import Sparse

__all__ = ["BLOCK", "SEED", "Rice", "largest", "last_counts", "plan", "read", "read_indices", "write", "write_indices"]

Ints = NDArray[np.int64]

EVEN, BLOCKS, SEED, PLAIN = range(4)
"""Rice codes, even or in blocks; the seed that indices were drawn from; integers, if the value codec wants them.

If every entry is sent, there are no indices, and the rule is EVEN.
"""
SEED_BYTES = 8
BLOCK = 128  # how many indices share a parameter that is sent
PARAMETER_BITS, LARGEST_PARAMETER = 6, 48


def write_indices(sparse: Sparse, index_bytes: int) -> tuple[int, bytes]:
    """The number of the rule, and the section that it writes."""
    if len(sparse) == sparse.size:
        return EVEN, b""
    if index_bytes:
        if sparse.size > 1 << (8 * index_bytes - 1):
            raise InvalidInput(f"indices of {index_bytes} bytes are too small for a vector of {sparse.size:,} entries")
        return PLAIN, sparse.indices.astype(f"<i{index_bytes}").tobytes()
    kind, best = EVEN, plan(sparse.indices, sparse.size, blocks=False)
    if len(sparse) > 1:
        blocks = plan(sparse.indices, sparse.size, blocks=True)
        if blocks.size < best.size:
            kind, best = BLOCKS, blocks
    if sparse.seed is not None and best.size > SEED_BYTES:
        return SEED, sparse.seed.to_bytes(SEED_BYTES, "little")
    return kind, write(best)


def read_indices(kind: int, section: memoryview, size: int, count: int, index_bytes: int) -> Ints:
    """Decode the indices of an untrusted section; `MalformedPayload` if it is not exactly right."""
    if kind == EVEN and count == size:
        if len(section):
            raise MalformedPayload(f"all {size} entries need no indices, but there are {len(section)} bytes of them")
        return np.arange(size)
    if (kind == PLAIN) != bool(index_bytes):
        raise MalformedPayload(f"the index rule {kind} does not go with this value codec")
    if kind in (EVEN, BLOCKS):
        return read(section, size, count, kind == BLOCKS)
    if kind == SEED:
        if len(section) != SEED_BYTES:
            raise MalformedPayload(f"a seed takes {SEED_BYTES} bytes, not {len(section)}")
        return draw(int.from_bytes(section, "little"), size, count)
    if kind != PLAIN:
        raise MalformedPayload(f"the frame uses the unknown index rule {kind}")
    if len(section) != index_bytes * count:
        raise MalformedPayload(f"{count} indices take {index_bytes * count} bytes, not {len(section)}")
    indices = np.frombuffer(section, dtype=f"<i{index_bytes}").astype(np.int64)
    if count and (indices[0] < 0 or indices[-1] >= size or np.any(indices[1:] <= indices[:-1])):
        raise MalformedPayload(f"the indices do not ascend, or one is out of range for a vector of {size}")
    return indices


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
    lasts = np.append(indices[BLOCK - 1 : -1 : BLOCK], indices[-1:]) if blocks else np.array([size - 1])
    parameters = _best_parameter(lasts - np.append(-1, lasts[:-1]) - counts, counts)
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


def _best_parameter(totals: Ints, counts: Ints) -> Ints:
    """The bit length of ⌊0.4812·(mean gap + ½)⌋, the best for geometric gaps; in integers, so the same everywhere."""
    x = (2 * totals + counts) * 4812 // (20000 * counts)
    return np.frexp(x.astype(np.float64))[1].astype(np.int64)
