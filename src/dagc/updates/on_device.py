"""An update added to a vector on another device than the CPU: what crosses is what the frame holds, decoded."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.updates.update import Update

__all__ = ["add_on_device"]


def add_on_device(update: Update, vector: torch.Tensor, weight: float) -> None:
    """`Update.add_to` on the vector's device, with the same bits as on the CPU.

    Products are computed in float64, since CUDA may round the factors of float32 ones to eleven bits.
    """

    def moved(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(vector.device)

    def add(start: int, block: torch.Tensor) -> None:
        first, last = np.searchsorted(update.sparse.indices, (start, start + block.numel()))
        block.index_add_(0, moved(update.sparse.indices[first:last] - start), moved(update.sparse.values[first:last]))
        vector[start : start + block.numel()] += block if weight == 1 else block.mul_(weight)

    if update.levels is not None:
        levels, start, row = update.levels, 0, 0
        scales = moved(levels.scales)
        for length, count in levels.rows:
            part = moved(levels.levels[start : start + count * length]).view(count, length)
            add(start, (part * scales[row : row + count, None]).view(-1))
            start, row = start + count * length, row + count
        return
    for term in update.terms:
        left = moved(term.left).double() * moved(term.scales).double()[:, None]
        product = left.T @ moved(term.right).double()
        add(term.start, product.float().mul_(float(np.ldexp(1.0, term.exponent))).view(-1))
    indices, values = update.alone()
    positions = indices.astype(np.int32) if update.size < 1 << 31 else indices
    vector.index_add_(0, moved(positions), moved(values if weight == 1 else values * np.float32(weight)))
