"""`Sparse`: a few entries of a long vector, which methods that select entries send; and the server's sum of many."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dagc._memory import pool
from dagc._numba import compiled
from dagc.errors import InvalidInput

__all__ = ["MAX_SIZE", "Sparse", "aggregate", "shares_of"]

MAX_SIZE = 1 << 48
"""The longest vector: far larger than any model, and small enough that sums of positions never overflow."""
TOGETHER = 1 << 22
"""About so many entries are added together."""


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Some entries of a vector of `size` entries; all others are zero.

    Attributes:
        size: The length of the whole vector.
        indices: Where the entries are: int64, ascending, each once.
        values: What they are: float32, finite.
        seed: If the indices were drawn by `dagc.random_k`, the seed they were drawn from. It is then sent instead of
            the indices.

    Example:
        >>> sparse = Sparse(6, [1, 4], [0.5, -2.0])
        >>> sparse.dense()
        tensor([ 0.0000,  0.5000,  0.0000,  0.0000, -2.0000,  0.0000])
    """

    size: int
    indices: NDArray[np.int64]
    values: NDArray[np.float32]
    seed: int | None = None

    def __init__(self, size: int, indices: ArrayLike, values: ArrayLike) -> None:
        """Check the entries and store them. `trusted` skips the check."""
        if not 1 <= size <= MAX_SIZE:
            raise InvalidInput(f"size must be from 1 to 2^48, not {size}")
        index, value = np.asarray(indices), np.asarray(values)
        if not index.size:
            index = index.astype(np.int64)
        if index.dtype.kind not in "iu" or index.ndim != 1:
            raise InvalidInput(f"indices must be a list of integers, not {index.dtype} of shape {index.shape}")
        if value.dtype.kind not in "fiu" or value.shape != index.shape:
            raise InvalidInput(
                f"values must be {len(index)} numbers, one for each index, not {value.dtype} of shape {value.shape}"
            )
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
            self._hold(size, index.astype(np.int64), value.astype(np.float32), None)
        if not self.ascends:
            raise InvalidInput(f"indices must ascend, each once, from 0 to {size - 1}")
        if not np.isfinite(self.values).all():
            raise InvalidInput("values must be finite: NaN or infinity would stay in the model forever")

    def _hold(self, *values: Any) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def trusted(
        cls, size: int, indices: NDArray[np.int64], values: NDArray[np.float32], seed: int | None = None
    ) -> Self:
        """Store entries (and their seed) without checking them, because kernels or `decode` already have.

        Code that writes to memory or to the wire checks them again (`checked`), so a wrong index is an error there.
        """
        sparse = cls.__new__(cls)
        sparse._hold(size, indices, values, seed)
        return sparse

    @property
    def ascends(self) -> bool:
        """Whether the indices are in range and strictly ascending. Only `trusted` can make one where they are not."""
        index = self.indices
        return not len(index) or bool(index[0] >= 0 and index[-1] < self.size and (index[1:] > index[:-1]).all())

    def checked_shape(self) -> Self:
        """Itself, if it has one value for each index; `InvalidInput` otherwise."""
        if self.indices.ndim != 1 or self.values.shape != self.indices.shape:
            raise InvalidInput(
                f"{self.indices.shape} indices have {self.values.shape} values: give one value per index"
            )
        return self

    def checked(self, whose: str = "the entries") -> Self:
        """Itself, if it holds what `trusted` was promised; `InvalidInput` otherwise."""
        if not self.checked_shape().ascends:
            raise InvalidInput(f"the indices of {whose} do not ascend from 0 to {self.size - 1}")
        return self

    def add_to(self, vector: torch.Tensor, weight: float = 1.0) -> None:
        """Add weight · entries to a vector on any device: each is multiplied in float32, then added in float32."""
        if len(vector) != self.size:
            raise InvalidInput(f"part of a vector of {self.size} entries cannot be added to one of {len(vector)}")
        self.checked()
        values = self.values if weight == 1 else self.values * np.float32(weight)
        if vector.is_cpu:
            vector.numpy()[self.indices] += values
        else:
            vector.index_add_(0, self.places(vector.device), torch.from_numpy(values).to(vector.device))

    def places(self, device: torch.device) -> torch.Tensor:
        """The indices on a device; in half the bytes where that is possible, and there is a bus to cross."""
        crosses = device.type != "cpu" and self.size < 1 << 31
        return torch.from_numpy(self.indices.astype(np.int32) if crosses else self.indices).to(device)

    def norm(self) -> float:
        """The length of the vector."""
        return float(np.linalg.norm(self.values.astype(np.float64)))

    def __len__(self) -> int:
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same entries, bit for bit."""
        if not isinstance(other, Sparse):
            return NotImplemented
        return (
            self.size == other.size
            and np.array_equal(self.indices, other.indices)
            and self.values.tobytes() == other.values.tobytes()
        )

    def dense(self, device: Any = None) -> torch.Tensor:
        """The whole vector, as a float32 tensor."""
        self.checked()
        vector = torch.zeros(self.size, dtype=torch.float32)
        vector[torch.from_numpy(self.indices)] = torch.from_numpy(self.values)
        return vector.to(device) if device is not None else vector


def aggregate(sparses: Sequence[Sparse], weights: ArrayLike, out: torch.Tensor | None = None) -> torch.Tensor:
    """The server's sum Σ p_i · sparse_i as a dense float32 vector, where p_i is weight i over the sum of weights.

    Clients are added in the given order, so the same inputs give the same bits everywhere.

    Args:
        sparses: What the clients sent; all of one size.
        weights: How much each client counts: numbers of examples, or shares.
        out: A float32 CPU vector to write the result to, instead of a new one.

    Example:
        >>> aggregate([Sparse(3, [0], [1.0]), Sparse(3, [0, 2], [2.0, 4.0])], weights=[300, 100])
        tensor([1.2500, 0.0000, 1.0000])
    """
    shares = shares_of(sparses, weights)
    size = sparses[0].size
    if out is None:
        out = torch.from_numpy(np.empty(size, dtype=np.float32))
    elif out.shape != (size,) or out.dtype != torch.float32 or out.device.type != "cpu" or not out.is_contiguous():
        raise InvalidInput(f"out must be a contiguous float32 CPU vector of {size} entries")
    total = out.numpy()
    if compiled():
        from dagc import _sum_kernels

        groups = np.cumsum([len(sparse.checked_shape()) for sparse in sparses]) // (TOGETHER + 1)
        bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(sparses)]
        for first, last in pairwise(bounds):
            starts = np.cumsum([0, *map(len, sparses[first:last])])
            joined = [pool.take(int(starts[-1]), np.dtype(kind)) for kind in (np.int64, np.float32)]
            indices = np.concatenate([sparse.indices for sparse in sparses[first:last]], out=joined[0])
            values = np.concatenate([sparse.values for sparse in sparses[first:last]], out=joined[1])
            wrong = _sum_kernels.add_up(starts, indices, values, shares[first:last], total, first == 0)
            if wrong >= 0:
                sparses[first + wrong].checked(f"client {first + wrong}")
        return out
    total[:] = 0
    for number, (sparse, share) in enumerate(zip(sparses, shares, strict=True)):
        total[sparse.checked(f"client {number}").indices] += share * sparse.values
    return out


def shares_of(sparses: Sequence[Any], weights: ArrayLike) -> NDArray[np.float32]:
    """Each client's weight over the sum of weights, checked; all must have vectors of one size."""
    weight = np.asarray(weights, dtype=np.float64)
    if not len(sparses):
        raise InvalidInput("nothing to aggregate: give at least one client's entries")
    if weight.shape != (len(sparses),):
        raise InvalidInput(f"weights must hold one number for each of the {len(sparses)} clients, not {weight.shape}")
    if not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
        raise InvalidInput(f"weights must be finite, not negative and not all 0, not {weights!r:.200}")
    sizes = {sparse.size for sparse in sparses}
    if len(sizes) > 1:
        raise InvalidInput(f"all clients must have vectors of one size, not {sorted(sizes)}")
    scaled = weight / weight.max()  # the sum of huge weights would overflow
    return np.asarray(scaled / scaled.sum(), dtype=np.float32)
