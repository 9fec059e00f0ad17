"""`Update`, what travels: rank-one terms of some matrices and entries of others, or the whole vector in small integers.

A decoded entry is exact: the terms of a matrix are integers whose sum stays below 2^24, so that any order of adding
gives the same float32, and the scale of a matrix is a power of two. The entry, if there is one, is added to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.errors import InvalidInput
from dagc.sparse import Sparse

__all__ = ["Terms", "Update"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
BLOCK = 1 << 16  # entries that are computed at once on a CPU: they fit into a cache
MOST_SUM = 1 << 24  # integers up to this are exact in float32


def moved(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array on a device."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def as_positions(indices: Ints, size: int) -> NDArray[Any]:
    """The same indices into a vector of this size, in half the bytes where that is possible."""
    return indices.astype(np.int32) if size < 1 << 31 else indices


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Rank-one terms of one matrix: Σ_k scale_k · left_k · right_kᵀ · 2^exponent."""

    start: int  # of the matrix in the vector
    left: NDArray[np.int8]  # terms × rows
    right: NDArray[np.int8]  # terms × columns
    scales: Ints
    exponent: int

    @property
    def size(self) -> int:
        """Entries of the matrix."""
        return int(self.left.shape[1] * self.right.shape[1])

    def first(self, count: int) -> "Terms":
        """The first of these terms."""
        return replace(self, left=self.left[:count], right=self.right[:count], scales=self.scales[:count])

    @property
    def largest(self) -> int:
        """A bound of the sum of all terms, before the exponent."""
        left, right = (np.maximum(side.max(axis=1), -side.min(axis=1).astype(int)) for side in (self.left, self.right))
        return int((left * right * self.scales).sum())

    @property
    def energy(self) -> float:
        """The sum of the squares of the matrix."""
        left, right = self.left.T.astype(np.float64) * self.scales, self.right.astype(np.float64)
        return float(((left.T @ left) * (right @ right.T)).sum() * np.ldexp(1.0, 2 * self.exponent))

    def at(self, indices: Ints) -> NDArray[np.float64]:
        """The entries of the matrix at these places of the vector."""
        row, column = np.divmod(indices - self.start, self.right.shape[1])
        whole = (self.left.T[row].astype(np.float64) * self.scales * self.right.T[column]).sum(axis=1)
        return np.asarray(np.ldexp(whole, self.exponent))

    def blocks(self, device: torch.device) -> Iterator[tuple[int, torch.Tensor]]:
        """Where each part of the matrix starts in the vector, and its entries.

        Everything is exact, so the order of sums does not matter. CUDA may round float32 factors to eleven bits.
        """
        kind = torch.float32 if device.type == "cpu" else torch.float64
        left = moved(self.left.T, device).to(kind) * moved(np.ldexp(self.scales, self.exponent), device).to(kind)
        right = moved(self.right, device).to(kind)
        rows, width = len(left), self.right.shape[1]
        step = max(1, BLOCK // width) if device.type == "cpu" else rows
        for row in range(0, rows, step):
            block = (left[row : row + step] @ right).float()
            yield self.start + row * width, block.add_(0.0).view(-1)  # no zero is negative, on any machine


@dataclass(frozen=True, eq=False)
class Update:
    """What a frame says about a vector of `size` entries; all that is not said is zero.

    Attributes:
        size: The length of the whole vector.
        sparse: Entries, which are added to the terms.
        terms: Rank-one terms, by matrix, ascending.
        whole: The whole vector, if it was sent in small integers; then there is nothing else.

    Example:
        >>> update = Update.of(Sparse(6, [1, 4], [0.5, -2.0]))
        >>> update.dense(), len(update)
        (tensor([ 0.0000,  0.5000,  0.0000,  0.0000, -2.0000,  0.0000]), 2)
    """

    size: int
    sparse: Sparse
    terms: tuple[Terms, ...] = ()
    whole: Floats | None = None

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
        terms = sum(part.left.size + part.right.size + part.scales.size for part in self.terms)
        return len(self.sparse) + terms + (0 if self.whole is None else self.size)

    def __eq__(self, other: object) -> bool:
        """Whether both decode to the same bits."""
        if not isinstance(other, Update):
            return NotImplemented
        return self.size == other.size and self.dense().numpy().tobytes() == other.dense().numpy().tobytes()

    def spans(self) -> list[tuple[int, int]]:
        """Where each part that is not entries alone starts, and its length."""
        return [(0, self.size)] if self.whole is not None else [(part.start, part.size) for part in self.terms]

    def entries(self, start: int, length: int) -> slice:
        """Which entries are in a part of the vector."""
        return slice(*np.searchsorted(self.sparse.indices, (start, start + length)))

    def add_to(self, vector: torch.Tensor, weight: float = 1.0) -> None:
        """Add weight · update to a vector on any device: each entry is multiplied in float32, then added in float32."""
        if vector.shape != (self.size,) or vector.dtype != torch.float32:
            raise InvalidInput(f"an update of {self.size} entries needs a float32 vector of as many")
        target, device, factor = vector.detach(), vector.device, np.float32(weight)
        if self.whole is not None:
            target += moved(self.whole * factor, device)
        alone = np.ones(len(self.sparse), dtype=bool)
        for part in self.terms:
            for start, block in part.blocks(device):
                inside = self.entries(start, len(block))
                alone[inside] = False
                if alone[inside].size:
                    places = as_positions(self.sparse.indices[inside] - start, len(block))
                    block.index_add_(0, moved(places, device), moved(self.sparse.values[inside], device))
                target[start : start + len(block)] += block if factor == 1 else block.mul_(float(factor))
        indices, values = self.sparse.indices[alone], self.sparse.values[alone] * factor
        target.index_add_(0, moved(as_positions(indices, self.size), device), moved(values, device))

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
        total = float(np.square(self.sparse.values, dtype=np.float64).sum())
        for part in self.terms:
            inside = self.entries(part.start, part.size)
            total += part.energy + 2 * float(part.at(self.sparse.indices[inside]) @ self.sparse.values[inside])
        return total if self.whole is None else total + float(np.square(self.whole, dtype=np.float64).sum())

    def norm(self) -> float:
        """The length of the decoded vector."""
        return float(np.sqrt(self.energy))
