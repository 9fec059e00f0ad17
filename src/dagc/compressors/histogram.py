"""How large the entries of a vector are: counts by magnitude, in one pass."""

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.compressors._vector import INFINITE, MAGNITUDE, flat, refuse_non_finite

__all__ = ["histogram"]


def histogram(parts: list[torch.Tensor], residual: torch.Tensor, bins: int = 4, floor: int = 0) -> NDArray[np.int64]:
    """How many entries of residual + gradient have a magnitude in each bin; a sum that is not finite is refused.

    There are `bins` of them (a power of two) to a doubling: entry x is in bin `bits(|x|) >> (23 - log2(bins))`, where
    bits are those of a float32. Zeros and the smallest denormal numbers are in bin 0.

    Args:
        parts: The gradient, as `dagc.compressors._vector.tensors` gives it.
        residual: A float32 vector with as many entries.
        bins: To a doubling.
        floor: The lowest bin that matters; those below stay at 0, and the higher it is the faster.

    Example:
        >>> counts = histogram([torch.tensor([1.0, -1.5, 3.9, 0.0])], torch.tensor([0.0, 0.0, 0.1, 0.0]), bins=2)
        >>> np.flatnonzero(counts), counts[counts > 0]
        (array([  0, 254, 255, 258]), array([1, 1, 1, 1]))
    """
    shift = 24 - bins.bit_length()
    if compiled() and residual.is_cpu and all(part.is_cpu for part in parts):
        from dagc.compressors import _kernels, _select

        counts = np.zeros(1 << (31 - shift), dtype=np.int64)
        total = _select.total(parts)
        _kernels.count(total.parts, residual.contiguous().numpy(), shift, floor, counts)
    else:
        keys = (residual + flat(parts)).view(torch.int32) & int(MAGNITUDE)
        counts = torch.bincount(keys >> shift, minlength=1 << (31 - shift)).cpu().numpy()
        counts[:floor] = 0
    if counts[INFINITE >> shift :].any():
        refuse_non_finite(residual + flat(parts))
    return np.asarray(counts[: INFINITE >> shift])
