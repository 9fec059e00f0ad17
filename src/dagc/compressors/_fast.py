"""Top-k and hard threshold on compiled kernels: the same entries, bit for bit, in one pass over CPU memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.compressors import _kernels as kernels
from dagc.compressors._sampling import GROUP, places_to_sample, sampled_rank
from dagc.compressors._vector import INFINITE, MAGNITUDE, refuse_non_finite
from dagc.sparse import Sparse

__all__ = ["reaching", "top_k"]

STREAM_FROM = 1 << 21
"""From this many entries on, sums are written past the cache, where they would not stay until the next step."""
SPARE = 1 << 13
"""Room for this many entries more than expected."""
INDEX, KEY, VALUE = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.float32)

Floats = NDArray[np.float32]


class _Total(NamedTuple):
    """The vector to select from: residual + gradient, or the gradient alone."""

    size: int
    parts: list[Floats]
    residual: Floats | None
    out: Floats | None
    """Where the sum goes, with zero for selected entries."""

    def slices(self, first: int, last: int) -> tuple[Floats | None, Floats | None]:
        if self.residual is None or self.out is None:
            return None, None
        return self.residual[first:last], self.out[first:last]

    def collect(self, threshold: int, cursor: NDArray[np.int64], indices: NDArray[np.int64], values: Floats) -> bool:
        """Collect entries from the cursor on. True if the buffers are full. Refuses sums that are not finite."""
        stream, full, first = self.out is not None and self.size >= STREAM_FROM, False, 0
        for part in self.parts:
            last = first + len(part)
            if cursor[0] < last:
                slices = self.slices(first, last)
                full = kernels.collect(part, *slices, stream, first, threshold, cursor, indices, values)
            if full:
                break
            first = last
        if cursor[2] >= INFINITE:
            total = torch.from_numpy(np.concatenate(self.parts))
            refuse_non_finite(total if self.residual is None else torch.from_numpy(self.residual) + total)
        return full

    def sample(self, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """The keys of some neighbors from each place on."""
        keys, first, start = np.empty(GROUP * len(places), dtype=KEY), 0, 0
        for part in self.parts:
            last = first + len(part)
            end = len(places) if last == self.size else int(places.searchsorted(last))
            if start < end:
                kernels.sample(part, self.slices(first, last)[0], first, places[start:end], keys[GROUP * start :])
            first, start = last, end
        return keys


def _total(parts: Sequence[torch.Tensor], residual: torch.Tensor | None, out: torch.Tensor | None) -> _Total:
    arrays = [_float32(part).numpy() for part in parts]
    size = sum(map(len, arrays))
    if residual is None or out is None:
        return _Total(size, arrays, None, None)
    return _Total(size, arrays, residual.contiguous().numpy(), out.numpy())


def _float32(part: torch.Tensor) -> torch.Tensor:
    if part.dtype == torch.float32:
        return part
    return torch.from_numpy(pool.take(len(part), VALUE)).copy_(part)


def _guess(total: _Total, count: int) -> int:
    """A key that about `count` others reach, and most likely no fewer."""
    places = places_to_sample(total.size, count)
    rank = sampled_rank(total.size, count, GROUP * len(places))
    if not rank:
        return 1
    keys = total.sample(places)
    keys.partition(len(keys) - rank)
    return max(1, int(keys[-rank]))


def top_k(
    parts: Sequence[torch.Tensor], count: int, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Sparse:
    """Collect what is above a guessed threshold, then choose among that. Exact, however good the guess was."""
    total = _total(parts, residual, out)
    threshold = _guess(total, count) if count else INFINITE
    room = min(2 * count + SPARE, total.size) + kernels.SLACK
    candidates = pool.take(room, INDEX), pool.take(room, VALUE)
    chosen = pool.take(count + 1, INDEX), pool.take(count + 1, VALUE)
    found = _candidates(total, count, threshold, candidates, chosen)
    if found < count and threshold > 1:  # the guess was too high: begin again with everything but zeros
        found = _candidates(total, count, 1, candidates, chosen)
    if found > count:
        _keep(total, count, found, candidates, chosen)
    elif found == count:
        _copy(found, candidates, chosen)
    else:
        chosen = candidates[0][:found].copy(), candidates[1][:found].copy()
    return Sparse.trusted(total.size, chosen[0][:count], chosen[1][:count])


def _candidates(total: _Total, count: int, threshold: int, candidates: Any, chosen: Any) -> int:
    """Collect the entries above the threshold, or those of them that may be among the largest. Returns their number."""
    cursor = np.zeros(3, dtype=np.int64)
    while total.collect(threshold, cursor, *candidates):
        # Too many. What is not among the largest so far never will be, nor will later entries equal to those.
        threshold = 1 + _keep(total, count, int(cursor[1]), candidates, chosen)
        _copy(count, chosen, candidates)
        cursor[1] = count
    return int(cursor[1])


def _keep(total: _Total, count: int, found: int, candidates: Any, chosen: Any) -> int:
    """Copy the largest, the first ones if several are equal, and put the others back. Returns the smallest key kept."""
    indices, values = candidates[0][:found], candidates[1][:found]
    keys = np.bitwise_and(values.view(KEY), MAGNITUDE, out=pool.take(found, KEY))
    keys.partition(found - count)
    smallest = keys[found - count]
    kernels.keep(indices, values, smallest, np.count_nonzero(keys[found - count :] == smallest), *chosen, total.out)
    return int(smallest)


def _copy(count: int, source: Any, target: Any) -> None:
    for old, new in zip(source, target, strict=True):
        new[:count] = old[:count]


def reaching(
    parts: Sequence[torch.Tensor], least: int, residual: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> Sparse:
    """The entries whose keys are at least `least`. Buffers have room for as many as a sample suggests, or twice that."""
    total = _total(parts, residual, out)
    keys = total.sample(places_to_sample(total.size, 1 + total.size // 100))
    expected = int(np.count_nonzero(keys >= least)) * total.size // max(1, len(keys))
    room = min(expected + expected // 4 + SPARE, total.size) + kernels.SLACK
    indices, values = pool.take(room, INDEX), pool.take(room, VALUE)
    cursor = np.zeros(3, dtype=np.int64)
    while total.collect(least, cursor, indices, values):
        indices, values = _twice(indices), _twice(values)
    found = int(cursor[1])
    indices, values = indices[:found], values[:found]
    if 4 * found < room:  # do not hold on to an oversized buffer
        indices, values = indices.copy(), values.copy()
    return Sparse.trusted(total.size, indices, values)


def _twice(array: NDArray[Any]) -> NDArray[Any]:
    """A copy with twice the room."""
    longer = pool.take(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer
