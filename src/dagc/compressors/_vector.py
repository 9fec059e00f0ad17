"""What all compressors share: input checks, and a search for large entries on any device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import InvalidInput, NonFiniteGradient
from dagc.sparse import Sparse

__all__ = [
    "INFINITE",
    "MAGNITUDE",
    "Gradient",
    "checked_count",
    "checked_threshold",
    "flat",
    "has_kernels",
    "keys_of",
    "picked",
    "reaching",
    "refuse_non_finite",
    "tensors",
    "threshold_key",
    "zeroed",
]

Gradient = torch.Tensor | Sequence[torch.Tensor]
"""One tensor of any shape, or the tensors of a model in order: the vector is their entries in row-major order."""

MAGNITUDE = np.int32(0x7FFFFFFF)
"""All bits of a float32 but its sign: they sort like magnitudes, with infinity and NaN above all numbers."""
INFINITE = 0x7F800000
"""The lowest of these keys that is not a finite number."""
PIECE = 1 << 19
"""How many entries are searched together in CPU memory, so that the keys stay in the cache."""


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


def has_kernels(*vectors: torch.Tensor) -> bool:
    """Whether the compiled kernels can work on these vectors."""
    return all(vector.is_cpu for vector in vectors) and compiled()


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


def checked_threshold(threshold: float) -> float:
    """A threshold that magnitudes can be compared with."""
    if not threshold >= 0:
        raise InvalidInput(f"a threshold must be at least 0, not {threshold}")
    return threshold


def threshold_key(threshold: float) -> int:
    """The least key that reaches the threshold, but never that of zero. It is rounded to float32, everywhere alike."""
    return max(1, int(torch.tensor(checked_threshold(threshold), dtype=torch.float32).view(torch.int32)))


def keys_of(vector: torch.Tensor) -> torch.Tensor:
    """The bits without the sign. Comparing these is exact even if the processor is set to flush tiny numbers to zero."""
    return vector.view(torch.int32) & int(MAGNITUDE)


def reaching(vector: torch.Tensor, least: int | torch.Tensor) -> Sparse:
    """The entries, on the host, whose keys are at least `least`. Refuses any vector with an entry that is not finite."""
    if vector.is_cpu:
        pieces = [(keys_of(piece) >= least).numpy().nonzero()[0] for piece in vector.split(PIECE)]
        places = np.concatenate([piece + PIECE * i for i, piece in enumerate(pieces)])
        sparse = Sparse.trusted(len(vector), places, vector.numpy().take(places))
    else:
        sparse = picked(vector, (keys_of(vector) >= least).nonzero()[:, 0])
    if not np.isfinite(sparse.values).all():  # no key is above theirs: they are among the entries
        refuse_non_finite(vector)
    return sparse


def picked(vector: torch.Tensor, indices: torch.Tensor, seed: int | None = None) -> Sparse:
    """These entries of the vector, brought to the host in one transfer."""
    if vector.is_cpu:
        return Sparse.trusted(len(vector), indices.numpy(), vector[indices].numpy(), seed)
    both = torch.stack((indices, vector[indices].view(torch.int32).to(torch.int64))).cpu().numpy()
    values: NDArray[np.float32] = both[1].astype(np.int32).view(np.float32)
    return Sparse.trusted(len(vector), both[0], values, seed)


def zeroed(vector: torch.Tensor, sparse: Sparse) -> Sparse:
    """The same entries, after setting them to zero in the vector."""
    if vector.is_cpu:
        vector.numpy()[sparse.indices] = 0.0
    else:
        vector[torch.from_numpy(sparse.indices).to(vector.device)] = 0.0
    return sparse
