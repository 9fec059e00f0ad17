"""The coded part of an update's frame, number by number: the same calls write it and read it."""

from functools import cache
from math import ldexp
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload
from dagc.updates import _kernels

__all__ = ["Scale", "Stream", "nearest"]

Ints = NDArray[np.int64]


class Scale(int):
    """A positive float32 with five significant bits, as the number 16 · exponent + (mantissa − 16).

    Example:
        >>> Scale.near(0.1).value, Scale.near(-1.0 / -8).value
        (0.1015625, 0.125)
    """

    @classmethod
    def near(cls, number: float) -> Self:
        """The scale that is closest to a positive number."""
        return cls(nearest(number))

    @property
    def exponent(self) -> int:
        """Of two."""
        return self // 16

    @property
    def value(self) -> float:
        """The number."""
        return ldexp(self % 16 + 16, self // 16)


def nearest(numbers: Any) -> Any:
    """The scales, as integers, that are closest to these positive numbers."""
    mantissas, exponents = np.frexp(numbers)
    return 16 * (exponents.astype(np.int64) - 5) + np.rint(mantissas * 32).astype(np.int64) - 16


class Stream:
    """A range coder, its contexts, and the bytes. Writing never fails: `finish` returns None if they do not fit."""

    def __init__(self, data: NDArray[np.uint8], writing: bool) -> None:
        self.data, self.mode = data, _kernels.WRITE if writing else _kernels.READ
        following = 0
        for byte in data[:4].tolist() + [0] * (4 - min(4, len(data))):
            following = following << 8 | byte
        self.coder = (0, 0xFFFFFFFF, 0, following)
        self.odds = _first_odds().copy()
        self.total = 0

    def copy(self) -> "Stream":
        """The same state with the same bytes, to write something and go back."""
        other = object.__new__(Stream)
        other.data, other.mode = np.zeros_like(self.data), self.mode
        other.data[: self.used] = self.data[: self.used]
        other.coder, other.odds = self.coder, self.odds.copy()
        other.total = 0
        return other

    @property
    def reading(self) -> bool:
        """Whether it reads."""
        return bool(self.mode == _kernels.READ)

    @property
    def used(self) -> int:
        """How many bytes are done."""
        return self.coder[2]

    def number(self, context: int, value: int = 0) -> int:
        """A number of at least 0."""
        arguments: Any = (self.mode, self.data, self.coder, self.odds, context, value)
        number, self.coder = _kernels.number(*arguments)
        return self._in_time(int(number))

    def signed(self, context: int, value: int = 0) -> int:
        """A number of any sign."""
        folded = self.number(context, 2 * value if value >= 0 else -2 * value - 1)
        return -(folded >> 1) - 1 if folded & 1 else folded >> 1

    def raw(self, bits: int, value: int = 0) -> int:
        """A number of so many bits."""
        arguments: Any = (self.mode, self.data, self.coder, bits, value)
        number, self.coder = _kernels.raw(*arguments)
        return self._in_time(int(number))

    def matrix(self, step: int, scales: Ints, left: NDArray[np.int8], right: NDArray[np.int8]) -> None:
        """The terms of a matrix: scales, and a row of `left` and of `right` for each. Reading fills them in."""
        arguments: Any = (self.mode, self.data, self.coder, self.odds, step, scales, left, right)
        valid, self.coder = _kernels.matrix(*arguments)
        if not valid:
            raise _invalid()

    def entries(self, layout: tuple[Ints, Ints], size: int, indices: Ints, levels: Ints) -> None:
        """Indices and levels. Reading fills them in."""
        starts, lengths = layout
        arguments: Any = (self.mode, self.data, self.coder, self.odds, starts, lengths, size, indices, levels)
        valid, self.coder = _kernels.entries(*arguments)
        if not valid:
            raise _invalid()

    def _in_time(self, value: int) -> int:
        if self.reading and self.used > len(self.data):
            raise _invalid()
        return value

    def finish(self) -> bytes | None:
        """The bytes written, or those read; None if they did not fit."""
        total = int(_kernels.finish(self.mode, self.data, self.coder))
        if self.reading and total != len(self.data):
            raise _invalid()
        self.total = total
        return self.data[:total].tobytes() if total <= len(self.data) else None


def _invalid() -> MalformedPayload:
    return MalformedPayload("the update's coded part is invalid: damaged, or for a model of other shapes")


NOT_ZERO = (2, 3, 7, 14, 21, 29, 37, 43, 49, 53, 56, 58)
LARGER = (2, 2, 2, 4, 9, 16, 24, 32, 39, 45, 50, 54)
"""By spread, in 64ths: the first probability that a factor is not zero, and that it is larger than 1, 2, 3 …"""
ABOVE = (32, 32, 16, 5, 2, 2, 2, 2)
BELOW = (32, 27, 30, 31, 32, 32, 32, 32)
"""In 64ths: the first probability that a gap is longer, by octaves above the mean; that it is not shorter, below."""
LEVEL = 24
"""In 64ths: the first probability that a level is larger."""


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
