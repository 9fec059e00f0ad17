"""Random-k: k entries drawn from a seed. The receiver draws them again, so no indices are sent."""

from collections.abc import Sequence

import torch

from dagc.compressors._vector import Gradient, checked_count, flat, picked, refuse_non_finite, tensors, zeroed
from dagc.compressors.contract import compressor
from dagc.draws import draw
from dagc.sparse import Sparse

__all__ = ["random_k"]


def _add_and_select(
    parts: Sequence[torch.Tensor], residual: torch.Tensor, out: torch.Tensor, parameter: int, seed: int
) -> Sparse:
    return zeroed(out, _drawn(torch.add(residual, flat(parts), out=out), parameter, seed))


@compressor("entries", add_and_select=_add_and_select)
def random_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """`parameter` entries at indices drawn from `seed`, possibly including zeros.

    Example:
        >>> random_k(torch.arange(10.0), 3, seed=7)
        Sparse(size=10, indices=array([4, 6, 7]), values=array([4., 6., 7.], dtype=float32), seed=7)
    """
    return _drawn(flat(tensors(vector)), parameter, seed)


def _drawn(vector: torch.Tensor, count: int, seed: int) -> Sparse:
    count, seed = checked_count(count, len(vector)), seed % (1 << 64)
    refuse_non_finite(vector)
    return picked(vector, torch.from_numpy(draw(seed, len(vector), count)).to(vector.device), seed)
