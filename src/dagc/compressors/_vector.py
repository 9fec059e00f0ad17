"""What all compressors share: input checks, a search for large entries on any device, and where to sample a vector."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import InvalidInput, NonFiniteGradient
from dagc.sparse import Sparse

Gradient = torch.Tensor | Sequence[torch.Tensor]
"""One tensor of any shape, or the tensors of a model in order: the vector is their entries in row-major order."""


class Adding(NamedTuple):
    """For a compressor that adds: `out` becomes residual + vector, with zero for the selected entries."""

    residual: torch.Tensor  # only read
    out: torch.Tensor


MAGNITUDE = np.int32(0x7FFFFFFF)
"""All bits of a float32 but its sign: these keys sort like magnitudes, with infinity and NaN above all numbers."""
INFINITE = 0x7F800000  # the lowest key that is not a finite number
PIECE = 1 << 19  # how many entries are searched together in CPU memory: their keys stay in the cache
GROUP = 8  # neighbors that are sampled together: they are mostly in one cache line


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


def added(parts: Sequence[torch.Tensor], adding: Adding | None) -> torch.Tensor:
    """The vector to select from: the parts alone, or the sum, which is written."""
    return flat(parts) if adding is None else torch.add(adding.residual, flat(parts), out=adding.out)


def removed(sparse: Sparse, adding: Adding | None) -> Sparse:
    """The same entries, set to zero in the sum."""
    if adding is not None and adding.out.is_cpu:
        adding.out.numpy()[sparse.indices] = 0.0
    elif adding is not None:
        adding.out[sparse.places(adding.out.device)] = 0.0
    return sparse


def has_kernels(parts: Sequence[torch.Tensor], adding: Adding | None) -> bool:
    """Whether the compiled kernels can add and select."""
    return compiled() and all(part.is_cpu for part in parts) and (adding is None or adding.residual.is_cpu)


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


def keys_of(vector: torch.Tensor) -> torch.Tensor:
    """The bits without the sign. Comparing them is exact even on a processor that flushes tiny numbers to zero."""
    return vector.view(torch.int32) & int(MAGNITUDE)


def reaching(vector: torch.Tensor, least: int | torch.Tensor) -> Sparse:
    """The entries, on the host, whose keys are at least `least`. Refuses a vector that is not finite everywhere."""
    if vector.is_cpu:
        pieces = [(keys_of(piece) >= least).numpy().nonzero()[0] for piece in torch.split(vector, PIECE)]
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
    kind = torch.int32 if len(vector) < 1 << 31 else torch.int64
    places, bits = torch.stack((indices.to(kind), vector[indices].view(torch.int32).to(kind))).cpu().numpy()
    return Sparse.trusted(len(vector), places.astype(np.int64), bits.astype(np.int32).view(np.float32), seed)


def places_to_sample(size: int, count: int) -> NDArray[np.int64]:
    """Where to look at `GROUP` neighbors each, ascending. Nowhere if it would be more than a quarter of the vector.

    The number of places balances the time to look at them and the time to put surplus entries back, as measured.
    """
    entries = max(256, int(4 * size**0.5), int((size * (count / size) ** 0.5) ** (2 / 3)))
    return _strata(size, entries // GROUP if 4 * entries <= size else 0)


@lru_cache(maxsize=4)
def _strata(size: int, number: int) -> NDArray[np.int64]:
    """A place in each of as many equal parts. Cached: computing them takes as long as adding 170,000 entries."""
    strata = np.arange(number)
    return ((strata + strata * 0.6180339887498949 % 1) * (size / max(1, number))).astype(np.int64).clip(max=size - 1)


def sampled_rank(size: int, count: int, sampled: int) -> int:
    """The rank in a sample of the key that `count` of the whole most likely reach; 0 if it has no such rank.

    Three standard deviations beyond the expected rank, with half as much variance again, since neighbors are
    correlated. The key is too high in about one call in a thousand.
    """
    expected = sampled * count / size
    rank = int(expected + 3 * (1.5 * expected * (1 - count / size)) ** 0.5 + 3)
    return rank if rank < sampled else 0
