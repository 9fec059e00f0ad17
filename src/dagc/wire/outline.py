"""The outline of a histogram: in which bin the largest entry is, the 2nd, the 4th, the 8th … in two or three bytes.

That is a histogram, too, with logarithmic bins on both axes; who shares out a round's budget needs no more. It ends at
a bin that both sides know, below which nothing will be sent. `docs/wire-format.md` has every bit.
"""

import numpy as np
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload
from dagc.wire.frame import _view

__all__ = ["LONGEST", "ranks_within", "read_outline", "write_outline"]

Ints = NDArray[np.int64]

LONGEST = 64
"""No outline needs more bytes."""


def ranks_within(reach: int) -> int:
    """How many of the ranks 1, 2, 4, 8 … are at most `reach`."""
    return reach.bit_length()


def write_outline(counts: Ints, floor: int = 1, reach: int = 1 << 48, longest: int = LONGEST) -> bytes:
    """The message for a histogram; empty if nothing is in the bin `floor` or above.

    Args:
        counts: How many entries each bin holds, the bin of the smallest first.
        floor: The lowest bin that is told of, from 1 (bin 0 holds the zeros).
        reach: The highest rank that is told of.
        longest: So many bytes it may take, at least 4; the last ranks are left out if need be.

    Example:
        >>> message = write_outline(np.array([90, 3, 2, 4, 0, 1]))
        >>> len(message), read_outline(message)
        (2, array([5, 3, 3, 1]))
    """
    if floor < 1:
        raise InvalidInput(f"the floor is a bin from 1, not {floor}")
    at_least = np.cumsum(counts[: floor - 1 : -1])  # how many are in the last bin, in the last two, ...
    ranks = 1 << np.arange(min(ranks_within(reach), int(at_least[-1]).bit_length() if len(at_least) else 0))
    if not len(ranks):
        return b""
    bins = len(counts) - 1 - np.searchsorted(at_least, ranks)
    first = int(bins[0]) - floor + 1
    length = first.bit_length()
    ones = 2 * length - 2 + np.cumsum(bins[:-1] - bins[1:] + 1)
    ones = ones[ones < 8 * longest]
    bits = np.zeros(max(2 * length - 1, int(ones.max(initial=0)) + 1), dtype=np.uint8)
    bits[length - 1 : 2 * length - 1] = [first >> i & 1 for i in reversed(range(length))]
    bits[ones] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def read_outline(
    message: bytes | bytearray | memoryview,
    floor: int = 1,
    reach: int = 1 << 48,
    bins: int = 1 << 30,
    longest: int = LONGEST,
) -> Ints:
    """The bins of the largest entry, the 2nd, the 4th, … in a message by anybody; none for an empty one.

    Args:
        message: The bytes received.
        floor: The lowest bin that may be told of.
        reach: The highest rank that may be told of.
        bins: How many bins there are.
        longest: So many bytes it may take.
    """
    view = _view(message)
    if not len(view):
        return np.zeros(0, dtype=np.int64)
    if len(view) > longest:
        raise MalformedPayload(f"an outline has at most {longest} bytes here, not {len(view)}")
    bits = np.unpackbits(np.frombuffer(view, dtype=np.uint8), bitorder="little")
    ones = np.flatnonzero(bits)
    length = int(ones[0]) + 1 if len(ones) else len(bits)
    if 2 * length - 1 > len(bits):
        raise MalformedPayload("the first bin of the outline is too large")
    if len(bits) - max(int(ones[-1]) + 1, 2 * length - 1) >= 8:
        raise MalformedPayload("the outline does not end with its last byte")
    first = int("".join(map(str, bits[length - 1 : 2 * length - 1])), 2)
    steps = np.diff(ones[ones >= 2 * length - 1], prepend=2 * length - 2) - 1
    found = floor + first - 1 - np.concatenate(([0], np.cumsum(steps)))
    if found[0] >= bins or found[-1] < floor:
        raise MalformedPayload(f"the outline names bins {found[-1]} to {found[0]}, not of {floor} to {bins - 1}")
    if len(found) > ranks_within(reach):
        raise MalformedPayload(f"the outline tells of {len(found)} ranks; {ranks_within(reach)} are within {reach}")
    return np.asarray(found)
