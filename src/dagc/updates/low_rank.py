"""The leading singular terms of a matrix by subspace iteration, and the small integers that stand for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

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
    """At most `rank` of the leading right singular vectors of a matrix, as columns, and their singular values.

    The vectors are on the matrix's device, the values in CPU memory.
    """
    rows, columns = matrix.shape
    if rows <= max(SMALL, rank):
        basis = matrix.T
    elif columns <= SMALL:
        basis = torch.linalg.qr(matrix, mode="r").R.T
    else:
        guess = _first_guess(columns, rank) if matrix.is_cpu else _guess_there(columns, rank, matrix.device)
        left = torch.linalg.qr(matrix @ guess).Q
        left = torch.linalg.qr(matrix @ (matrix.T @ left)).Q
        basis = matrix.T @ left
    squares, rotation = torch.linalg.eigh((basis.T @ basis).double().cpu())
    values = squares.clamp_min(0).sqrt().flip(0)[:rank]
    keep = values > values[0] * FAINT
    right = basis @ (rotation.flip(1)[:, :rank][:, keep] / values[keep]).float().to(matrix.device)
    return right, values[keep]


def _first_guess(columns: int, rank: int) -> torch.Tensor:
    """Vectors to begin with, the same in every step and on every device."""
    return torch.randn(columns, rank, generator=torch.Generator().manual_seed(columns))


@lru_cache(maxsize=16)
def _guess_there(columns: int, rank: int, device: torch.device) -> torch.Tensor:
    """The same on a device, where it is kept: it would have to cross in every step. It is only read."""
    return _first_guess(columns, rank).to(device)


def peaks(columns: torch.Tensor) -> torch.Tensor:
    """The largest magnitude in each column. On the CPU, numpy is several times faster than torch along a dimension."""
    return torch.from_numpy(np.abs(columns.numpy()).max(axis=0)) if columns.is_cpu else columns.abs().amax(dim=0)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """To integers, with a dead zone."""
    return values.abs().add_(1 - DEAD).floor_().clamp_max_(MOST_FACTOR).copysign_(values)


def quantized(matrix: torch.Tensor, start: int, right: torch.Tensor, sigmas: torch.Tensor, step: int) -> Terms | None:
    """Integer factors of the terms with these right vectors.

    The right vectors are rounded first. The left ones are the least squares solution with them, rounded; then the
    scales are, too. None if nothing is left after rounding.
    """
    unit, device = float(value_of(step)), matrix.device
    scales = nearest((unit * unit / sigmas).numpy())
    scales = np.minimum(scales, scales.min() + 16 * 9)  # scales that differ more would leave no room for the sum
    finest = MOST_FACTOR / peaks(right)
    right_whole = rounded(right * torch.minimum((sigmas / unit).float().to(device), finest))
    image = matrix @ right_whole
    gram = right_whole.T @ right_whole
    left = solved(gram, image.T).T
    coarsest = np.maximum(peaks(left).cpu().numpy(), 1e-30) / MOST_FACTOR
    scales = np.maximum(scales, nearest(coarsest) + 1)
    left_whole = rounded(left / torch.from_numpy(value_of(scales)).to(device))
    bounds = (peaks(left_whole) * peaks(right_whole)).cpu().numpy()
    keep = bounds != 0
    if not keep.any():
        return None
    if not keep.all():
        bounds, scales, kept = bounds[keep], scales[keep], torch.from_numpy(np.flatnonzero(keep)).to(device)
        left_whole, right_whole, image = (each.index_select(1, kept) for each in (left_whole, right_whole, image))
        gram = gram.index_select(0, kept).index_select(1, kept)
    best = solved(gram * (left_whole.T @ left_whole), (left_whole * image).sum(dim=0)).cpu().numpy()
    ratio = best / value_of(scales)
    scales = np.where((ratio > 0.5) & (ratio < 2), nearest(np.abs(best) + 1e-30), scales)
    sums = np.cumsum(bounds.astype(np.int64) * common(scales, int(scales.min()) // 16))
    fits = max(1, int((sums < MOST_SUM).sum()))  # as many terms, from the first on, as have an exact sum
    both = torch.cat((left_whole, right_whole))[:, :fits].to(torch.int8).cpu().numpy()
    left_columns, right_columns = np.split(both, [len(left_whole)])
    return assemble(start, np.ascontiguousarray(left_columns.T), np.ascontiguousarray(right_columns.T), scales[:fits])


def solved(gram: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
    """The least squares solution, also if some columns are nearly or exactly dependent."""
    gram = gram.double()
    gram.diagonal().mul_(1 + 1e-6).add_(1e-30)
    solution: torch.Tensor = torch.linalg.solve_ex(gram, image.double()).result  # the device does not wait for a check
    return solution
