"""The rules that turn shares of data and a budget into one ratio or threshold per client: Algorithms 2 and 3."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rule = Callable[..., Array]
"""`(shares, budget) -> parameters`: shares are positive; the budget is the sum of ratios, or the mean threshold."""


def uniform(shares: Array, total: float) -> Array:
    """The same ratio for every client."""
    return np.full(len(shares), total / len(shares))


def power(shares: Array, total: float, exponent: float = 2 / 3) -> Array:
    """Ratios in proportion to `shares ** exponent`; 2/3 minimizes Σ p²/δ² (see `research.theory`)."""
    raised = shares**exponent
    return np.asarray(total * raised / raised.sum())


def dagc_r(shares: Array, total: float) -> Array:
    """Algorithm 2 of the paper (DAGC-R): the best of n candidates by the bound Φ of Theorem 4.

    Candidate j gives client j the smallest ratio, the same as the next smallest, and all others ratios in proportion
    to p^(2/3). All candidates share P = Σ p^(2/3), so they are compared in O(n) and only the best is computed in full.
    """
    n = len(shares)
    if n == 1:
        return np.array([total])
    order = np.argsort(-shares, kind="stable")
    p = shares[order]
    raised = p ** (2 / 3)
    up_to, from_on = np.cumsum(raised), np.cumsum(raised[::-1])[::-1]
    rest = np.append(0.0, up_to[:-1]) + np.append(from_on[1:], 0.0)  # P − p_j^(2/3), without cancellation
    base = np.full(n, p[-1])  # p_n, the smallest, is next to the smallest ratio ...
    base[-1] = p[-2]  # ... unless it is the smallest itself (second case of Theorem 4)
    q = rest / base ** (2 / 3)
    phi = (1 + q) * (p + base ** (1 / 3) * rest)  # n·δ̄·Φ_j, with p_base·Q_j = p_base^(1/3)·(P − p_j^(2/3))
    repeated = np.append(False, p[1:] == p[:-1])
    repeated[-1] = False  # j = n is always compared; other repeated weights are skipped
    phi[repeated] = np.inf
    j = n - 1 - int(np.argmin(phi[::-1]))  # j runs from n down to 1 and only a smaller Φ replaces the best

    floor = base[j] ** (2 / 3)
    ratios = raised / (rest[j] + floor)
    ratios[j] = floor / (rest[j] + floor)
    result = np.empty(n)
    result[order] = total * ratios
    return result


def dagc_a(shares: Array, threshold: float, exponent: float = 2 / 3) -> Array:
    """Algorithm 3 of the paper (DAGC-A): thresholds λ̄·P/n · p^(−2/3), with the harmonic mean λ̄."""
    raised = shares**exponent
    return np.asarray(threshold * (raised.sum() / len(shares)) / raised)
