"""Hard threshold: every entry of at least a given magnitude."""

import torch

from dagc.compressors import _vector as vectors
from dagc.compressors._vector import Gradient
from dagc.compressors.contract import compressor
from dagc.sparse import Sparse

__all__ = ["hard_threshold"]


@compressor("threshold", adds=True)
def hard_threshold(
    vector: Gradient,
    parameter: float,
    *,
    seed: int = 0,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Sparse:
    """The entries whose magnitude is at least `parameter`, but never zeros. Infinity selects nothing.

    Example:
        >>> hard_threshold(torch.tensor([0.1, -3.0, 0.5]), 0.5)
        Sparse(size=3, indices=array([1, 2]), values=array([-3. ,  0.5], dtype=float32), seed=None)
    """
    parts, least = vectors.tensors(vector), vectors.threshold_key(parameter)
    if vectors.has_kernels(parts, residual):
        from dagc.compressors import _fast

        return _fast.reaching(parts, least, residual, out)
    return vectors.removed(vectors.reaching(vectors.added(parts, residual, out), least), out)
