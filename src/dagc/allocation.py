"""Who may send how much: one compression parameter per client, from the data each holds, under one budget.

A *ratio* is the fraction of a vector's entries that a client may send (δ in the paper); the budget is their mean.
A *threshold* is the smallest magnitude at which an entry is sent (λ); the budget is their harmonic mean.
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagc.errors import BudgetTooSmall, BudgetWarning, InvalidInput, unknown
from dagc.sparse import MAX_SIZE
from dagc.wire import payload_size

__all__ = [
    "ALLOCATORS",
    "Allocator",
    "allocate",
    "apportion",
    "apportion_bytes",
    "dagc_a",
    "dagc_r",
    "entries",
    "most_entries",
    "power",
    "uniform",
]

Ints = NDArray[np.int64]
Array = NDArray[np.float64]
Rule = Callable[..., Array]
"""`(shares, budget) -> parameters`: shares are positive; the budget is the sum of ratios, or the mean threshold."""
CAPPED = "the caps allow less than the budget: every client gets its cap"
"""The text is always the same, since Python remembers every text of a warning."""


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


class Allocator(NamedTuple):
    """A method's rule for ratios, its rule for thresholds, or both; the values of `ALLOCATORS`."""

    ratios: Rule | None = None
    thresholds: Rule | None = None
    exponent: bool = False  # whether the rules take `exponent=`


ALLOCATORS: dict[str, Allocator] = {
    "uniform": Allocator(uniform, lambda shares, threshold: np.full(len(shares), threshold)),
    "dagc-r": Allocator(ratios=dagc_r),
    "dagc-a": Allocator(thresholds=dagc_a),
    "power": Allocator(power, dagc_a, exponent=True),
}
"""Every method by name. Add an `Allocator` here, and `allocate`, the command line and the contract suite find it."""


def allocate(
    weights: ArrayLike,
    *,
    ratio: float | None = None,
    threshold: float | None = None,
    bytes: int | None = None,
    method: str = "dagc-r",
    exponent: float | None = None,
    caps: ArrayLike | None = None,
    size: int | None = None,
    values: str = "fp32",
) -> Array:
    """Divide one budget into one compression parameter per client, in the order of `weights`.

    Give exactly one of the three budgets. Clients of weight 0 do not take part: they get ratio 0 (threshold infinity)
    and do not count in the mean.

    Args:
        weights: How much data each client holds: numbers of examples, or shares.
        ratio: The budget as the mean ratio of entries sent, in (0, 1].
        threshold: The budget as the harmonic mean of the thresholds.
        bytes: The budget as payload bytes per round, for all clients together; needs `size`. No gradient exceeds it.
        method: A name in `ALLOCATORS`.
        exponent: For rules that take one, such as `power`; 2/3 if not given.
        caps: The largest ratio of each client. What a cap cuts off goes to the others by the same rule; if all caps
            together are below the budget, every client gets its cap, with a `BudgetWarning`.
        size: The number of entries in the vector, with `bytes`.
        values: The value codec that will be used, with `bytes`.

    Example:
        >>> allocate([5000, 3000, 200, 10], ratio=0.001, method="power").round(6)
        array([2.169e-03, 1.543e-03, 2.540e-04, 3.400e-05])
        >>> allocate([900, 100], threshold=0.05, method="dagc-a").round(4)
        array([0.0308, 0.1332])
    """
    weight = _checked_weights(weights)
    if sum(budget is not None for budget in (ratio, threshold, bytes)) != 1:
        raise InvalidInput("give exactly one budget: ratio=, threshold= or bytes=")
    rule = _rule(method, exponent, "ratios" if threshold is None else "thresholds")
    present = np.flatnonzero(weight > 0)
    order = present[np.argsort(-weight[present], kind="stable")]  # largest first, sorted once for every rule
    shares = _shares(weight[order])
    result = np.full(len(weight), 0.0 if threshold is None else np.inf)
    if threshold is not None:
        if caps is not None:
            raise InvalidInput("caps limit ratios; a threshold does not fix how much is sent: give ratio= or bytes=")
        if not (np.isfinite(threshold) and threshold > 0):
            raise InvalidInput(f"threshold must be positive and finite, not {threshold}")
        result[order] = rule(shares, float(threshold))
        return result
    cap = _checked_caps(caps, len(weight))[order]
    if bytes is not None:
        if size is None:
            raise InvalidInput("a budget in bytes needs size=, the number of entries in the vector")
        result[order] = _within_bytes(rule, shares, cap, bytes, size, values)
    elif ratio is not None:
        if not 0 < ratio <= 1:
            raise InvalidInput(f"ratio must be above 0 and at most 1, not {ratio}")
        result[order] = _capped(rule, shares, ratio * len(order), cap)
    return result


