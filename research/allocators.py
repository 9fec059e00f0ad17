"""Allocators that only the paper's experiments need: for its motivating figure, and for questions about Φ."""

import numpy as np

from dagc.allocation import Array
from research.theory import phi_optimal

__all__ = ["RULES", "scheme_i", "scheme_ii"]


def scheme_i(shares: Array, total: float) -> Array:
    """Scheme I, which motivates the paper: the largest client has almost all, each other a tenth of the mean ratio."""
    return _one_against_the_rest(shares, total, rest=total / len(shares) / 10)


def scheme_ii(shares: Array, total: float) -> Array:
    """Scheme II, the opposite: the largest client has a tenth of the mean ratio, the others share the rest."""
    n = len(shares)
    return _one_against_the_rest(shares, total, rest=total * (1 - 0.1 / n) / max(1, n - 1))


def _one_against_the_rest(shares: Array, total: float, rest: float) -> Array:
    result = np.full(len(shares), rest)
    result[np.argmax(shares)] = total - rest * (len(shares) - 1)
    return result


RULES = {
    "phi-optimal": (phi_optimal, "the minimizer of the paper's factor Φ"),
    "scheme-i": (scheme_i, "almost everything to the largest client"),
    "scheme-ii": (scheme_ii, "almost everything to the small clients"),
}
"""For `dagc.ALLOCATORS` and `METHODS`, by name: the function, and one line about it."""
