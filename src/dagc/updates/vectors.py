"""Vectors that come from training: checked, and brought to a scale at which their squares neither overflow nor vanish."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.errors import InvalidInput, NonFiniteGradient

__all__ = ["checked", "normalized"]


def checked(vector: Any, size: int) -> NDArray[np.float32]:
    """The vector as a flat float32 array, not copied if it is that already."""
    tensor = torch.as_tensor(vector)
    if tensor.shape != (size,) or not tensor.is_floating_point():
        raise InvalidInput(f"the vector must have {size} floats in one dimension, not {tuple(tensor.shape)}")
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())


def normalized(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """The vector over 2^exponent, and the exponent: 0 unless squares could overflow or vanish."""
    largest = float(max(values.max(), -values.min()))
    if not np.isfinite(largest):
        raise NonFiniteGradient("the vector has entries that are NaN or infinite: it was refused, and nothing changed")
    if largest == 0 or 2.0**-30 < largest < 2.0**30:
        return values, 0
    exponent = int(np.frexp(largest)[1])
    return np.ldexp(values, -exponent), exponent
