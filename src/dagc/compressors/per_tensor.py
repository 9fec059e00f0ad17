"""Per tensor: a compressor applied to each tensor of a model, instead of to the whole model as one vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dagc.allocation import apportion
from dagc.compressors._vector import Gradient, checked_count, flat, tensors
from dagc.compressors.contract import Compressor, compressor
from dagc.errors import InvalidInput
from dagc.sparse import Sparse

__all__ = ["per_tensor"]


def per_tensor(within: Compressor, sizes: Sequence[int]) -> Compressor:
    """Wrap a compressor so that it selects within each of consecutive tensors of these sizes.

    A number of entries is divided in proportion to the sizes, by largest remainder, with one for each tensor at least:
    otherwise a bias would never be sent. Fewer entries than tensors are selected among all. A threshold is the same for
    all.

    Example:
        >>> from dagc.compressors import top_k
        >>> per_tensor(top_k, [2, 4])(torch.tensor([0.1, 0.2, 9.0, 8.0, 7.0, 6.0]), 3).indices
        array([1, 2, 3])
    """
    if not len(sizes) or min(sizes) < 1:
        raise InvalidInput(f"sizes must list the size of each tensor, each at least 1, not {sizes!r:.200}")
    total = sum(sizes)

    @compressor(within.parameter)
    def select(vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
        values = flat(tensors(vector))
        if len(values) != total:
            raise InvalidInput(f"the vector has {len(values)} entries, the tensors have {total}")
        if within.parameter == "entries":
            count = checked_count(parameter, total)
            if count < len(sizes):
                return within(values, count, seed=seed)
            most = np.asarray(sizes, dtype=np.int64)
            parameters = list(apportion(most.astype(np.float64), count, most, least=1))
        else:
            parameters = [parameter] * len(sizes)
        parts = [
            within(part, share, seed=seed + i)
            for i, (part, share) in enumerate(zip(torch.split(values, list(sizes)), parameters, strict=True))
        ]
        starts = np.cumsum([0, *sizes[:-1]])
        indices = np.concatenate([part.indices + start for part, start in zip(parts, starts, strict=True)])
        return Sparse.trusted(total, indices, np.concatenate([part.values for part in parts]))

    return select
