"""What all compressors share: input checks, and a search for large entries without kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.errors import InvalidInput, NonFiniteGradient
from dagc.sparse import Sparse

__all__ = ["Gradient", "beyond", "checked_count", "checked_threshold", "flat", "picked", "refuse_non_finite", "tensors"]

Gradient = torch.Tensor | Sequence[torch.Tensor]
"""One tensor of any shape, or the tensors of a model in order: the vector is their entries in row-major order."""


MAGNITUDE = np.int32(0x7FFFFFFF)
"""All bits of a float32 but its sign."""
INFINITE = np.int32(0x7F800000)
"""The lowest of these bits that is not a finite number."""
NORMAL = np.int32(0x00800000)
"""The lowest of these bits that is a normal number."""
PIECE = 1 << 20
"""How many entries are searched together."""
EIGHT = 8
"""The booleans in a 64-bit word."""
USUAL = np.uint64(0x0101010101010101)
"""Eight times true."""
WORD = USUAL.dtype


def tensors(gradient: Gradient) -> list[torch.Tensor]:
    """The gradient as vectors, in row-major order whatever the memory layout; copied only if necessary."""
    parts = [gradient] if isinstance(gradient, torch.Tensor) else list(gradient)
    for part in parts:
        if not isinstance(part, torch.Tensor) or not part.is_floating_point():
            kind = part.dtype if isinstance(part, torch.Tensor) else type(part).__name__
            raise InvalidInput(f"a gradient must be a floating-point torch tensor or a list of them, not {kind}")
    if not parts:
        raise InvalidInput("a gradient needs at least one tensor")
    return [_vector(part) for part in parts]


def _vector(part: torch.Tensor) -> torch.Tensor:
    """For small tensors, calls into torch dominate the cost: make no more than needed."""
    if part.requires_grad or part.is_neg() or not part.is_contiguous():
        return part.detach().resolve_neg().reshape(-1).contiguous()
    return part if part.dim() == 1 else part.view(-1)


def flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The vectors from `tensors` as one float32 vector."""
    vectors = [part.to(torch.float32) for part in parts]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)


def refuse_non_finite(vector: torch.Tensor) -> None:
    """Raise `NonFiniteGradient` if there is a NaN or an infinity, naming the first one."""
    if not len(vector) or torch.isfinite(torch.stack(torch.aminmax(vector))).all():
        return  # a NaN would be both smallest and largest
    finite = torch.isfinite(vector)
    if not finite.all():
        at = int((~finite).nonzero()[0, 0])
        raise NonFiniteGradient(
            f"entry {at} of {len(vector)} is {vector[at].item()}: the gradient was refused and nothing was changed; "
            "lower the learning rate or clip gradients"
        )


def checked_count(count: int | np.integer[Any], size: int) -> int:
    """A number of entries that can be taken from `size`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise InvalidInput(f"the number of entries must be an integer, not {count!r}: dagc.entries converts ratios")
    if not 0 <= count <= size:
        raise InvalidInput(f"cannot take {count} entries from a vector of {size}")
    return int(count)


def checked_threshold(threshold: float) -> torch.Tensor:
    """The threshold as a float32, so that one between two float32 values means the same everywhere."""
    if not threshold >= 0:
        raise InvalidInput(f"a threshold must be at least 0, not {threshold}")
    return torch.tensor(threshold, dtype=torch.float32)


def beyond(vector: NDArray[np.float32], least: np.int32) -> NDArray[np.int64]:
    """The indices, ascending, of numbers whose bits without the sign are at least `least`.

    These bits sort like magnitudes, with NaN above all numbers. numpy is several times faster than torch here. Results
    are scanned eight booleans at a time, and only words with an unusual one are examined further.
    """
    if not len(vector):
        return np.zeros(0, dtype=np.int64)
    upper, found = least.view(np.float32), []
    most = -(-min(len(vector), PIECE) // EIGHT)
    answers = pool.take(2 * most, WORD).reshape(2, most)
    with np.errstate(invalid="ignore"):
        for start in range(0, len(vector), PIECE):
            here = vector[start : start + PIECE]
            words = -(-len(here) // EIGHT)
            above, below = answers[:, :words]
            above[-1] = below[-1] = USUAL  # the last word may have fewer than eight
            np.greater(here, -upper, out=above.view(np.bool_)[: len(here)])
            np.less(here, upper, out=below.view(np.bool_)[: len(here)])
            above &= below
            odd = np.not_equal(above, USUAL, out=below.view(np.bool_)[:words]).nonzero()[0]
            within = np.logical_not(above.take(odd).view(np.bool_)).nonzero()[0]
            found.append((EIGHT * odd + start).take(within >> 3) + (within & 7))
    places = found[0] if len(found) == 1 else np.concatenate(found)
    if least < NORMAL:  # the processor may be set to flush such numbers to zero
        places = places[vector[places].view(np.int32) & MAGNITUDE >= least]
    return places


def picked(vector: torch.Tensor, indices: torch.Tensor, seed: int | None = None) -> Sparse:
    """These entries of the vector, on the host."""
    return Sparse.trusted(len(vector), indices.cpu().numpy(), vector[indices].cpu().numpy(), seed)
