"""The leading singular terms of a matrix by subspace iteration, and the small integers that stand for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.updates._kernels import MOST_FACTOR
from dagc.updates.frame import assemble, common
from dagc.updates.rates import DEAD
from dagc.updates.stream import nearest, value_of
from dagc.updates.update import MOST_SUM, Terms

__all__ = ["leading", "one_thread", "quantized"]

SMALL = 48  # a matrix with fewer rows, or columns, is decomposed as a whole
FAINT = 1e-5  # singular values below this part of the largest are rounding errors

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


def leading(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """At most `rank` of the leading right singular vectors of a matrix, as columns, and their singular values."""
    rows, columns = matrix.shape
    if rows <= max(SMALL, rank):
        basis = matrix.T
    elif columns <= SMALL:
        basis = torch.linalg.qr(matrix, mode="r").R.T
    else:
        generator = torch.Generator().manual_seed(columns)
        left = torch.linalg.qr(matrix @ torch.randn(columns, rank, generator=generator)).Q
        left = torch.linalg.qr(matrix @ (matrix.T @ left)).Q
        basis = matrix.T @ left
    squares, rotation = torch.linalg.eigh((basis.T @ basis).double())
    values = squares.clamp_min(0).sqrt().flip(0)[:rank]
    keep = values > values[0] * FAINT
    right = basis @ (rotation.flip(1)[:, :rank][:, keep] / values[keep]).float()
    return right, values[keep]


def peaks(columns: torch.Tensor) -> NDArray[np.floating[Any]]:
    """The largest magnitude in each column; several times faster than torch's maximum along a dimension."""
    return np.asarray(np.abs(columns.numpy()).max(axis=0))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """To integers, with a dead zone."""
    return values.abs().add_(1 - DEAD).floor_().clamp_max_(MOST_FACTOR).copysign_(values)


def quantized(matrix: torch.Tensor, start: int, right: torch.Tensor, sigmas: torch.Tensor, step: int) -> Terms | None:
    """Integer factors of the terms with these right vectors.

    The right vectors are rounded first. The left ones are the least squares solution with them, rounded; then the
    scales are, too. None if nothing is left after rounding.
    """
    unit = float(value_of(step))
    scales = nearest((unit * unit / sigmas).numpy())
    scales = np.minimum(scales, scales.min() + 16 * 9)  # scales that differ more would leave no room for the sum
    finest = MOST_FACTOR / torch.from_numpy(peaks(right))
    right_whole = rounded(right * torch.minimum((sigmas / unit).float(), finest))
    image = matrix @ right_whole
    gram = right_whole.T @ right_whole
    left = solved(gram, image.T).T
    coarsest = np.maximum(peaks(left), 1e-30) / MOST_FACTOR
    scales = np.maximum(scales, nearest(coarsest) + 1)
    left_whole = rounded(left / torch.from_numpy(value_of(scales)))
    bounds = peaks(left_whole) * peaks(right_whole)
    keep = bounds != 0
    if not keep.any():
        return None
    if not keep.all():
        bounds, scales, kept = bounds[keep], scales[keep], torch.from_numpy(keep)
        left_whole, right_whole, image = left_whole[:, kept], right_whole[:, kept], image[:, kept]
        gram = gram[kept][:, kept]
    best = solved(gram * (left_whole.T @ left_whole), (left_whole * image).sum(dim=0)).numpy()
    ratio = best / value_of(scales)
    scales = np.where((ratio > 0.5) & (ratio < 2), nearest(np.abs(best) + 1e-30), scales)
    sums = np.cumsum(bounds.astype(np.int64) * common(scales, int(scales.min()) // 16))
    fits = max(1, int((sums < MOST_SUM).sum()))  # as many terms, from the first on, as have an exact sum
    left, right = (side[:, :fits].T.to(torch.int8).contiguous() for side in (left_whole, right_whole))
    return assemble(start, left.numpy(), right.numpy(), scales[:fits])


def solved(gram: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """The least squares solution, also if some columns are nearly or exactly dependent."""
    gram = gram.double()
    gram.diagonal().mul_(1 + 1e-6).add_(1e-30)
    solution: torch.Tensor = torch.linalg.solve(gram, image.double())
    return solution
