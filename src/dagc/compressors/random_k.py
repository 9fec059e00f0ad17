"""Random-k: k entries drawn from a seed. The receiver draws them again, so no indices are sent."""

from collections.abc import Sequence

import torch

from dagc.compressors import _vector as vectors
from dagc.compressors._vector import Gradient
from dagc.compressors.contract import compressor
from dagc.draws import draw
from dagc.sparse import Sparse

__all__ = ["random_k"]


def _select(
    parts: Sequence[torch.Tensor],
    parameter: int,
    seed: int = 0,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Sparse:
    vector, seed = vectors.added(parts, residual, out), seed % (1 << 64)
    count = vectors.checked_count(parameter, len(vector))
    vectors.refuse_non_finite(vector)
    drawn = torch.from_numpy(draw(seed, len(vector), count)).to(vector.device)
    return vectors.removed(vectors.picked(vector, drawn, seed), out)


@compressor("entries", add_and_select=_select)
def random_k(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """`parameter` entries at indices drawn from `seed`, possibly including zeros.

    Example:
        >>> random_k(torch.arange(10.0), 3, seed=7)
        Sparse(size=10, indices=array([4, 6, 7]), values=array([4., 6., 7.], dtype=float32), seed=7)
    """
    return _select(vectors.tensors(vector), parameter, seed)
