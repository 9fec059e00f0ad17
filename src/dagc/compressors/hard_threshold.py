"""Hard threshold: every entry of at least a given magnitude."""

from collections.abc import Sequence

import torch

from dagc.compressors._vector import Gradient, flat, has_kernels, reaching, tensors, threshold_key, zeroed
from dagc.compressors.contract import compressor
from dagc.sparse import Sparse

__all__ = ["hard_threshold"]


def _add_and_select(
    parts: Sequence[torch.Tensor], residual: torch.Tensor, out: torch.Tensor, parameter: float, seed: int
) -> Sparse:
    if has_kernels(*parts, out):
        from dagc.compressors import _fast

        return _fast.reaching(parts, threshold_key(parameter), residual, out)
    return zeroed(out, reaching(torch.add(residual, flat(parts), out=out), threshold_key(parameter)))


@compressor("threshold", add_and_select=_add_and_select)
def hard_threshold(vector: Gradient, parameter: float, *, seed: int = 0) -> Sparse:
    """The entries whose magnitude is at least `parameter`, but never zeros. Infinity selects nothing.

    Example:
        >>> hard_threshold(torch.tensor([0.1, -3.0, 0.5]), 0.5)
        Sparse(size=3, indices=array([1, 2]), values=array([-3. ,  0.5], dtype=float32), seed=None)
    """
    parts = tensors(vector)
    if has_kernels(*parts):
        from dagc.compressors import _fast

        return _fast.reaching(parts, threshold_key(parameter))
    return reaching(flat(parts), threshold_key(parameter))
