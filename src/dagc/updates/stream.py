"""The coded part of an update's frame, number by number: the same calls write it and read it."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload
from dagc.updates import _kernels
from dagc.wire._kernels import READ, WRITE, begin, finish, raw

__all__ = ["Stream", "nearest", "value_of"]

Ints = NDArray[np.int64]


def nearest(numbers: Any) -> Any:
    """The closest scales: positive floats with five significant bits, as 16 · exponent + (mantissa − 16).

    Example:
        >>> float(value_of(nearest(0.1))), value_of(nearest(np.array([0.125, 3.3])))
        (0.1015625, array([0.125, 3.25 ]))
    """
    mantissas, exponents = np.frexp(numbers)
    return 16 * (np.asarray(exponents, dtype=np.int64)[()] - 5) + np.rint(mantissas * 32).astype(np.int64) - 16


def value_of(scales: Any) -> Any:
    """The numbers that scales stand for."""
    return np.ldexp(scales % 16 + 16.0, scales // 16)


class Stream:
    """A range coder, its contexts, and the bytes. Writing never fails: `finish` returns None if they do not fit."""

    def __init__(self, data: NDArray[np.uint8], writing: bool) -> None:
        self.data, self.reading, self.mode = data, not writing, WRITE if writing else READ
        self.coder, self.odds, self.total = begin(data), _first_odds().copy(), 0

    def copy(self) -> "Stream":
        """The same state with the same bytes, to write something and go back."""
        other = Stream(np.zeros(len(self.data), dtype=np.uint8), not self.reading)
        other.data[: self.used] = self.data[: self.used]
        other.coder, other.odds = self.coder, self.odds.copy()
        return other

    @property
    def used(self) -> int:
        """How many bytes are done."""
        return int(self.coder[2])

    def _code(self, kernel: Any, *arguments: Any) -> Any:
        result, self.coder = kernel(self.mode, self.data, self.coder, *arguments)
        if self.reading and self.used > len(self.data):
            raise _invalid()
        return result

    def number(self, context: int, value: int = 0) -> int:
        """A number of at least 0."""
        return int(self._code(_kernels.number, self.odds, context, value))

    def signed(self, context: int, value: int = 0) -> int:
        """A number of any sign."""
        folded = self.number(context, 2 * value if value >= 0 else -2 * value - 1)
        return -(folded >> 1) - 1 if folded & 1 else folded >> 1

    def raw(self, bits: int, value: int = 0) -> int:
        """A number of so many bits."""
        return int(self._code(raw, bits, value))

    def matrix(self, step: int, scales: Ints, left: NDArray[np.int8], right: NDArray[np.int8]) -> None:
        """The terms of a matrix: scales, and a row of `left` and of `right` for each. Reading fills them in."""
        if not self._code(_kernels.matrix, self.odds, step, scales, left, right):
            raise _invalid()

    def entries(self, starts: Ints, lengths: Ints, size: int, indices: Ints, levels: Ints) -> None:
        """Indices and levels. Reading fills them in."""
        if not self._code(_kernels.entries, self.odds, starts, lengths, size, indices, levels):
            raise _invalid()

    def finish(self) -> bytes | None:
        """The bytes written, or those read; None if they did not fit."""
        self.total = int(finish(self.mode, self.data, self.coder))
        if self.reading and self.total != len(self.data):
            raise _invalid()
        return self.data[: self.total].tobytes() if self.total <= len(self.data) else None


def _invalid() -> MalformedPayload:
    return MalformedPayload("the update's coded part is invalid: damaged, or for a model of other shapes")


NOT_ZERO = (2, 3, 7, 14, 21, 29, 37, 43, 49, 53, 56, 58)
LARGER = (2, 2, 2, 4, 9, 16, 24, 32, 39, 45, 50, 54)
"""By spread, in 64ths: the first probability that a factor is not zero, and that it is larger than 1, 2, 3 …"""
ABOVE = (32, 32, 16, 5, 2, 2, 2, 2)
BELOW = (32, 27, 30, 31, 32, 32, 32, 32)
"""In 64ths: the first probability that a gap is longer, by octaves above the mean; that it is not shorter, below."""
LEVEL = 24  # in 64ths: the first probability that a level is larger


@cache
def _first_odds() -> Ints:
    """The first probability of each context in 65,536ths, and how many decisions it counts for."""
    k = _kernels
    chance, seen = np.full(k.ODDS, 32), np.full(k.ODDS, 1)
    for spread in range(k.SPREADS):
        start, end = (k.FACTOR + (spread + more) * 9 * k.MAGNITUDES for more in (0, 1))
        row = spread if spread < len(LARGER) else k.PLAIN + spread % 2
        chance[start:end] = np.tile([NOT_ZERO[row]] + [LARGER[row]] * (k.MAGNITUDES - 1), 9)
        seen[start:end] = 3
    for start, chances in ((k.GAP_UP, ABOVE), (k.GAP_DOWN, BELOW)):
        chance[start : start + 32] = np.tile(chances, 4)
        seen[start : start + 32] = 4
    chance[k.LEVEL : k.ODDS] = LEVEL
    return np.stack((chance * 1024, seen), axis=1).reshape(-1).astype(np.int64)
