"""Top-k: the k entries of largest magnitude."""

import torch

from dagc.compressors._vector import Gradient, checked_count, flat, picked, refuse_non_finite
from dagc.sparse import Sparse

__all__ = ["top_k"]


def top_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """The `parameter` entries of largest magnitude; of equal ones the first; zeros never.

    Example:
        >>> top_k(torch.tensor([0.1, -3.0, 0.0, 3.0, 2.0]), 2)
        Sparse(size=5, indices=array([1, 3]), values=array([-3.,  3.], dtype=float32), seed=None)
    """
    values = flat(vector)
    count = checked_count(parameter, len(values))
    refuse_non_finite(values)
    magnitude = values.abs()
    if count == 0:
        return picked(values, magnitude.new_zeros(0, dtype=torch.int64))
    smallest = torch.topk(magnitude, count, sorted=False).values.min()
    chosen = magnitude > smallest
    if smallest > 0:
        equal = (magnitude == smallest).nonzero()[:, 0]
        chosen[equal[: count - int(chosen.sum())]] = True
    return picked(values, chosen.nonzero()[:, 0])
