"""Hard threshold: every entry of at least a given magnitude."""

from dagc._numba import compiled
from dagc.compressors._vector import Gradient, checked_threshold, flat, picked, refuse_non_finite, tensors
from dagc.sparse import Sparse

__all__ = ["hard_threshold"]


def hard_threshold(vector: Gradient, parameter: float, *, seed: int = 0) -> Sparse:
    """The entries whose magnitude is at least `parameter`; zeros never. Infinity sends nothing.

    Example:
        >>> import torch
        >>> hard_threshold(torch.tensor([0.1, -3.0, 0.5]), 0.5)
        Sparse(size=3, indices=array([1, 2]), values=array([-3. ,  0.5], dtype=float32), seed=None)
    """
    parts = tensors(vector)
    if compiled() and all(part.device.type == "cpu" for part in parts):
        from dagc.compressors import _select

        return _select.SELECT[hard_threshold](_select.total(parts), parameter, seed)
    values = flat(parts)
    threshold = checked_threshold(parameter).to(values.device)
    refuse_non_finite(values)
    magnitude = values.abs()
    return picked(values, ((magnitude >= threshold) & (magnitude > 0)).nonzero()[:, 0])
