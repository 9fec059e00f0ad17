"""Random-k: k entries drawn from a seed. The receiver draws them again, so no indices are sent."""

import torch

from dagc.compressors import _vector as vectors
from dagc.compressors._vector import Gradient
from dagc.compressors.contract import compressor
from dagc.draws import draw
from dagc.sparse import Sparse

__all__ = ["random_k"]


@compressor("entries", adds=True)
def random_k(
    vector: Gradient,
    parameter: int,
    *,
    seed: int = 0,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> Sparse:
    """`parameter` entries at indices drawn from `seed`, possibly including zeros.

    Example:
        >>> random_k(torch.arange(10.0), 3, seed=7)
        Sparse(size=10, indices=array([4, 6, 7]), values=array([4., 6., 7.], dtype=float32), seed=7)
    """
    total, seed = vectors.added(vectors.tensors(vector), residual, out), seed % (1 << 64)
    count = vectors.checked_count(parameter, len(total))
    vectors.refuse_non_finite(total)
    drawn = torch.from_numpy(draw(seed, len(total), count)).to(total.device)
    return vectors.removed(vectors.picked(total, drawn, seed), out)
