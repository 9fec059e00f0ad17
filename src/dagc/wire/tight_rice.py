"""Rice codes for the few indices of a compact frame: what follows from the size and the count is not sent.

One bit string: the low `b` bits of every gap, then gap >> `b` in unary for every gap (that many zeros, then a one). `b`
is the best one for this many indices spread over the whole vector, so it need not be sent.
"""

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload
from dagc.wire.rice import best_parameter, from_gaps

__all__ = ["largest", "plan", "read", "write"]

Ints = NDArray[np.int64]


def plan(indices: Ints, size: int) -> int:
    """How many bytes these indices take."""
    gaps, b = np.diff(indices, prepend=-1) - 1, _parameter(size, len(indices))
    return -(-(len(gaps) * (b + 1) + int((gaps >> b).sum())) // 8)


def write(indices: Ints, size: int) -> bytes:
    """The section's bytes; `plan` says how many."""
    gaps, b = np.diff(indices, prepend=-1) - 1, _parameter(size, len(indices))
    quotients = gaps >> b
    low = (gaps[:, None] >> np.arange(b)) & 1
    unary = np.zeros(int(quotients.sum()) + len(gaps), dtype=np.uint8)
    unary[np.cumsum(quotients + 1) - 1] = 1
    return np.packbits(np.concatenate((low.ravel().astype(np.uint8), unary)), bitorder="little").tobytes()


def read(section: memoryview, size: int, count: int) -> Ints:
    """Decode the indices of an untrusted section; `MalformedPayload` if it is not exactly right."""
    b = _parameter(size, count)
    if count * (b + 1) > 8 * len(section):
        raise MalformedPayload(f"the index section is too short for {count} indices: {len(section)} bytes")
    bits = np.unpackbits(np.frombuffer(section, dtype=np.uint8), bitorder="little")
    low = bits[: count * b].reshape(count, b) @ (np.int64(1) << np.arange(b))
    unary = bits[count * b :]
    ends = np.flatnonzero(unary)
    if len(ends) != count or len(unary) - (ends[-1] + 1 if count else 0) >= 8:
        raise MalformedPayload(f"the section holds {len(ends)} gaps for {count} indices, or does not end with them")
    return from_gaps(np.diff(ends, prepend=-1) - 1, b, low, size)


def largest(size: int, counts: Ints) -> Ints:
    """The most bytes that a number of indices can take: their gaps add up to at most size − count."""
    k = np.maximum(counts, 1)
    b = best_parameter(size - k, k)
    return np.where(counts == 0, 0, -(-(k * (b + 1) + ((size - k) >> b)) // 8))


def _parameter(size: int, count: int) -> int:
    if not count:
        return 0
    return int(best_parameter(np.array([size - count]), np.array([count]))[0])
