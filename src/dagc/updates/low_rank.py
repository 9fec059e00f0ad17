"""The leading singular terms of a matrix by subspace iteration, and the small integers that stand for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.updates._kernels import MOST_FACTOR
from dagc.updates.frame import assemble, common
from dagc.updates.rates import DEAD
from dagc.updates.stream import Scale, nearest
from dagc.updates.update import MOST_SUM, Terms

__all__ = ["one_thread", "quantized", "subspace"]

_lock = threading.Lock()
_users = 0
_threads = 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, so that sums have one order on any machine."""
    global _users, _threads
    with _lock:
        if _users == 0:
            _threads = torch.get_num_threads()
        _users += 1
        if torch.get_num_threads() != 1:  # setting it takes milliseconds
            torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _threads != 1:
                torch.set_num_threads(_threads)


def subspace(matrix: torch.Tensor, rank: int, start: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The leading right singular vectors, as columns, and their singular values.

    Args:
        matrix: Any matrix.
        rank: How many to find at most.
        start: The right vectors of an earlier, similar matrix. With them, fewer passes are enough.
    """
    columns = matrix.shape[1]
    generator = torch.Generator().manual_seed(columns)
    if start is None or len(start) != columns:
        start = None
        basis = torch.randn(columns, rank, generator=generator)
    else:  # a few terms more than before
        basis = torch.randn(columns, min(rank, start.shape[1] + 2), generator=generator)
        basis[:, : start.shape[1]] = start[:, : basis.shape[1]]
    left = orthonormal(matrix @ basis)
    if start is None:
        left = orthonormal(matrix @ (matrix.T @ left))
    basis = matrix.T @ left
    squares, rotation = torch.linalg.eigh((basis.T @ basis).double())
    values = squares.clamp_min(0).sqrt().flip(0)
    keep = values > values[0] * 1e-5
    right = (basis.double() @ rotation.flip(1))[:, keep] / values[keep]
    return right.float(), values[keep]


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of what the columns span."""
    if len(columns) < 4 * columns.shape[1]:
        return _by_reflections(columns)
    scaled = columns.double()
    scaled /= scaled.norm(dim=0).clamp_min(1e-300)
    factor, failed = torch.linalg.cholesky_ex(scaled.T @ scaled)
    if failed or float(factor.diagonal().min()) < 1e-6:  # nearly dependent
        return _by_reflections(columns)
    basis: torch.Tensor = torch.linalg.solve_triangular(factor.T, scaled, upper=True, left=False)
    return basis.float()


def _by_reflections(columns: torch.Tensor) -> torch.Tensor:
    basis: torch.Tensor = torch.linalg.qr(columns).Q
    return basis


def rounded(values: torch.Tensor) -> torch.Tensor:
    """To integers, with a dead zone."""
    sizes = values.abs()
    whole = torch.floor(sizes + (1 - DEAD)).clamp_max(MOST_FACTOR)
    return torch.where(values < 0, -whole, whole)


def quantized(matrix: torch.Tensor, start: int, right: torch.Tensor, sigmas: torch.Tensor, step: Scale) -> Terms | None:
    """Integer factors of the terms with these right vectors.

    The right vectors are rounded first. The left ones are the least squares solution with them, rounded; then the
    scales are, too. None if nothing is left after rounding.
    """
    scales = nearest((step.value * step.value / sigmas).numpy())
    scales = np.minimum(scales, scales.min() + 16 * 9)  # scales that differ more would leave no room for the sum
    finest = MOST_FACTOR / right.abs().amax(dim=0)
    right_whole = rounded(right * torch.minimum((sigmas / step.value).float(), finest))
    image = (matrix @ right_whole).double()
    gram = (right_whole.T @ right_whole).double()
    gram.diagonal().mul_(1 + 1e-9).add_(1e-30)
    left = torch.linalg.solve(gram, image.T).T
    coarsest = left.abs().amax(dim=0).clamp_min(1e-30).numpy() / MOST_FACTOR
    scales = np.maximum(scales, nearest(coarsest) + 1)
    left_whole = rounded(left / torch.from_numpy(values_of(scales)))
    keep = (left_whole != 0).any(dim=0) & (right_whole != 0).any(dim=0)
    if not bool(keep.any()):
        return None
    left_whole, right_whole, image = left_whole[:, keep], right_whole[:, keep], image[:, keep]
    gram = gram[keep][:, keep] * (left_whole.T @ left_whole)
    best = torch.linalg.solve(gram, (left_whole * image).sum(dim=0)).numpy()
    scales = scales[keep.numpy()]
    ratio = best / values_of(scales)
    scales = np.where((ratio > 0.5) & (ratio < 2), nearest(np.abs(best) + 1e-30), scales)
    return _fitting(start, left_whole, right_whole, scales)


def values_of(scales: NDArray[np.int64]) -> NDArray[np.float64]:
    """The numbers that scales stand for."""
    return np.asarray(np.ldexp(scales % 16 + 16.0, scales // 16))


def _fitting(start: int, left: torch.Tensor, right: torch.Tensor, scales: NDArray[np.int64]) -> Terms:
    """As many of the terms, from the first on, as have an exact sum."""
    sides = [np.ascontiguousarray(side.to(torch.int8).numpy().T) for side in (left, right)]
    bounds = np.prod([np.abs(side.astype(np.int64)).max(axis=1) for side in sides], axis=0)
    sums = np.cumsum(bounds * common(scales, int(scales.min()) // 16))
    fits = max(1, int((sums < MOST_SUM).sum()))
    return assemble(start, sides[0][:fits], sides[1][:fits], scales[:fits])
