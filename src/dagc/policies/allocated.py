"""Budgets by data: each round, what may be sent is divided among the clients present; small shares wait."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.allocation import allocate, apportion, apportion_bytes, entries, most_entries
from dagc.errors import BudgetTooSmall
from dagc.policies.plan import Plan
from dagc.policies.policy import Situation
from dagc.state import Stateful, fields, finite, named
from dagc.wire import payload_size

LEAST = 16  # the fewest bytes that are worth a frame; a client whose share is smaller saves it up
EXPONENT = 2 / 3  # of a client's share of the data: with this one, equal bytes reach an accuracy in the fewest rounds
DENSE = 2  # the most bytes per entry that a frame can use
Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Allocated(Stateful):
    """An allocator's ratios or thresholds for the clients present, so that the budget holds in every round.

    If clients wait (`Plan.overhead`, or a budget too small for one entry from everybody), each saves up its share, and
    only those that have saved most send: as many as have enough for a worthwhile frame. If not even one has, the
    round's budget is saved, too. Error feedback keeps what waits. Fewer and larger frames spend less on headers and on
    each index.
    """

    wants_norms = False

    STATE = fields(_saved=named(finite), _carry=finite)

    def __init__(self, plan: Plan, size: int, allocator: str, compressor: str = "top-k") -> None:
        self.plan, self.size, self.allocator = plan, size, allocator
        self.compressor = compressor if plan.threshold is None else "hard-threshold"
        self.least = worth_a_frame(plan, size) if plan.overhead else 1
        self._saved: dict[str, float] = {}
        self._carry = 0.0

    def decide(self, now: Situation) -> list[Any]:
        weights = np.array([now.examples[name] for name in now.present])
        if not self.plan.overhead:
            try:
                return self._everybody(now, weights)
            except BudgetTooSmall:
                pass
        return self._share(now, weights)

    def _everybody(self, now: Situation, weights: Array) -> list[Any]:
        """Every client sends what the allocator gives it."""
        plan, caps = self.plan, self._caps(now.present)
        parameters = allocate(
            weights,
            ratio=plan.ratio,
            threshold=plan.threshold,
            bytes=now.allowance,
            method=self.allocator,
            exponent=plan.exponent,
            size=self.size,
            values=plan.values,
            caps=caps,
        )
        return list((parameters if plan.threshold is not None else entries(parameters, self.size, caps=caps)).tolist())

    def _share(self, now: Situation, weights: Array) -> list[Any]:
        """The clients that have saved most send: as many as can have enough for a frame each."""
        caps = self._caps(now.present)
        mean = self.plan.ratio or 0.001  # with a budget in bytes only the proportions matter
        ratios = allocate(weights, ratio=mean, method=self.allocator, exponent=self.plan.exponent)
        saved = np.array([self._saved.get(name, 0.0) for name in now.present]) + ratios / ratios.sum()
        holding = np.flatnonzero(ratios > 0)
        order = holding[np.argsort(-saved[holding], kind="stable")]
        most = np.full(len(order), self.size) if caps is None else most_entries(caps[order], self.size)
        quota = np.maximum(saved[order], 1e-9)
        total = self._total(now, len(holding))
        enough = quota / np.cumsum(quota) * total >= np.minimum(self.least, most)
        sending = int(np.logical_and.accumulate(enough).sum())
        counts = np.zeros(len(weights), dtype=np.int64)
        if not sending:  # the budget is saved up: here, or as bytes in the account
            self._carry += total if self.plan.ratio is not None else 0.0
            return list(counts.tolist())
        while True:
            chosen = self._divided(quota[:sending], most[:sending], now.allowance, total)
            if sending >= len(order) or not np.array_equal(chosen, most[:sending]):
                break
            sending *= 2  # they send all they may, and part of the budget is left
        counts[order[:sending]] = chosen
        if counts.any():
            saved -= counts / counts.sum()
            self._saved |= dict(zip(now.present, saved.tolist(), strict=True))
        return list(counts.tolist())

    def _total(self, now: Situation, clients: int) -> float:
        """How many entries this round's budget allows; an estimate if it is in bytes."""
        if self.plan.ratio is not None:
            total = self._carry + self.plan.ratio * clients * self.size * (1 + 1e-12) + 1e-9
            self._carry = total % 1  # with few clients it may be the whole budget
            return float(int(total))
        largest = float(self._divided(np.ones(1), np.array([self.size]), now.allowance, 0.0)[0])
        enough = self.least if largest >= self.size else 1.0  # if everything fits, a tenth less may never be enough
        return max(0.9 * largest, min(float(enough), largest))  # of one frame; several take more

    def _divided(self, quota: Array, most: Ints, allowance: int | None, total: float) -> Ints:
        """Integers in proportion to the quota, none above its `most`, that meet the round's budget."""
        if allowance is not None:
            return apportion_bytes(quota, allowance, most, self.size, self.plan.values)
        return apportion(quota, min(int(total), int(most.sum())), most, least=0)

    def _caps(self, present: Sequence[str]) -> Array | None:
        caps = self.plan.caps
        return np.array([caps.get(name, 1.0) for name in present]) if caps else None


def worth_a_frame(plan: Plan, size: int) -> int:
    """The fewest entries that keep overhead below `plan.overhead` of the frame; at most 1,024."""
    counts = np.arange(1, min(size, 1024) + 1)
    taken = payload_size(size, counts, plan.values)
    empty = 2 * int(taken[0]) - int(taken[min(1, len(taken) - 1)])
    enough = counts[(plan.overhead or 0.0) * taken >= empty]
    return int(enough[0] if len(enough) else counts[-1])


class Shares(Stateful):
    """A client's share of the bytes is in proportion to (its share of the data)^exponent, so that the budget holds."""

    compressor = "best"
    wants_norms = False

    STATE = fields(_saved=named(finite))

    def __init__(self, plan: Plan, size: int) -> None:
        self.plan, self.size = plan, size
        self.exponent = EXPONENT if plan.exponent is None else plan.exponent
        self._saved: dict[str, float] = {}

    def decide(self, now: Situation) -> list[Any]:
        assert now.allowance is not None, "plans for this method have a budget in bytes"
        weights = np.array([now.examples[name] for name in now.present])
        quota = (weights / weights.max()) ** self.exponent
        quota = quota / quota.sum() + [self._saved.get(name, 0.0) for name in now.present]
        most = np.array([most_bytes(self.plan, self.size, name) for name in now.present])
        amounts = apportion(quota, min(now.allowance, int(most.sum())), most, least=0)
        sending = amounts >= LEAST
        if sending.any() and not sending.all():
            amounts[sending] = apportion(quota[sending], min(now.allowance, int(most[sending].sum())), most[sending])
        amounts[~sending] = 0
        self._saved |= dict(zip(now.present, np.where(amounts, 0.0, quota).tolist(), strict=True))
        return list(amounts.tolist())


def most_bytes(plan: Plan, size: int, name: str) -> int:
    """The most bytes that a client sends in a round: its cap, or what a frame can use."""
    return min(max(int(plan.caps.get(name, 1.0) * 4 * size), LEAST), DENSE * size + 64)
