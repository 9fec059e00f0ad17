"""Where to look for a guess of Top-k's threshold, and what to guess. A wrong guess costs time, never an entry."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["GROUP", "places_to_sample", "sampled_rank"]

GROUP = 8
"""Neighbors that are sampled together: they are mostly in one cache line."""


def places_to_sample(size: int, count: int) -> NDArray[np.int64]:
    """Where to look at `GROUP` neighbors each, ascending. Nowhere if it would be more than a quarter of the vector.

    The number of places balances the time to look at them and the time to put surplus entries back, as measured.
    """
    entries = max(256, int(4 * size**0.5), int((size * (count / size) ** 0.5) ** (2 / 3)))
    return _strata(size, entries // GROUP if 4 * entries <= size else 0)


@lru_cache(maxsize=4)
def _strata(size: int, number: int) -> NDArray[np.int64]:
    """A place in each of as many equal parts. Cached: computing them takes as long as adding 170,000 entries."""
    strata = np.arange(number)
    return ((strata + strata * 0.6180339887498949 % 1) * (size / max(1, number))).astype(np.int64).clip(max=size - 1)


def sampled_rank(size: int, count: int, sampled: int) -> int:
    """The rank in a sample of the key that `count` of the whole most likely reach; 0 if it has no such rank.

    Three standard deviations beyond the expected rank, with half as much variance again, since neighbors are
    correlated. The key is too high in about one call in a thousand.
    """
    expected = sampled * count / size
    rank = int(expected + 3 * (1.5 * expected * (1 - count / size)) ** 0.5 + 3)
    return rank if rank < sampled else 0
