"""Top-k: the k entries of largest magnitude."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.compressors._vector import (
    EIGHT,
    INFINITE,
    MAGNITUDE,
    Gradient,
    beyond,
    checked_count,
    flat,
    picked,
    refuse_non_finite,
    tensors,
)
from dagc.sparse import Sparse

__all__ = ["top_k"]

SAMPLE_FROM = 100_000
"""Without kernels, from this many entries on, the threshold is first guessed from a sample."""

Keys = NDArray[np.int32]
"""The bits of float32 numbers without their signs, which sort like magnitudes."""


def top_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """The `parameter` entries of largest magnitude. Ties go to the first; zeros are never selected.

    Example:
        >>> top_k(torch.tensor([0.1, -3.0, 0.0, 3.0, 2.0]), 2)
        Sparse(size=5, indices=array([1, 3]), values=array([-3.,  3.], dtype=float32), seed=None)
    """
    parts = tensors(vector)
    if not all(part.is_cpu for part in parts):
        values = flat(parts)
        count = checked_count(parameter, len(values))
        refuse_non_finite(values)
        return picked(values, _largest_on_device(values.abs(), count))
    if compiled():
        from dagc.compressors import _select

        return _select.SELECT[top_k](_select.total(parts), parameter, seed)
    array = flat(parts).numpy()
    count = checked_count(parameter, len(array))
    chosen = _sampled(array, count) if len(array) >= SAMPLE_FROM else None
    if chosen is None:
        refuse_non_finite(torch.from_numpy(array))
        chosen = _largest(array.view(np.int32) & MAGNITUDE, count)
    return Sparse.trusted(len(array), chosen, array.take(chosen))


def _largest(keys: Keys, count: int) -> NDArray[np.int64]:
    """The indices of the largest, ascending: the definition of top-k, and the reference for everything faster."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    ordered = keys.copy()
    ordered.partition(len(keys) - count)
    smallest = max(1, int(ordered[-count]))
    chosen = (keys >= smallest).nonzero()[0]
    if len(chosen) > count:
        equal = np.flatnonzero(keys.take(chosen) == smallest)
        chosen = np.delete(chosen, equal[count - len(chosen) :])
    return chosen


def _largest_on_device(magnitude: torch.Tensor, count: int) -> torch.Tensor:
    """The same in torch, for vectors that are not in CPU memory."""
    if count == 0:
        return magnitude.new_zeros(0, dtype=torch.int64)
    smallest = torch.topk(magnitude, count, sorted=False).values.min()
    chosen = magnitude > smallest
    if smallest > 0:
        equal = (magnitude == smallest).nonzero()[:, 0]
        chosen[equal[: count - int(chosen.sum())]] = True
    return chosen.nonzero()[:, 0]


@lru_cache(maxsize=4)
def _strata(size: int, s: int) -> NDArray[np.int64]:
    """A place in each of s equal parts. Cached: computing them takes as long as adding 170,000 entries."""
    strata = np.arange(s)
    return np.minimum(((strata + strata * 0.6180339887498949 % 1) * (size / s)).astype(np.int64), size - 1)


def _sampled(vector: NDArray[np.float32], count: int) -> NDArray[np.int64] | None:
    """The same by a guess: most entries are below a threshold estimated from a sample, and need no sorting.

    The sample is eight neighbours, which share a cache line, from each of many strata. The threshold is the sample's
    rank three standard deviations beyond the expected one (with half as much variance again, since neighbours are
    correlated). It is too high in about one call in a thousand; then, and if anything is not finite, this is None.
    """
    size = len(vector)
    share = count / size
    strata = max(256, int(8 * size**0.5), int(2 * (size * share**0.5) ** (2 / 3))) // EIGHT
    expected = EIGHT * strata * share
    rank = int(expected + 3 * (1.5 * expected * (1 - share)) ** 0.5 + 3)
    if count == 0 or 2 * rank > EIGHT * strata:
        return None
    eights = vector[: size // EIGHT * EIGHT].reshape(-1, EIGHT)
    sample = eights.take(_strata(len(eights), strata), axis=0).ravel().view(np.int32) & MAGNITUDE
    sample.partition(len(sample) - rank)
    guess = sample[-rank]
    if guess == 0:
        return None
    candidates = beyond(vector, guess)
    keys = vector.take(candidates).view(np.int32) & MAGNITUDE
    if len(candidates) < count or keys.max() >= INFINITE:
        return None
    return candidates.take(_largest(keys, count))
