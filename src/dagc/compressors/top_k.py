"""Top-k: the k entries of largest magnitude.

`largest` is the definition, in numpy. On a CPU with numba, `_fast` finds the same in one pass. Anywhere else, torch
narrows the vector to candidates above a sampled threshold, and `largest` selects among those.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.compressors import _vector as vectors
from dagc.compressors._vector import GROUP, INFINITE, MAGNITUDE, Gradient
from dagc.compressors.contract import compressor
from dagc.sparse import Sparse

__all__ = ["largest", "top_k"]


@compressor("entries", adds=True)
def top_k(
    vector: Gradient,
    parameter: int,
    *,
    seed: int = 0,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Sparse:
    """The `parameter` entries of largest magnitude. Ties go to the first; zeros are never selected.

    Example:
        >>> top_k(torch.tensor([0.1, -3.0, 0.0, 3.0, 2.0]), 2)
        Sparse(size=5, indices=array([1, 3]), values=array([-3.,  3.], dtype=float32), seed=None)
    """
    parts = vectors.tensors(vector)
    count = vectors.checked_count(parameter, sum(part.numel() for part in parts))
    if vectors.has_kernels(parts, residual):
        from dagc.compressors import _fast

        return _fast.top_k(parts, count, residual, out)
    return vectors.removed(_narrowed(vectors.added(parts, residual, out), count), out)


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The positions of the largest, ascending: the definition of Top-k, and the reference for everything faster."""
    keys = values.view(np.int32) & MAGNITUDE
    smallest = np.partition(keys, -count)[-count] if 0 < count <= len(keys) else 0
    chosen = (keys >= max(1, smallest)).nonzero()[0]
    equal = np.flatnonzero(keys.take(chosen) == smallest)
    surplus = len(chosen) - count
    return np.delete(chosen, equal[len(equal) - surplus :]) if count and surplus > 0 else chosen[:count]


def _narrowed(vector: torch.Tensor, count: int) -> Sparse:
    """Top-k on any device. The host waits for it twice: for the number of candidates, and for the candidates."""
    candidates = vectors.reaching(vector, _guess(vector, count))
    if len(candidates) < count:  # the guess was too high, or the others are zero
        candidates = vectors.reaching(vector, 1)
    chosen = largest(candidates.values, count)
    return Sparse.trusted(len(vector), candidates.indices.take(chosen), candidates.values.take(chosen))


def _guess(vector: torch.Tensor, count: int) -> int | torch.Tensor:
    """A key that about `count` others reach, and most likely no fewer. It stays on the device."""
    places = vectors.places_to_sample(len(vector), count)
    rank = vectors.sampled_rank(len(vector), count, GROUP * len(places))
    if not count or not rank:
        return 1 if count else INFINITE
    groups = vector[: len(vector) // GROUP * GROUP].view(-1, GROUP)
    rows = torch.from_numpy(places // GROUP).to(vector.device).clamp(max=len(groups) - 1)
    keys = vectors.keys_of(groups.index_select(0, rows).view(-1))
    return torch.topk(keys, rank, sorted=False).values.amin().clamp(min=1)
