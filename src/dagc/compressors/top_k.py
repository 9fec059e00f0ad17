"""Top-k: the k entries of largest magnitude.

`largest` is the definition, in numpy. On a CPU with numba, `_fast` finds the same in one pass. Anywhere else, torch
narrows the vector to candidates above a sampled threshold, and `largest` selects among those.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.compressors._sampling import GROUP, places_to_sample, sampled_rank
from dagc.compressors._vector import (
    INFINITE,
    MAGNITUDE,
    Gradient,
    checked_count,
    flat,
    has_kernels,
    keys_of,
    reaching,
    tensors,
    zeroed,
)
from dagc.compressors.contract import compressor
from dagc.sparse import Sparse

__all__ = ["largest", "top_k"]


def _add_and_select(
    parts: Sequence[torch.Tensor], residual: torch.Tensor, out: torch.Tensor, parameter: int, seed: int
) -> Sparse:
    count = checked_count(parameter, len(out))
    if has_kernels(*parts, out):
        from dagc.compressors import _fast

        return _fast.top_k(parts, count, residual, out)
    return zeroed(out, _narrowed(torch.add(residual, flat(parts), out=out), count))


@compressor("entries", add_and_select=_add_and_select)
def top_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """The `parameter` entries of largest magnitude. Ties go to the first; zeros are never selected.

    Example:
        >>> top_k(torch.tensor([0.1, -3.0, 0.0, 3.0, 2.0]), 2)
        Sparse(size=5, indices=array([1, 3]), values=array([-3.,  3.], dtype=float32), seed=None)
    """
    parts = tensors(vector)
    count = checked_count(parameter, sum(part.numel() for part in parts))
    if has_kernels(*parts):
        from dagc.compressors import _fast

        return _fast.top_k(parts, count)
    return _narrowed(flat(parts), count)


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The positions of the largest, ascending: the definition of Top-k, and the reference for everything faster."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    keys = values.view(np.int32) & MAGNITUDE
    smallest = max(1, int(np.partition(keys, len(keys) - count)[-count])) if count <= len(keys) else 1
    chosen = (keys >= smallest).nonzero()[0]
    if len(chosen) > count:
        equal = np.flatnonzero(keys.take(chosen) == smallest)
        chosen = np.delete(chosen, equal[count - len(chosen) :])
    return chosen


def _narrowed(vector: torch.Tensor, count: int) -> Sparse:
    """Top-k on any device. The host waits for it twice: for the number of candidates, and for the candidates."""
    candidates = reaching(vector, _guess(vector, count))
    if len(candidates) < count:  # the guess was too high, or the others are zero
        candidates = reaching(vector, 1)
    chosen = largest(candidates.values, count)
    return Sparse.trusted(len(vector), candidates.indices.take(chosen), candidates.values.take(chosen))


def _guess(vector: torch.Tensor, count: int) -> int | torch.Tensor:
    """A key that about `count` others reach, and most likely no fewer. It stays on the device."""
    if count == 0:
        return INFINITE
    places = places_to_sample(len(vector), count)
    rank = sampled_rank(len(vector), count, GROUP * len(places))
    if not rank:
        return 1
    groups = vector[: len(vector) // GROUP * GROUP].view(-1, GROUP)
    rows = torch.from_numpy(places // GROUP).to(vector.device, non_blocking=True).clamp(max=len(groups) - 1)
    keys = keys_of(groups.index_select(0, rows).view(-1))
    return torch.topk(keys, rank, sorted=False).values.amin().clamp(min=1)
