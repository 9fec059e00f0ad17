"""Hard threshold: every entry of at least a given magnitude."""

import numpy as np
import torch

from dagc._numba import compiled
from dagc.compressors._vector import Gradient, beyond, checked_threshold, flat, picked, refuse_non_finite, tensors
from dagc.sparse import Sparse

__all__ = ["hard_threshold"]

SMALLEST = 2.0**-149
"""The smallest float32 above zero."""


def hard_threshold(vector: Gradient, parameter: float, *, seed: int = 0) -> Sparse:
    """The entries whose magnitude is at least `parameter`, but never zeros. Infinity selects nothing.

    Example:
        >>> hard_threshold(torch.tensor([0.1, -3.0, 0.5]), 0.5)
        Sparse(size=3, indices=array([1, 2]), values=array([-3. ,  0.5], dtype=float32), seed=None)
    """
    parts = tensors(vector)
    on_cpu = all(part.is_cpu for part in parts)
    if on_cpu and compiled():
        from dagc.compressors import _select

        return _select.SELECT[hard_threshold](_select.total(parts), parameter, seed)
    values = flat(parts)
    threshold = checked_threshold(parameter)
    if on_cpu:
        array = values.numpy()
        chosen = beyond(array, np.int32(max(1, int(threshold.view(torch.int32)))))
        sparse = Sparse.trusted(len(array), chosen, array.take(chosen))
    else:
        bound = threshold.to(values.device).clamp(min=SMALLEST)
        sparse = picked(values, (values.abs() < bound).logical_not().nonzero()[:, 0])  # a NaN is not below
    if not np.isfinite(sparse.values).all():
        refuse_non_finite(values)
    return sparse
