"""Top-k and hard threshold on compiled kernels: the same entries, bit for bit, in one pass over CPU memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.compressors import _kernels as kernels
from dagc.compressors import _vector as vectors
from dagc.compressors._vector import GROUP, INFINITE, MAGNITUDE, Adding
from dagc.sparse import Sparse

STREAM_FROM = 1 << 21
"""From this many entries on, sums are written past the cache, where they would not stay until the next step."""
SPARE = 1 << 13  # room for this many entries more than expected
INDEX, KEY, VALUE = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.float32)

Indices = NDArray[np.int64]
Keys = NDArray[np.int32]
Floats = NDArray[np.float32]


class _Total:
    """The vector to select from: residual + gradient, or the gradient alone."""

    def __init__(self, parts: Sequence[torch.Tensor], adding: Adding | None) -> None:
        vectors = [part if part.dtype == torch.float32 else pool.vector(len(part)).copy_(part) for part in parts]
        self.parts: list[Floats] = [vector.numpy() for vector in vectors]
        self.size = sum(map(len, self.parts))
        self.residual: Floats | None = None if adding is None else adding.residual.contiguous().numpy()
        self.out: Floats | None = None if adding is None else adding.out.numpy()

    @np.errstate(over="ignore", invalid="ignore")  # the pass finds sums that are not finite
    def sample(self, places: Indices) -> Keys:
        """The keys of some neighbors at each place."""
        groups, first, start = [np.empty((0, GROUP), dtype=VALUE)], 0, 0
        for part in self.parts:
            last = first + len(part)
            end = len(places) if last == self.size else int(places.searchsorted(last))
            whole = len(part) - len(part) % GROUP
            if start < end and whole:
                rows = (places[start:end] - first) // GROUP
                group = part[:whole].reshape(-1, GROUP).take(rows, axis=0, mode="clip")
                if self.residual is not None:
                    group += self.residual[first : first + whole].reshape(-1, GROUP).take(rows, axis=0, mode="clip")
                groups.append(group)
            first, start = last, end
        keys: Keys = np.concatenate(groups).reshape(-1).view(KEY)
        return keys & MAGNITUDE

    def collect(self, least: int, room: int) -> tuple[Indices, Floats]:
        """All entries whose keys are at least `least`, in buffers that double when they are full."""
        indices, values = pool.take(room + kernels.SLACK, INDEX), pool.take(room + kernels.SLACK, VALUE)
        stream, first, cursor = self.size >= STREAM_FROM, 0, np.zeros(3, dtype=INDEX)
        for part in self.parts:
            last = first + len(part)
            spans = [None if array is None else array[first:last] for array in (self.residual, self.out)]
            while kernels.collect(part, *spans, stream, first, least, cursor, indices, values) and cursor[2] < INFINITE:
                indices, values = _twice(indices), _twice(values)
            first = last
        if cursor[2] >= INFINITE:
            total = torch.from_numpy(np.concatenate(self.parts))
            vectors.refuse_non_finite(total if self.residual is None else torch.from_numpy(self.residual) + total)
        return indices[: cursor[1]], values[: cursor[1]]


def _twice(array: NDArray[Any]) -> NDArray[Any]:
    longer = pool.take(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


def top_k(parts: Sequence[torch.Tensor], count: int, adding: Adding | None) -> Sparse:
    """Collect what reaches a guessed threshold, then choose among that. Exact, however good the guess was."""
    total = _Total(parts, adding)
    sample = total.sample(vectors.places_to_sample(total.size, count))
    rank = vectors.sampled_rank(total.size, count, len(sample))
    while True:
        least = _guess(sample, rank) if count else INFINITE
        indices, values = total.collect(least, min(2 * count + SPARE, total.size))
        if len(indices) >= count or least == 1:
            break
        rank *= 4  # the guess was too high
    if len(indices) > count:
        indices, values = _largest(indices, values, count, total.out)
    else:
        indices, values = indices.copy(), values.copy()  # the buffers have more room
    return Sparse.trusted(total.size, indices, values)


def _guess(sample: Keys, rank: int) -> int:
    return max(1, int(np.partition(sample, -rank)[-rank])) if 0 < rank < len(sample) else 1


def _largest(indices: Indices, values: Floats, count: int, out: Floats | None) -> tuple[Indices, Floats]:
    """The `count` largest entries, the first ones if several are equal. The others go back to `out`."""
    keys = np.bitwise_and(values.view(KEY), MAGNITUDE, out=pool.take(len(values), KEY))
    keys.partition(-count)
    smallest = keys[-count]
    equal = np.count_nonzero(keys[-count:] == smallest)
    chosen = pool.take(count + 1, INDEX), pool.take(count + 1, VALUE)
    kernels.keep(indices, values, smallest, equal, *chosen, out)
    return chosen[0][:count], chosen[1][:count]


def reaching(parts: Sequence[torch.Tensor], least: int, adding: Adding | None) -> Sparse:
    """The entries whose keys are at least `least`, in buffers with room for as many as a sample suggests."""
    total = _Total(parts, adding)
    sample = total.sample(vectors.places_to_sample(total.size, 1 + total.size // 100))
    expected = int(np.count_nonzero(sample >= least)) * total.size // max(1, len(sample))
    indices, values = total.collect(least, min(expected + expected // 4 + SPARE, total.size))
    if 2 * len(indices) < expected + SPARE:  # do not hold on to an oversized buffer
        indices, values = indices.copy(), values.copy()
    return Sparse.trusted(total.size, indices, values)
