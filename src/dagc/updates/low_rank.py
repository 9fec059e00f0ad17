"""The leading singular terms of a matrix by subspace iteration, and the small integers that stand for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dagc.updates.frame import MOST_FACTOR, Scale, assemble
from dagc.updates.rates import DEAD
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
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_threads)


def subspace(matrix: torch.Tensor, rank: int, start: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The leading right singular vectors, as columns, and their singular values.

    Args:
        matrix: Any matrix.
        rank: How many to find.
        start: Right vectors of an earlier, similar matrix. With them, fewer passes are enough.
    """
    columns = matrix.shape[1]
    passes = 1 if start is not None and start.shape[1] >= rank else 2
    basis = torch.randn(columns, rank, generator=torch.Generator().manual_seed(columns))
    if start is not None:
        shared = min(rank, start.shape[1])
        basis[:, :shared] = start[:, :shared]
    for index in range(passes):
        left = torch.linalg.qr(matrix @ basis).Q
        basis = matrix.T @ left
        if index + 1 < passes:
            basis = torch.linalg.qr(basis).Q
    squares, rotation = torch.linalg.eigh((basis.T @ basis).double())
    values = squares.clamp_min(0).sqrt().flip(0)
    keep = values > values[0] * 1e-5
    right = (basis.double() @ rotation.flip(1))[:, keep] / values[keep]
    return right.float(), values[keep]


def rounded(values: torch.Tensor) -> torch.Tensor:
    """To integers, with a dead zone."""
    sizes = values.abs()
    whole = torch.floor(sizes + (1 - DEAD)).clamp_max(MOST_FACTOR)
    return torch.where(values < 0, -whole, whole)


def quantized(
    matrix: torch.Tensor, start: int, right: torch.Tensor, sigmas: torch.Tensor, step: Scale
) -> Terms | None:
    """Integer factors of the terms with these right vectors.

    The right vectors are rounded first. The left ones are the least squares solution with them, rounded; then the
    scales are, too. None if nothing is left after rounding.
    """
    small = step.value * step.value / sigmas
    scales = [Scale.near(float(x)) for x in small]
    base = min(scales) + 16 * 9  # scales that differ more would leave no room for the sum
    scales = [min(scale, Scale(base)) for scale in scales]
    finest = MOST_FACTOR / right.abs().amax(dim=0)
    right_whole = rounded(right * torch.minimum((sigmas / step.value).float(), finest))
    keep = (right_whole != 0).any(dim=0)
    right_whole, scales = right_whole[:, keep], [scale for scale, kept in zip(scales, keep, strict=True) if kept]
    if not scales:
        return None
    image = (matrix @ right_whole).double()
    gram = (right_whole.T @ right_whole).double()
    gram.diagonal().mul_(1 + 1e-9)
    left = torch.linalg.solve(gram, image.T).T
    coarsest = left.abs().amax(dim=0) / MOST_FACTOR
    scales = [max(s, Scale(Scale.near(float(c)) + 1)) if c > 0 else s for s, c in zip(scales, coarsest, strict=True)]
    left_whole = rounded(left / torch.tensor([scale.value for scale in scales], dtype=torch.float64))
    keep = (left_whole != 0).any(dim=0)
    if not bool(keep.any()):
        return None
    left_whole, right_whole, image = left_whole[:, keep], right_whole[:, keep], image[:, keep]
    gram = gram[keep][:, keep] * (left_whole.T @ left_whole)
    best = torch.linalg.solve(gram, (left_whole * image).sum(dim=0))
    scales = [scale for scale, kept in zip(scales, keep, strict=True) if kept]
    scales = [Scale.near(float(b)) if 0.5 < b / s.value < 2 else s for b, s in zip(best, scales, strict=True)]
    return _fitting(start, left_whole, right_whole, scales)


def _fitting(start: int, left: torch.Tensor, right: torch.Tensor, scales: list[Scale]) -> Terms:
    """As many of the terms, from the first on, as have an exact sum."""
    sides = [side.to(torch.int8).numpy() for side in (left, right)]
    bounds = np.prod([np.abs(side.astype(np.int64)).max(axis=0) for side in sides], axis=0)
    lowest = min(scale.exponent for scale in scales)
    sums = np.cumsum(bounds * np.array([scale.mantissa << (scale.exponent - lowest) for scale in scales]))
    fits = max(1, int((sums < MOST_SUM).sum()))
    return assemble(start, sides[0][:, :fits], sides[1][:, :fits], scales[:fits])
