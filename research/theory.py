"""What the paper proves about an allocation: key factors, step-size limits and iteration bounds, as plain functions.

Training does not use this module; it is for judging an allocation beforehand.
`docs/explanation/theory.md` explains what the formulas say and where they mislead.

Everywhere, `weights` are the clients' data sizes in any unit; they are scaled to the paper's shares p_i with Σp_i = 1,
and clients of weight 0 are left out, also from n. `ratios` are the δ_i of relative compressors (Top-k, Random-k), and
`thresholds` the λ_i of the absolute one (hard threshold). A ratio above 1 is refused by compressors, but not here:
Algorithm 2 can produce one, and its factors are still of interest.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagc.errors import InvalidInput

__all__ = [
    "Objective",
    "Problem",
    "absolute_factor",
    "absolute_iterations",
    "absolute_step_limit",
    "candidate_factors",
    "matching_thresholds",
    "phi_optimal",
    "relative_factor",
    "relative_iterations",
    "relative_step_limit",
    "residual_factor",
]

FloatArray = NDArray[np.float64]
Objective = Literal["non-convex", "convex", "strongly-convex"]


# --- Key factors: the part of a bound that an allocation can change ---------------------------------------------------


def relative_factor(weights: ArrayLike, ratios: ArrayLike) -> float:
    """Key factor of the relative compressors, Φ = (Σ p_i / √δ_i) / √δ_min: smaller promises fewer iterations.

    Uniform ratios give 1/δ̄, whatever the weights are.

    Example:
        >>> round(relative_factor([3, 1], [0.01, 0.01]), 3)
        100.0
        >>> round(relative_factor([3, 1], [0.014, 0.006]), 3)
        123.498
    """
    shares, delta = _per_client(weights, ratios, "ratio")
    return float(np.sum(shares / np.sqrt(delta)) / np.sqrt(delta.min()))


def absolute_factor(weights: ArrayLike, thresholds: ArrayLike) -> float:
    """Key factor of the absolute compressor, Σ p_i² λ_i²: smaller promises fewer iterations.

    Example:
        >>> round(absolute_factor([3, 1], [0.02, 0.02]), 6)
        0.00025
    """
    shares, level = _per_client(weights, thresholds, "threshold")
    return float(np.sum((shares * level) ** 2))


def residual_factor(weights: ArrayLike, ratios: ArrayLike) -> float:
    """Per-worker factor Σ p_i² / δ_i²: the size of the weighted residuals when gradients change slowly. Ours.

    The proof's recursion for one worker (Lemma 2 of the paper), followed to its fixed point with the worker's own δ_i
    in place of δ_min, holds the squared residual at 4ζ²/δ_i². Among all ratios of the same sum, δ_i ∝ p_i^(2/3) makes
    this factor smallest, so it explains the 2/3-power rule where Φ does not. It never exceeds Φ².

    Example:
        >>> round(residual_factor([8, 1], [0.01, 0.01]))  # uniform
        8025
        >>> round(residual_factor([8, 1], [0.016, 0.004]))  # the same sum, by the power 2/3
        3858
    """
    shares, delta = _per_client(weights, ratios, "ratio")
    return float(np.sum((shares / delta) ** 2))


# --- Theorems 4 and 8: closed forms of the allocations ----------------------------------------------------------------


def candidate_factors(weights: ArrayLike, total: float) -> FloatArray:
    """Theorem 4: for each client j, the value φ_j of Φ if j gets the smallest ratio. Algorithm 2 takes the lowest.

    Candidate j gives every other client δ_i ∝ p_i^(2/3) and j as much as the poorest of those, whose share is p_low.
    With P = Σ p_i^(2/3) and Q_j = (P − p_j^(2/3)) / p_low^(2/3), φ_j = (1 + Q_j)(p_j + p_low·Q_j) / total.

    Args:
        weights: positive, in any order; the answer is in the same order.
        total: the budget Σδ_i = n·δ̄.

    Example:
        >>> candidate_factors([6, 3, 1], total=0.003).round(1)
        array([1234.9, 1290.5, 1047.8])
    """
    total = _number(total, "total")
    shares = _positive_shares(weights, "Theorem 4")
    if shares.size == 1:
        return np.array([1.0 / total])
    powers = shares ** (2 / 3)
    poorest, second = np.argsort(shares, kind="stable")[:2]
    low = np.full(shares.size, shares[poorest])
    low[poorest] = shares[second]
    q = (powers.sum() - powers) / low ** (2 / 3)
    return np.asarray((1 + q) * (shares + low * q) / total)


def phi_optimal(weights: ArrayLike, total: float) -> FloatArray:
    """The ratios of this sum that minimize Φ, which Algorithm 2 does not.

    For a given floor m the best ratios are max(m, c·p^(2/3)): water-filling. With P = Σ p^(2/3) over the clients above
    the floor and W = Σ p over the s clients on it, Φ = W/m + P^1.5/√(m·(total − s·m)): convex in m.

    Args:
        weights: positive, in any order; the answer is in the same order.
        total: the budget Σδ_i = n·δ̄.

    Example:
        >>> phi_optimal([6, 3, 1], total=0.003).round(6)            # nobody has twice a fair share: uniform
        array([0.001, 0.001, 0.001])
        >>> phi_optimal([28, 1, 1], total=0.003).round(6)
        array([0.001373, 0.000814, 0.000814])
    """
    shares = _positive_shares(weights, "the minimum of Φ")
    total = _number(total, "total")
    n = len(shares)
    order = np.argsort(-shares, kind="stable")
    p = shares[order]
    raised = p ** (2 / 3)
    above = np.cumsum(raised)
    below = np.append(np.cumsum(p[::-1])[::-1][1:], 0.0)
    on_floor = n - 1.0 - np.arange(n)
    # At m[i] the client i just reaches the floor; from the pure power rule (last) to uniform (first).
    m = total * raised / (above + on_floor * raised)

    def factor(i: NDArray[np.int_], m: FloatArray) -> FloatArray:
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
    filled = np.searchsorted(-m, -floor, side="right")  # how many clients are above this floor
    c = (total - (n - filled) * floor) / above[filled - 1]
    result = np.empty(n)
    result[order] = np.where(everyone < filled, c * raised, floor)
    return result


def matching_thresholds(ratios: ArrayLike, threshold: float) -> FloatArray:
    """Theorem 8: the thresholds λ_i ∝ 1/δ_i that go with these ratios, with harmonic mean λ̄ = `threshold`.

    The paper gets this proportion by assuming a power law between λ and δ and matching its exponent to the 2/3 rule: it
    holds by construction there, and says nothing about how many entries will exceed a threshold.

    Example:
        >>> matching_thresholds([0.004, 0.001, 0.001], threshold=0.05).round(3)
        array([0.025, 0.1  , 0.1  ])
    """
    delta = _vector(ratios, "ratio")
    _refuse(delta, delta <= 0, "ratio", "every ratio must be above 0")
    return np.asarray(_number(threshold, "threshold") * delta.mean() / delta)


# --- Theorems 1–3 and 5–7: how large a step, how many iterations ------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """The training problem in the terms of the paper's Assumptions 1–4. The defaults suffice to compare allocations.

    Example:
        >>> Problem(objective="convex", smoothness=4.0, noise=0.5).growth
        1.0
    """

    objective: Objective = "non-convex"
    smoothness: float = 1.0  # L: the gradient's Lipschitz constant
    noise: float = 1.0  # σ: standard deviation of a stochastic gradient
    heterogeneity: float = 1.0  # ζ = max ζ_i: how far a client's gradient may be from zero where the global one is zero
    growth: float = 1.0  # Z ≥ 1: how much a client's gradient may grow with the global one
    gap: float = 1.0  # F_0 ≥ f(x_0) − f*; non-convex only
    distance: float = 1.0  # R_0² ≥ ‖x_0 − x*‖², the square; convex only
    convexity: float = 1.0  # μ ≤ L; strongly convex only

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise InvalidInput(f"objective is {self.objective!r}; choose one of {', '.join(get_args(Objective))}")
        for name in ("smoothness", "gap", "distance", "convexity"):
            _number(getattr(self, name), name)
        for name in ("noise", "heterogeneity"):
            _number(getattr(self, name), name, zero_is_fine=True)
        if _number(self.growth, "growth") < 1:
            raise InvalidInput(
                f"growth (Z) is {self.growth}; it must be at least 1, since the global gradient is an average"
            )
        if self.objective == "strongly-convex" and self.convexity > self.smoothness:
            raise InvalidInput(
                f"convexity (μ) {self.convexity} is above smoothness (L) {self.smoothness}; "
                "no function is more convex than it is smooth: lower one or raise the other"
            )


def relative_step_limit(weights: ArrayLike, ratios: ArrayLike, problem: Problem) -> float:
    """Theorems 1–3: the largest step size γ = δ_min / (c·L·Z·√(n·C_Z)), with C_Z = Σ p_i² δ_min / δ_i.

    c is 4 for a non-convex objective (Theorem 1) and 14 for a convex one (Theorems 2 and 3).

    Example:
        >>> round(relative_step_limit([1, 1], [0.01, 0.01], Problem()), 6)
        0.0025
        >>> round(relative_step_limit([1, 1], [0.01, 0.01], Problem(objective="convex")), 6)
        0.000714
    """
    shares, delta = _per_client(weights, ratios, "ratio")
    constant = 4 if problem.objective == "non-convex" else 14
    spread = shares.size * np.sum(shares**2 * (delta.min() / delta))
    return float(delta.min() / (constant * problem.smoothness * problem.growth * np.sqrt(spread)))


def absolute_step_limit(problem: Problem) -> float:
    """Theorems 5–7: the largest step size γ = 1 / (4L); the thresholds do not enter.

    Example:
        >>> absolute_step_limit(Problem(smoothness=2.0))
        0.125
    """
    return 1 / (4 * problem.smoothness)


def relative_iterations(weights: ArrayLike, ratios: ArrayLike, problem: Problem, accuracy: float) -> float:
    """Theorems 1–3: iterations to reach ε = `accuracy`, with every constant inside the O(·) taken as 1.

    For comparing allocations on one problem, not for predicting a training run. Theorem 3's bound also leaves out a
    logarithm. ε bounds the expected f(x) − f*, except for a non-convex objective: there the proof bounds the squared
    norm of the gradient, and only so do the units agree (the paper writes f(x) − f* for all three).

    Example:
        >>> uniform, skewed = [0.01, 0.01], [0.014, 0.006]
        >>> round(relative_iterations([3, 1], uniform, Problem(), accuracy=0.1))
        6302
        >>> round(relative_iterations([3, 1], skewed, Problem(), accuracy=0.1))
        7788
    """
    shares, delta = _per_client(weights, ratios, "ratio")
    root_n = np.sqrt(shares.size)
    factor = relative_factor(shares, delta)
    spread = np.sqrt(np.sum(shares**2) / delta.min())
    drift = root_n * (problem.heterogeneity * factor + problem.noise * spread)
    return _iterations(shares, problem, accuracy, float(drift), float(root_n * problem.growth * factor))


def absolute_iterations(
    weights: ArrayLike, thresholds: ArrayLike, size: int, problem: Problem, accuracy: float
) -> float:
    """Theorems 5–7: as `relative_iterations`, for thresholds on a model of d = `size` parameters.

    The thresholds are in units of the gradient. Neither heterogeneity nor growth enters.

    Example:
        >>> round(absolute_iterations([3, 1], [0.02, 0.02], 10_000, Problem(), accuracy=0.1))
        143
    """
    shares, level = _per_client(weights, thresholds, "threshold")
    drift = np.sqrt(shares.size * _number(size, "size") * absolute_factor(shares, level))
    return _iterations(shares, problem, accuracy, float(drift), 1.0)


def _iterations(shares: FloatArray, problem: Problem, accuracy: float, drift: float, curvature: float) -> float:
    """The form that the six bounds share: the noise of SGD + the drift from compression + the cost of smoothness."""
    epsilon, smooth = _number(accuracy, "accuracy"), problem.smoothness
    noise = problem.noise**2 * float(np.sum(shares**2))
    if problem.objective != "non-convex":
        drift, curvature = drift * sqrt(smooth), curvature * smooth
    series = noise / epsilon + drift / sqrt(epsilon) + curvature
    if problem.objective == "non-convex":  # Theorems 1 and 5
        return series / epsilon * smooth * problem.gap
    if problem.objective == "convex":  # Theorems 2 and 6
        return series / epsilon * problem.distance
    return series / problem.convexity  # Theorems 3 and 7


# --- Checks -----------------------------------------------------------------------------------------------------------


def _per_client(weights: ArrayLike, parameters: ArrayLike, name: str) -> tuple[FloatArray, FloatArray]:
    """Shares and parameters of the clients that have data."""
    sizes = _vector(weights, "weight")
    _refuse(sizes, sizes < 0, "weight", "give each client's number of samples, 0 or more")
    active = sizes > 0
    if not active.any():
        raise InvalidInput("all weights are 0; at least one client needs data")
    values = _vector(parameters, name, only=active)
    if name == "threshold":
        _refuse(values, values < 0, name, "a threshold is 0 (send everything) or more")
    else:
        _refuse(values, values <= 0, name, "every client with data needs one above 0")
    return _shares(sizes[active]), values


def _positive_shares(weights: ArrayLike, subject: str) -> FloatArray:
    sizes = _vector(weights, "weight")
    _refuse(sizes, sizes <= 0, "weight", f"{subject} is about clients with data: leave the others out")
    return _shares(sizes)


def _shares(sizes: FloatArray) -> FloatArray:
    scaled = sizes / sizes.max()  # to at most 1 first, so that the sum cannot overflow
    return np.asarray(scaled / scaled.sum())


def _vector(values: ArrayLike, name: str, only: NDArray[np.bool_] | None = None) -> FloatArray:
    """A list of finite numbers as an array, those of the clients in `only` (all of them by default)."""
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name}s cannot be read as numbers ({error}); give one number per client") from error
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidInput(f"{name}s have shape {vector.shape}; give a list with one number per client")
    if only is not None:
        if vector.size != only.size:
            raise InvalidInput(f"{vector.size} {name}s for {only.size} weights; give one for each client")
        vector = vector[only]
    _refuse(vector, ~np.isfinite(vector), name, "give finite numbers")
    return vector


def _refuse(vector: FloatArray, wrong: NDArray[np.bool_], name: str, remedy: str) -> None:
    if wrong.any():
        raise InvalidInput(f"a {name} is {vector[wrong.argmax()]}; {remedy}")


def _number(value: float, name: str, *, zero_is_fine: bool = False) -> float:
    if not (np.isfinite(value) and (value > 0 or (zero_is_fine and value == 0))):
        raise InvalidInput(f"{name} is {value}; give a finite number {'of 0 or more' if zero_is_fine else 'above 0'}")
    return float(value)
