"""No compression: every entry is sent. Dense training, in the same terms as the other compressors."""

from typing import Any

import torch

from dagc.compressors._vector import Gradient, flat, picked, refuse_non_finite, tensors
from dagc.compressors.contract import compressor
from dagc.sparse import Sparse

__all__ = ["everything"]


@compressor("none")
def everything(vector: Gradient, parameter: Any = None, *, seed: int = 0) -> Sparse:
    """All entries, including zeros; the parameter is ignored.

    Example:
        >>> everything(torch.tensor([0.5, 0.0])).indices
        array([0, 1])
    """
    values = flat(tensors(vector))
    refuse_non_finite(values)
    return picked(values, torch.arange(len(values), device=values.device))