def entries(ratios: ArrayLike, size: int, *, caps: ArrayLike | None = None) -> Ints:
    """How many entries each client sends: integers that add up to the budget, by largest remainder.

    The sum is `floor(Σ ratios · size)`. Every client with a ratio above 0 gets at least one entry, and none gets more
    than `size` or, if given, its cap.

    Example:
        >>> entries([0.5, 0.3, 0.1999, 0.0001], size=10)
        array([4, 3, 2, 1])
    """
    ratio = np.atleast_1d(np.asarray(ratios, dtype=np.float64))
    if ratio.ndim != 1 or not len(ratio) or not np.all((ratio >= 0) & (ratio <= 1 + 1e-9)):
        raise InvalidInput(f"ratios must be a list of numbers from 0 to 1, not {ratios!r:.200}")
    if not 1 <= size <= MAX_SIZE:
        raise InvalidInput(f"size must be {'at least 1' if size < 1 else 'at most 2^48'}, not {size}")
    present = np.flatnonzero(ratio > 0)
    most = _limits(_checked_caps(caps, len(ratio))[present], size)
    total = ratio.sum() * size * (1 + 1e-12) + 1e-9
    if int(total) < len(present):
        raise BudgetTooSmall(
            f"the budget is {int(total)} entries for {len(present)} clients, and each needs at least one: "
            f"raise the mean ratio to {len(present) / (len(ratio) * size):.3g} or more"
        )
    result = np.zeros(len(ratio), dtype=np.int64)
    result[present] = apportion(ratio[present], min(total, float(most.sum())), most)
    return result


def most_entries(caps: ArrayLike, size: int) -> Ints:
    """The most entries of a vector that are within each cap.

    Example:
        >>> most_entries([1 / 49, 0.5, 1.0], size=49)
        array([ 1, 24, 49])
    """
    limits = np.floor(np.asarray(caps, dtype=np.float64) * size * (1 + 1e-12))  # 49 · (1/49) is below 1
    return np.minimum(size, limits).astype(np.int64)


def _limits(caps: Array, size: int) -> Ints:
    """The most entries within each cap, which is one at least."""
    most = most_entries(caps, size)
    if len(most) and most.min() < 1:
        raise InvalidInput(f"a cap of {caps.min():.3g} is below one entry of {size}: raise it")
    return most


def apportion(quota: Array, total: float, most: Ints, least: int = 1) -> Ints:
    """Integers from `least` to `most` that add up to `total`, rounded down, and are as proportional as possible."""
    count = np.full(len(quota), least, dtype=np.int64)
    free = np.flatnonzero(quota > 0)  # whose count is not fixed by a bound yet
    left = total - least * (len(quota) - len(free))
    while len(free):
        want = quota[free] * (left / quota[free].sum())
        low, high = want < least, want > most[free]
        # Apply only the bound that matters more this time: fixing one side moves the other.
        low_first = (least - want[low]).sum() >= (want[high] - most[free][high]).sum()
        settled = low if low_first else high
        if not settled.any():
            count[free] = np.floor(np.minimum(want, most[free]))
            remainder, room = np.minimum(want, most[free]) - count[free], count[free] < most[free]
            order = np.lexsort((-remainder, ~room))  # largest remainder first, then the first client
            count[free[order[: max(0, int(left) - int(count[free].sum()))]]] += 1
            break
        count[free[settled]] = least if low_first else most[free[settled]]
        left -= int(count[free[settled]].sum())
        free = free[~settled]
    return count


def apportion_bytes(quota: Array, budget: int, most: Ints, size: int, values: str = "fp32") -> Ints:
    """Integers up to `most`, as proportional to `quota` as possible, whose frames fit into the budget.

    Every frame counts with the most bytes it can take; a client that gets 0 sends none. What is left of the budget is
    too little for another entry, or at most 0.4 % of it.
    """

    def shared(total: int) -> tuple[Ints, int]:
        counts = apportion(quota, total, most, least=0)
        return counts, int(payload_size(size, counts[counts > 0], values).sum())

    fits, best = 0, np.zeros(len(quota), dtype=np.int64)
    too_many = min(int(most[quota > 0].sum()), 8 * max(0, budget)) + 1
    before, total = (0, 0), budget // 4
    for attempt in range(64):
        total = min(max(total, fits + 1), too_many - 1)
        if total <= fits:
            break
        counts, taken = shared(total)
        if taken <= budget:
            fits, best = total, counts
            if budget - taken <= max(1, budget >> 8):
                break
        else:
            too_many = total
        if attempt < 6 and taken != before[1]:  # secant steps: frames grow almost linearly
            before, total = (total, taken), total + (budget - taken) * (total - before[0]) // (taken - before[1])
        else:
            total = (fits + too_many) // 2
    return best


