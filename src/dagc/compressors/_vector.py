"""What every compressor asks of the vector it is given."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dagc.errors import InvalidInput, NonFiniteGradient
from dagc.sparse import Sparse

__all__ = ["Gradient", "checked_count", "flat", "picked", "refuse_non_finite"]

Gradient = torch.Tensor | Sequence[torch.Tensor]
"""One tensor of any shape, or the tensors of a model in order: the vector is their entries in row-major order."""


def flat(gradient: Gradient) -> torch.Tensor:
    """The gradient as one float32 vector: logical row-major order, whatever the memory layout."""
    tensors = [gradient] if isinstance(gradient, torch.Tensor) else list(gradient)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise InvalidInput(f"a gradient is a floating-point torch tensor or a list of them, not {kind}")
    parts = [tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise InvalidInput("a gradient needs at least one tensor")
    return torch.cat(parts)


def refuse_non_finite(vector: torch.Tensor) -> None:
    """`NonFiniteGradient` if there is a NaN or an infinity, saying where the first one is."""
    finite = torch.isfinite(vector)
    if not finite.all():
        at = int((~finite).nonzero()[0, 0])
        raise NonFiniteGradient(
            f"entry {at} of {len(vector)} is {vector[at].item()}: the gradient is refused and nothing was changed; "
            "lower the learning rate or clip gradients"
        )


def checked_count(count: int | np.integer[Any], size: int) -> int:
    """A number of entries that can be taken of `size`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise InvalidInput(
            f"the number of entries must be an integer, not {count!r}: dagc.entries makes them of ratios"
        )
    if not 0 <= count <= size:
        raise InvalidInput(f"cannot take {count} entries of a vector of {size}")
    return int(count)


def picked(vector: torch.Tensor, indices: torch.Tensor, seed: int | None = None) -> Sparse:
    """These entries of the vector, on the host."""
    return Sparse.trusted(len(vector), indices.cpu().numpy(), vector[indices].cpu().numpy(), seed)
