"""The rules: from the shares of data and a budget to one ratio, or one threshold, per client. Algorithms 2 and 3."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Array",
    "Rule",
    "dagc_a",
    "dagc_r",
    "phi_optimal",
    "power",
    "power_thresholds",
    "scheme_i",
    "scheme_ii",
    "uniform",
]

Array = NDArray[np.float64]
Rule = Callable[[Array, float], Array]
"""`(shares, budget) -> parameters`: shares are positive; the budget is the sum of ratios, or the mean threshold."""


def uniform(shares: Array, total: float) -> Array:
    """The same ratio for everybody."""
    return np.full(len(shares), total / len(shares))


def power(shares: Array, total: float, exponent: float = 2 / 3) -> Array:
    """Ratios in proportion to `shares ** exponent`; 2/3 minimises Σ p²/δ² (see `dagc.theory`)."""
    raised = shares**exponent
    return np.asarray(total * raised / raised.sum())


def dagc_r(shares: Array, total: float) -> Array:
    """Algorithm 2 of the paper (DAGC-R): the best of n candidates by the bound Φ of Theorem 4.

    Candidate j gives worker j the smallest ratio, the same as the next smallest, and all others ratios in proportion
    to p^(2/3). All candidates share P = Σ p^(2/3), so they are weighed in O(n) and only the best is written out.
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
    repeated[-1] = False  # j = n is always weighed; other repeated weights are bypassed
    phi[repeated] = np.inf
    j = n - 1 - int(np.argmin(phi[::-1]))  # j runs from n down to 1 and only a smaller Φ replaces the best

    floor = base[j] ** (2 / 3)
    ratios = raised / (rest[j] + floor)
    ratios[j] = floor / (rest[j] + floor)
    result = np.empty(n)
    result[order] = total * ratios
    return result


def dagc_a(shares: Array, threshold: float) -> Array:
    """Algorithm 3 of the paper (DAGC-A): thresholds λ̄·P/n · p^(−2/3), with the harmonic mean λ̄."""
    return power_thresholds(shares, threshold, 2 / 3)


def power_thresholds(shares: Array, threshold: float, exponent: float) -> Array:
    raised = shares**exponent
    return np.asarray(threshold * (raised.sum() / len(shares)) / raised)


def phi_optimal(shares: Array, total: float) -> Array:
    """The true minimiser of Φ = (Σ p/√δ)/√δ_min, which Algorithm 2 is not; for study (see `docs/theory.md`).

    For a given floor m the best ratios are max(m, c·p^(2/3)): water-filling. With P = Σ p^(2/3) over the workers above
    the floor and W = Σ p over the s workers on it, Φ = W/m + P^1.5/√(m·(total − s·m)): convex in m.
    """
    n = len(shares)
    order = np.argsort(-shares, kind="stable")
    p = shares[order]
    raised = p ** (2 / 3)
    above = np.cumsum(raised)
    below = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    on_floor = n - 1.0 - np.arange(n)
    # At m[i] the worker i just reaches the floor; from the pure power rule (last) to uniform (first).
    m = total * raised / (above + on_floor * raised)

    def factor(i: NDArray[np.int_], m: Array) -> Array:
        return below[i] / m + above[i] ** 1.5 / np.sqrt(m * (total - on_floor[i] * m))

    everyone = np.arange(n)
    at_ends = factor(everyone, m)
    best = int(np.argmin(at_ends))
    floor, least = m[best], at_ends[best]
    if n > 1:
        # Between m[i + 1] and m[i], Φ·√m does not fall, so Φ is at least this; the other stretches cannot win.
        lowest = at_ends[1:] * np.sqrt(m[1:] / m[:-1])
        i = np.flatnonzero(lowest < least)
        low, high = m[i + 1], m[i]
        for _ in range(60 if len(i) else 0):
            middle = (low + high) / 2
            free = total - on_floor[i] * middle
            fall = below[i] / middle**2 + above[i] ** 1.5 * (free - on_floor[i] * middle) / (2 * (middle * free) ** 1.5)
            low, high = np.where(fall > 0, middle, low), np.where(fall > 0, high, middle)
        if len(i):
            inside = factor(i, low)
            k = int(np.argmin(inside))
            if inside[k] < least:
                floor = low[k]
    filled = np.searchsorted(-m, -floor, side="right")  # how many workers are above this floor
    c = (total - (n - filled) * floor) / above[filled - 1]
    result = np.empty(n)
    result[order] = np.where(everyone < filled, c * raised, floor)
    return result


def scheme_i(shares: Array, total: float) -> Array:
    """The paper's motivating scheme I: the largest client has almost all, each other a tenth of the mean ratio."""
    return _one_against_the_rest(shares, total, rest=total / len(shares) / 10)


def scheme_ii(shares: Array, total: float) -> Array:
    """The opposite, scheme II: the largest client has a tenth of the mean ratio, the others share the rest."""
    n = len(shares)
    return _one_against_the_rest(shares, total, rest=total * (1 - 0.1 / n) / max(1, n - 1))


def _one_against_the_rest(shares: Array, total: float, rest: float) -> Array:
    result = np.full(len(shares), rest)
    result[np.argmax(shares)] = total - rest * (len(shares) - 1)
    return result