def _capped(rule: Rule, shares: Array, total: float, caps: Array) -> Array:
    """The rule's ratios, none above its cap. What caps cut off goes to the others by the same rule."""
    if caps.sum() <= total:
        if caps.sum() < total * (1 - 1e-9):
            warnings.warn(CAPPED, BudgetWarning, stacklevel=3)
        return caps
    result = caps.copy()
    free = np.arange(len(shares))
    while len(free):
        ratios = rule(shares[free], total)
        over = ratios > caps[free]
        if not over.any():
            result[free] = ratios
            break
        total -= caps[free[over]].sum()
        free = free[~over]
    return result


def _within_bytes(rule: Rule, shares: Array, caps: Array, budget: int, size: int, values: str) -> Array:
    """The largest ratios whose payloads fit into the budget even in the worst case."""

    def ratios(total: int) -> Array:
        return _capped(rule, shares, total / size, caps)

    def taken(total: int) -> int:
        return int(payload_size(size, entries(ratios(total), size, caps=caps), values).sum())

    least, most = len(shares), int(_limits(caps, size).sum())
    needed = taken(least)
    if needed > budget:
        raise BudgetTooSmall(
            f"{budget} bytes are too few for {least} clients: one entry from each takes {needed} bytes"
        )
    total = most - bisect_left(range(most, least, -1), True, key=lambda total: taken(total) <= budget)
    if total == most and caps.min() < 1:
        warnings.warn(CAPPED, BudgetWarning, stacklevel=3)
        return caps
    return ratios(total)


def _rule(method: str, exponent: float | None, kind: str) -> Rule:
    """The method's rule for ratios or for thresholds, if it has that."""
    if method not in ALLOCATORS:
        raise unknown("method", method, sorted(ALLOCATORS))
    rule: Rule | None = getattr(ALLOCATORS[method], kind)
    if rule is None:
        other, budget = ("ratios", "ratio=") if kind == "thresholds" else ("thresholds", "threshold=")
        choices = ", ".join(sorted(name for name, allocator in ALLOCATORS.items() if getattr(allocator, kind)))
        raise InvalidInput(f"method {method!r} sets {other}, not {kind}: give {budget} or choose {choices}")
    if exponent is None:
        return rule
    if not ALLOCATORS[method].exponent:
        able = ", ".join(repr(name) for name, allocator in ALLOCATORS.items() if allocator.exponent)
        raise InvalidInput(f"exponent= belongs to the method {able}, not to {method!r}")
    if not 0 <= exponent <= 4:
        raise InvalidInput(f"exponent must be from 0 (uniform) to 4, not {exponent}")
    return partial(rule, exponent=exponent)


def _checked_weights(weights: ArrayLike) -> Array:
    try:
        weight = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"weights must be a list of numbers, not {weights!r:.200}") from error
    if weight.ndim != 1 or not len(weight):
        raise InvalidInput(f"weights must be a list with one number per client, not of shape {weight.shape}")
    wrong = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(wrong):
        raise InvalidInput(f"client {wrong[0]} has weight {weight[wrong[0]]}: weights must be finite and not negative")
    if not weight.any():
        raise InvalidInput("all weights are 0: at least one client must hold data")
    return weight


def _checked_caps(caps: ArrayLike | None, n: int) -> Array:
    if caps is None:
        return np.ones(n)
    cap = np.asarray(caps, dtype=np.float64)
    if cap.shape != (n,):
        raise InvalidInput(f"caps must hold one ratio for each of the {n} clients, not an array of shape {cap.shape}")
    wrong = np.flatnonzero(~((cap > 0) & (cap <= 1)))
    if len(wrong):
        raise InvalidInput(f"client {wrong[0]} has cap {cap[wrong[0]]}: a cap is above 0 and at most 1")
    return cap


def _shares(weight: Array) -> Array:
    scaled = weight / weight.max()  # the sum of huge weights would overflow
    return np.asarray(np.maximum(scaled / scaled.sum(), np.finfo(np.float64).tiny))
