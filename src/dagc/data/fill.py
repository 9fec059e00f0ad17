"""Give samples to clients of known sizes so that each client has its own mix of labels, and no sample twice."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagc.errors import InvalidInput

__all__ = ["Ints", "as_labels", "fill"]

Ints = NDArray[np.int64]
_FITTING_ROUNDS = 100


def as_labels(labels: ArrayLike) -> Ints:
    """Labels as a flat int64 array; refused, with the reason, if they cannot be.

    Example:
        >>> as_labels([0, 2, 1])
        array([0, 2, 1])
    """
    known = np.asarray(labels)
    if known.ndim != 1 or not len(known):
        raise InvalidInput(f"labels have shape {known.shape}; one whole number per sample is needed")
    if not np.issubdtype(known.dtype, np.integer) or known.min() < 0:
        raise InvalidInput(f"labels are {known.dtype} like {known.tolist()[0]!r}; use whole numbers 0, 1, …")
    return known.astype(np.int64)


def fill(labels: Ints, sizes: Ints, alpha: float | None, rng: np.random.Generator) -> tuple[Ints, ...]:
    """Draw the samples of clients with the given sizes (their sum at most the number of samples).

    Each client draws the label proportions it would like from Dirichlet(α). Rows (clients) and columns (labels) of the
    table sizes × proportions are then scaled in turn until the rows add up to the sizes and no column needs more
    samples than the label has. The table is rounded down, and what a client still lacks comes from the labels it lacks
    most among those with samples left, so sizes are met exactly. If all samples are used, the mixes of large clients
    are necessarily close to that of the whole set. Without α the samples are drawn at random.

    Example:
        >>> parts = fill(np.array([0] * 6 + [1] * 6), np.array([8, 4]), 0.5, np.random.default_rng(0))
        >>> [len(part) for part in parts], len(set(np.concatenate(parts).tolist()))
        ([8, 4], 12)
    """
    if alpha is None:
        shuffled = rng.permutation(len(labels))
        return tuple(np.sort(part) for part in np.split(shuffled, np.cumsum(sizes))[:-1])
    if not alpha > 0:
        raise InvalidInput(f"label_alpha is {alpha}; a Dirichlet concentration is above 0 (inf for equal mixes)")
    pools = np.bincount(labels)
    if np.isinf(alpha):
        wish = np.tile(pools / pools.sum(), (len(sizes), 1))
    else:
        wish = rng.dirichlet(np.full(len(pools), alpha), size=len(sizes))
    table = _whole(_fit(wish, sizes, pools), sizes, pools)
    by_label = np.split(np.argsort(labels, kind="stable"), np.cumsum(pools)[:-1])
    columns = [np.split(rng.permutation(pool), np.cumsum(table[:, label]))[:-1] for label, pool in enumerate(by_label)]
    return tuple(np.sort(np.concatenate([column[client] for column in columns])) for client in range(len(sizes)))


def _fit(wish: NDArray[np.float64], sizes: Ints, pools: Ints) -> NDArray[np.float64]:
    """Scale rows to the sizes and columns to at most the pools, in turn (iterative proportional fitting)."""
    table = (wish + 1e-9) * (pools > 0)  # no wish is exactly zero, so that fitting can always succeed
    for _ in range(_FITTING_ROUNDS):
        table *= (sizes / table.sum(axis=1))[:, None]
        asked = table.sum(axis=0)
        if np.all(asked <= pools + 0.5):
            break
        table *= np.minimum(1.0, pools / np.maximum(asked, 1e-300))
    return table


def _whole(table: NDArray[np.float64], sizes: Ints, pools: Ints) -> Ints:
    """The fitted table in whole samples: rows exactly the sizes, columns at most the pools."""
    whole: Ints = np.floor(table * np.minimum(1.0, sizes / table.sum(axis=1))[:, None]).astype(np.int64)
    over = np.maximum(whole.sum(axis=0) - pools, 0)
    for label in np.flatnonzero(over).tolist():  # rounding noise only: take it from the clients with most of that label
        for client in np.argsort(-whole[:, label], kind="stable").tolist():
            taken = min(over[label], whole[client, label])
            whole[client, label] -= taken
            over[label] -= taken
    left = pools - whole.sum(axis=0)
    for client in np.argsort(sizes, kind="stable").tolist():  # small ones first: a sample matters most to them
        lacking = int(sizes[client] - whole[client].sum())
        while lacking:
            missed = np.where(left > 0, table[client] - whole[client], -np.inf)
            label = int(missed.argmax())
            second = np.partition(missed, -2)[-2] if len(missed) > 1 else -np.inf
            gap = missed[label] - second if np.isfinite(second) else lacking
            taken = max(1, min(lacking, int(left[label]), int(gap)))
            whole[client, label] += taken
            left[label] -= taken
            lacking -= taken
    return whole
