"""`Update`, what travels: rank-one terms of some matrices and entries of others, or the whole vector in small integers.

A decoded entry is exact: the terms of a matrix are integers whose sum stays below 2^24, so that any order of adding
gives the same float32, and the scale of a matrix is a power of two. The entry, if there is one, is added to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import InvalidInput
from dagc.sparse import Sparse

__all__ = ["Dense", "Terms", "Update", "pieces"]

Floats = NDArray[np.float32]
BLOCK = 1 << 16
"""Entries of a matrix that are computed at once."""
MOST_SUM = 1 << 24
"""Integers up to this are exact in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Rank-one terms of one matrix: Σ_k scale_k · left_k · right_kᵀ · 2^exponent.

    Attributes:
        start: Where the matrix starts in the vector.
        left: terms × rows, int8.
        right: terms × columns, int8.
        scales: One integer per term.
        exponent: Of two, common to all.
    """

    start: int
    left: NDArray[np.int8]
    right: NDArray[np.int8]
    scales: NDArray[np.int64]
    exponent: int

    @property
    def size(self) -> int:
        """Entries of the matrix."""
        return int(self.left.shape[1] * self.right.shape[1])

    @property
    def numbers(self) -> int:
        """How many numbers stand for them."""
        return int(self.left.shape[1] + self.right.shape[1] + 1) * len(self.scales)

    def first(self, count: int) -> "Terms":
        """The first of these terms."""
        return replace(self, left=self.left[:count], right=self.right[:count], scales=self.scales[:count])

    @property
    def largest(self) -> int:
        """A bound of the sum of all terms, before the exponent."""
        if not len(self.scales):
            return 0
        left, right = (np.abs(side.astype(np.int64)).max(axis=1) for side in (self.left, self.right))
        return int((left * right * self.scales).sum())

    @property
    def energy(self) -> float:
        """The sum of the squares of the matrix."""
        left, right = self.left.T.astype(np.float64) * self.scales, self.right.astype(np.float64)
        return float(((left.T @ left) * (right @ right.T)).sum() * np.ldexp(1.0, 2 * self.exponent))

    def at(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The entries of the matrix at these places of the vector."""
        row, column = np.divmod(indices - self.start, self.right.shape[1])
        whole = (self.left.T[row].astype(np.float64) * self.scales * self.right.T[column]).sum(axis=1)
        return np.asarray(np.ldexp(whole, self.exponent))

    def floats(self) -> tuple[Floats, Floats, np.float32]:
        """The left factors times the scales, the right ones as rows, and the unit: all exact."""
        left = np.ascontiguousarray((self.left.T * self.scales).astype(np.float32))
        return left, self.right.astype(np.float32), np.float32(np.ldexp(1.0, self.exponent))

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """Where each part of the matrix starts in the vector, and its entries."""
        width = self.right.shape[1]
        rows = max(1, BLOCK // width)
        left, right, unit = self.floats()
        for row in range(0, len(left), rows):
            block = left[row : row + rows] @ right
            block *= unit
            yield self.start + row * width, block.reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Every entry of the vector as a small integer, with a scale for each row of a tensor.

    Attributes:
        levels: int8, one for each entry.
        scales: float32 with eight significant bits, one for each row.
        rows: The length of the rows of each tensor, and their number.
    """

    levels: NDArray[np.int8]
    scales: Floats
    rows: tuple[tuple[int, int], ...]

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """Where each part starts in the vector, and its entries."""
        for start, end, shape, rows in pieces(self.rows):
            yield start, (self.levels[start:end].reshape(shape) * self.scales[rows, None]).reshape(-1)


@dataclass(frozen=True, eq=False)
class Update:
    """What a frame says about a vector of `size` entries; all that is not said is zero.

    Attributes:
        size: The length of the whole vector.
        terms: Rank-one terms, by matrix, ascending.
        sparse: Entries, which are added to them.
        dense: The whole vector in small integers; then there is nothing else.

    Example:
        >>> update = Update.of(Sparse(6, [1, 4], [0.5, -2.0]))
        >>> update.dense(), len(update)
        (tensor([ 0.0000,  0.5000,  0.0000,  0.0000, -2.0000,  0.0000]), 2)
    """

    size: int
    sparse: Sparse
    terms: tuple[Terms, ...] = ()
    levels: Dense | None = field(default=None)

    @classmethod
    def of(cls, sparse: Sparse) -> "Update":
        """An update that has nothing but entries."""
        return cls(sparse.size, sparse)

    @classmethod
    def empty(cls, size: int) -> "Update":
        """An update that says nothing."""
        return cls(size, Sparse(size, [], []))

    def __len__(self) -> int:
        """How many numbers were sent."""
        return len(self.sparse) + sum(part.numbers for part in self.terms) + (self.size if self.levels else 0)

    def __eq__(self, other: object) -> bool:
        """Whether both decode to the same bits."""
        if not isinstance(other, Update):
            return NotImplemented
        return self.size == other.size and self.dense().numpy().tobytes() == other.dense().numpy().tobytes()

    def blocks(self) -> Iterator[tuple[int, Floats]]:
        """The parts of the vector that are not entries alone: where each starts, and its decoded values."""
        indices, values = self.sparse.indices, self.sparse.values
        parts: list[Any] = [self.levels] if self.levels is not None else list(self.terms)
        for part in parts:
            for start, block in part.blocks():
                first, last = np.searchsorted(indices, (start, start + len(block)))
                block[indices[first:last] - start] += values[first:last]
                yield start, block

    def spans(self) -> list[tuple[int, int]]:
        """Where each part that is not entries alone starts, and its length."""
        return [(0, self.size)] if self.levels is not None else [(part.start, part.size) for part in self.terms]

    def alone(self) -> tuple[NDArray[np.int64], Floats]:
        """The entries outside of all blocks."""
        if self.levels is not None:
            return self.sparse.indices[:0], self.sparse.values[:0]
        keep = np.ones(len(self.sparse), dtype=bool)
        for part in self.terms:
            first, last = np.searchsorted(self.sparse.indices, (part.start, part.start + part.size))
            keep[first:last] = False
        return self.sparse.indices[keep], self.sparse.values[keep]

    def add_to(self, vector: torch.Tensor, weight: float = 1.0) -> None:
        """Add weight · update: each entry is multiplied in float32, then added in float32."""
        if not vector.is_cpu:
            from dagc.updates.on_device import add_on_device

            add_on_device(self, vector, float(np.float32(weight)))
            return
        target, factor = self._target(vector), np.float32(weight)
        if self.terms and compiled():
            self._add_terms(target, factor)
        else:
            for start, block in self.blocks():
                block *= factor
                target[start : start + len(block)] += block
        indices, values = self.alone()
        target[indices] += values * factor

    def _add_terms(self, target: Floats, weight: np.float32) -> None:
        from dagc.updates import _vector_kernels

        indices, values = self.sparse.indices, self.sparse.values
        for part in self.terms:
            first, last = np.searchsorted(indices, (part.start, part.start + part.size))
            entries = indices[first:last], values[first:last]
            left, right, unit = part.floats()
            _vector_kernels.add_terms(target, left, right, unit, weight, part.start, *entries)

    def subtract_from(self, vector: torch.Tensor) -> None:
        """Subtract the update: what is left of the vector that it stands for."""
        self.add_to(vector, -1.0)

    def dense(self, device: Any = None) -> torch.Tensor:
        """The whole vector, as a float32 tensor."""
        vector = torch.zeros(self.size, dtype=torch.float32)
        self.add_to(vector)
        return vector if device is None else vector.to(device)

    @cached_property
    def energy(self) -> float:
        """The sum of the squares of all decoded entries."""
        indices, values = self.sparse.indices, self.sparse.values.astype(np.float64)
        total = float(np.square(values).sum())
        for part in self.terms:
            first, last = np.searchsorted(indices, (part.start, part.start + part.size))
            total += part.energy + 2 * float(part.at(indices[first:last]) @ values[first:last])
        if self.levels is not None:
            total += sum(float(np.square(block, dtype=np.float64).sum()) for _, block in self.levels.blocks())
        return total

    def norm(self) -> float:
        """The length of the decoded vector."""
        return float(np.sqrt(self.energy))

    def _target(self, vector: torch.Tensor) -> Floats:
        if vector.shape != (self.size,) or vector.dtype != torch.float32 or vector.device.type != "cpu":
            raise InvalidInput(f"an update of {self.size} entries needs a float32 CPU vector of as many")
        return vector.detach().numpy()


def pieces(rows: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, tuple[int, int], slice]]:
    """Parts of a vector that fit into a cache: first and last coordinate, rows and columns, and which rows these are.

    Args:
        rows: For each tensor, the length and the number of its rows. Only the row of a tensor with one is divided.
    """
    start = row = 0
    for length, count in rows:
        end = start + length * count
        step = BLOCK if count == 1 else max(1, BLOCK // length) * length
        for first in range(start, end, step):
            last = min(first + step, end)
            many = 1 if count == 1 else (last - first) // length
            at = row if count == 1 else row + (first - start) // length
            yield first, last, (many, (last - first) // many), slice(at, at + many)
        start, row = end, row + count
