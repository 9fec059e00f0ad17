"""Compressors select which entries of a vector to send, and nothing else. Error feedback is wrapped around them.

`largest` is the definition of Top-k, in numpy. On a CPU with numba, `_fast` finds the same in one pass. Anywhere else,
torch narrows the vector to candidates above a sampled threshold, and `largest` selects among those.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.allocation import apportion
from dagc.compressors import _vector as vectors
from dagc.compressors._vector import GROUP, INFINITE, MAGNITUDE, Adding, Gradient
from dagc.draws import draw
from dagc.errors import InvalidInput
from dagc.sparse import Sparse

__all__ = [
    "COMPRESSORS",
    "Adding",
    "Compressor",
    "Gradient",
    "Parameter",
    "compressor",
    "everything",
    "hard_threshold",
    "per_tensor",
    "random_k",
    "top_k",
]

Parameter = Literal["entries", "threshold", "none"]
"""What a compressor's parameter is: a number of entries, a least magnitude, or nothing."""


class Compressor(Protocol):
    """A pure function from a vector and a parameter to some of the vector's entries, values unchanged."""

    parameter: Parameter  # whatever its type, a threshold is never taken for a number of entries

    def __call__(self, vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
        """Select entries of a tensor of any shape and float type, or of the tensors of a model.

        Only compressors that draw at random use the seed.
        """
        ...


def compressor(parameter: Parameter, *, adds: bool = False) -> Callable[[Callable[..., Sparse]], Compressor]:
    """Make a function a compressor: say what its parameter is, and whether it can add in the same pass.

    Then it takes `adding`, too: it selects from the sum, which it refuses if that is not finite.

    Example:
        >>> @compressor("entries")
        ... def first(vector, parameter, *, seed=0):
        ...     return Sparse(len(vector), range(parameter), vector[:parameter])
        >>> first.parameter
        'entries'
    """

    def declare(select: Callable[..., Sparse]) -> Compressor:
        vars(select).update(parameter=parameter, adds=adds)
        return cast(Compressor, select)

    return declare


@compressor("none")
def everything(vector: Gradient, parameter: Any = None, *, seed: int = 0) -> Sparse:
    """All entries, including zeros: no compression. The parameter is ignored.

    Example:
        >>> everything(torch.tensor([0.5, 0.0])).indices
        array([0, 1])
    """
    values = vectors.flat(vectors.tensors(vector))
    vectors.refuse_non_finite(values)
    return vectors.picked(values, torch.arange(len(values), device=values.device))


@compressor("threshold", adds=True)
def hard_threshold(vector: Gradient, parameter: float, *, seed: int = 0, adding: Adding | None = None) -> Sparse:
    """The entries whose magnitude is at least `parameter`, but never zeros. Infinity selects nothing.

    Example:
        >>> hard_threshold(torch.tensor([0.1, -3.0, 0.5]), 0.5)
        Sparse(size=3, indices=array([1, 2]), values=array([-3. ,  0.5], dtype=float32), seed=None)
    """
    if not parameter >= 0:
        raise InvalidInput(f"a threshold must be at least 0, not {parameter}")
    parts = vectors.tensors(vector)
    least = max(1, int(torch.tensor(parameter, dtype=torch.float32).view(torch.int32)))  # rounded everywhere alike
    if vectors.has_kernels(parts, adding):
        from dagc.compressors import _fast

        return _fast.reaching(parts, least, adding)
    return vectors.removed(vectors.reaching(vectors.added(parts, adding), least), adding)


@compressor("entries", adds=True)
def random_k(vector: Gradient, parameter: int, *, seed: int = 0, adding: Adding | None = None) -> Sparse:
    """`parameter` entries at indices drawn from `seed`, possibly zeros. The receiver draws them, too: none are sent.

    Example:
        >>> random_k(torch.arange(10.0), 3, seed=7)
        Sparse(size=10, indices=array([4, 6, 7]), values=array([4., 6., 7.], dtype=float32), seed=7)
    """
    total, seed = vectors.added(vectors.tensors(vector), adding), seed % (1 << 64)
    count = vectors.checked_count(parameter, len(total))
    vectors.refuse_non_finite(total)
    drawn = torch.from_numpy(draw(seed, len(total), count)).to(total.device)
    return vectors.removed(vectors.picked(total, drawn, seed), adding)


@compressor("entries", adds=True)
def top_k(vector: Gradient, parameter: int, *, seed: int = 0, adding: Adding | None = None) -> Sparse:
    """The `parameter` entries of largest magnitude. Ties go to the first; zeros are never selected.

    Example:
        >>> top_k(torch.tensor([0.1, -3.0, 0.0, 3.0, 2.0]), 2)
        Sparse(size=5, indices=array([1, 3]), values=array([-3.,  3.], dtype=float32), seed=None)
    """
    parts = vectors.tensors(vector)
    count = vectors.checked_count(parameter, sum(part.numel() for part in parts))
    if vectors.has_kernels(parts, adding):
        from dagc.compressors import _fast

        return _fast.top_k(parts, count, adding)
    total = vectors.added(parts, adding)
    candidates = vectors.reaching(total, _guess(total, count))
    if len(candidates) < count:  # the guess was too high, or the others are zero
        candidates = vectors.reaching(total, 1)
    chosen = largest(candidates.values, count)
    sparse = Sparse.trusted(len(total), candidates.indices.take(chosen), candidates.values.take(chosen))
    return vectors.removed(sparse, adding)


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The positions of the largest, ascending: the definition of Top-k, and the reference for everything faster."""
    keys = values.view(np.int32) & MAGNITUDE
    smallest = np.partition(keys, -count)[-count] if 0 < count <= len(keys) else 0
    chosen = (keys >= max(1, smallest)).nonzero()[0]
    equal = np.flatnonzero(keys.take(chosen) == smallest)
    surplus = len(chosen) - count
    return np.delete(chosen, equal[len(equal) - surplus :]) if count and surplus > 0 else chosen[:count]


def _guess(vector: torch.Tensor, count: int) -> int | torch.Tensor:
    """A key that about `count` others reach, and most likely no fewer. It stays on the device."""
    places = vectors.places_to_sample(len(vector), count)
    rank = vectors.sampled_rank(len(vector), count, GROUP * len(places))
    if not count or not rank:
        return 1 if count else INFINITE
    groups = vector[: len(vector) // GROUP * GROUP].view(-1, GROUP)
    rows = torch.from_numpy(places // GROUP).to(vector.device).clamp(max=len(groups) - 1)
    keys = vectors.keys_of(groups.index_select(0, rows).view(-1))
    return torch.topk(keys, rank, sorted=False).values.amin().clamp(min=1)


def per_tensor(within: Compressor, sizes: Sequence[int]) -> Compressor:
    """Wrap a compressor so that it selects within each of consecutive tensors of these sizes.

    A number of entries is divided in proportion to the sizes, with one for each tensor at least: otherwise a bias would
    never be sent. Fewer entries than tensors are selected among all. A threshold is the same for all.

    Example:
        >>> per_tensor(top_k, [2, 4])(torch.tensor([0.1, 0.2, 9.0, 8.0, 7.0, 6.0]), 3).indices
        array([1, 2, 3])
    """
    if not len(sizes) or min(sizes) < 1:
        raise InvalidInput(f"sizes must list the size of each tensor, each at least 1, not {sizes!r:.200}")
    most = np.asarray(sizes, dtype=np.int64)
    total, starts = int(most.sum()), most.cumsum() - most

    @compressor(within.parameter)
    def select(vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
        values, parameters = vectors.flat(vectors.tensors(vector)), [parameter] * len(sizes)
        if len(values) != total:
            raise InvalidInput(f"the vector has {len(values)} entries, the tensors have {total}")
        if within.parameter == "entries":
            count = vectors.checked_count(parameter, total)
            if count < len(sizes):
                return within(values, count, seed=seed)
            parameters = list(apportion(most.astype(np.float64), count, most, least=1))
        each = enumerate(zip(torch.split(values, list(sizes)), parameters, strict=True))
        parts = [within(part, share, seed=seed + place) for place, (part, share) in each]
        indices = np.concatenate([part.indices + start for part, start in zip(parts, starts, strict=True)])
        return Sparse.trusted(total, indices, np.concatenate([part.values for part in parts]))

    return select


COMPRESSORS: dict[str, Compressor] = {
    "none": everything,
    "top-k": top_k,
    "random-k": random_k,
    "hard-threshold": hard_threshold,
}
"""Every compressor by name."""
