"""Hard threshold: every entry of at least a given magnitude."""

import torch

from dagc.compressors._vector import Gradient, flat, picked, refuse_non_finite
from dagc.errors import InvalidInput
from dagc.sparse import Sparse

__all__ = ["hard_threshold"]


def hard_threshold(vector: Gradient, parameter: float, *, seed: int = 0) -> Sparse:
    """The entries whose magnitude is at least `parameter`; zeros never. Infinity sends nothing.

    Example:
        >>> hard_threshold(torch.tensor([0.1, -3.0, 0.5]), 0.5)
        Sparse(size=3, indices=array([1, 2]), values=array([-3. ,  0.5], dtype=float32), seed=None)
    """
    values = flat(vector)
    if not parameter >= 0:
        raise InvalidInput(f"a threshold must not be negative, but is {parameter}")
    refuse_non_finite(values)
    # Compared in float32, as the kernels do: a threshold between two float32 values must mean the same everywhere.
    threshold = torch.tensor(parameter, dtype=torch.float32, device=values.device)
    magnitude = values.abs()
    return picked(values, ((magnitude >= threshold) & (magnitude > 0)).nonzero()[:, 0])
