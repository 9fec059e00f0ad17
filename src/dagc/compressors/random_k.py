"""Random-k: k entries drawn from a seed. The receiver draws them again, so no indices are sent."""

import torch

from dagc.compressors._vector import Gradient, checked_count, flat, picked, refuse_non_finite, tensors
from dagc.draws import draw
from dagc.sparse import Sparse

__all__ = ["random_k"]


def random_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """`parameter` entries at indices drawn from `seed`, possibly including zeros.

    Example:
        >>> random_k(torch.arange(10.0), 3, seed=7)
        Sparse(size=10, indices=array([4, 6, 7]), values=array([4., 6., 7.], dtype=float32), seed=7)
    """
    values = flat(tensors(vector))
    count = checked_count(parameter, len(values))
    refuse_non_finite(values)
    seed %= 1 << 64
    return picked(values, torch.from_numpy(draw(seed, len(values), count)).to(values.device), seed)
