"""Top-k: the k entries of largest magnitude."""

import numpy as np
import torch

from dagc._numba import compiled
from dagc.compressors._vector import Gradient, beyond, checked_count, flat, picked, refuse_non_finite, tensors
from dagc.sparse import Sparse

__all__ = ["top_k"]

SAMPLE_FROM = 100_000
"""From so many entries on, without kernels, the threshold is guessed from a sample first."""


def top_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """The `parameter` entries of largest magnitude; of equal ones the first; zeros never.

    Example:
        >>> top_k(torch.tensor([0.1, -3.0, 0.0, 3.0, 2.0]), 2)
        Sparse(size=5, indices=array([1, 3]), values=array([-3.,  3.], dtype=float32), seed=None)
    """
    parts = tensors(vector)
    if compiled() and all(part.device.type == "cpu" for part in parts):
        from dagc.compressors import _select

        return _select.SELECT[top_k](_select.total(parts), parameter, seed)
    values = flat(parts)
    count = checked_count(parameter, len(values))
    chosen = _sampled(values, count) if len(values) >= SAMPLE_FROM else None
    if chosen is None:
        refuse_non_finite(values)
        chosen = _largest(values.abs(), count)
    return picked(values, chosen)


def _largest(magnitude: torch.Tensor, count: int) -> torch.Tensor:
    """Where the largest are, ascending: what top-k means, and the reference for everything faster."""
    if count == 0:
        return magnitude.new_zeros(0, dtype=torch.int64)
    smallest = _ranked(magnitude, count)
    chosen = magnitude > smallest
    if smallest > 0:
        equal = (magnitude == smallest).nonzero()[:, 0]
        chosen[equal[: count - int(chosen.sum())]] = True
    return chosen.nonzero()[:, 0]


def _ranked(magnitude: torch.Tensor, rank: int) -> torch.Tensor:
    """The rank-th largest, from 1. On the CPU, numpy is several times faster than torch."""
    if magnitude.is_cpu:
        place = len(magnitude) - rank
        return torch.tensor(np.partition(magnitude.numpy(), place)[place])
    return torch.topk(magnitude, rank, sorted=False).values.min()


def _sampled(values: torch.Tensor, count: int) -> torch.Tensor | None:
    """The same by a guess: most entries are below a threshold taken from a sample, and need no sorting.

    The sample is one entry from each of s strata; its rank three standard deviations beyond the expected one is too
    high a threshold in about one of a thousand calls. None then, and if something is not finite.
    """
    size = len(values)
    share = count / size
    s = max(256, int(2 * size**0.5), int((0.6 * size * share**0.5) ** (2 / 3)))
    rank = int(s * share + 3 * (s * share * (1 - share)) ** 0.5 + 3)
    if count == 0 or 2 * rank > s:
        return None
    strata = torch.arange(s, dtype=torch.float64, device=values.device)
    at = ((strata + (strata * 0.6180339887498949) % 1) * (size / s)).long().clamp_(max=size - 1)
    guess = _ranked(values[at].abs(), rank)
    if not guess > 0:
        return None
    candidates = beyond(values, guess)
    among = values[candidates].abs()
    if len(candidates) < count or not torch.isfinite(among.max()):
        return None
    return candidates[_largest(among, count)]
