"""ACCORDION: gentle compression while the gradients change fast, aggressive compression otherwise."""

import math
from typing import Any

from dagc.allocation import allocate, most_entries
from dagc.errors import InvalidInput
from dagc.policies import Method, Plan, Situation
from dagc.state import Stateful, fields, finite, flag, optional, whole

__all__ = ["METHOD", "Accordion"]


class Accordion(Stateful):
    """One of two parameters, the same for all clients, chosen by how much the gradient norm changed.

    Options: `interval`, `change`, and the parameters `gentle` and `aggressive` (ratios, or thresholds).

    Every `interval` rounds, the gradient norm (mean over the interval, weighted by data) is compared with that of the
    interval before. A relative change of at least `change` is a critical regime and gets the gentle parameter, anything
    else the aggressive one. The first two intervals count as critical. Unless given, the two parameters are the largest
    and the smallest that DAGC would assign to the clients known so far.

    (The text of the DAGC paper has this the other way round; ACCORDION itself does it like this.)
    """

    wants_norms = True
    STATE = fields(_sum=finite, _rounds=whole, _before=optional(finite), _critical=flag)

    def __init__(self, plan: Plan, size: int) -> None:
        """Start in the critical regime."""
        self.plan, self.size = plan, size
        self.absolute = plan.threshold is not None
        self.interval = int(plan.options.get("interval", 10))
        self.change = float(plan.options.get("change", 0.5))
        if self.interval < 1 or not self.change > 0:
            raise InvalidInput(f"accordion needs interval ≥ 1 and change > 0, not {self.interval} and {self.change}")
        for name in ("gentle", "aggressive"):
            bound = plan.options.get(name, 1.0)
            if not 0 < bound < math.inf or (not self.absolute and bound > 1):
                kind = "threshold" if self.absolute else "ratio"
                raise InvalidInput(f"accordion's option {name} is {bound}: it must be a {kind} above 0")
        self.compressor = "hard-threshold" if self.absolute else "top-k"
        self._known: list[float] = []
        self._bounds: tuple[float, float] = (0.0, 0.0)
        self._sum, self._rounds = 0.0, 0
        self._before: float | None = None
        self._critical = True

    def decide(self, now: Situation) -> list[Any]:
        """As `Policy.decide`."""
        self._update_regime(now)
        gentle, aggressive = self.bounds(now)
        level = gentle if self._critical else aggressive
        if self.absolute:
            return [level] * len(now.present)
        levels = [min(level, self.plan.caps.get(name, 1.0)) for name in now.present]
        return [max(1, int(count)) for count in most_entries(levels, self.size)]

    def bounds(self, now: Situation) -> tuple[float, float]:
        """The gentle and the aggressive parameter, for the clients known so far."""
        weights = [weight for weight in now.examples.values() if weight > 0]
        if weights != self._known:
            plan = self.plan
            method = "dagc-a" if self.absolute else "dagc-r"
            given = allocate(weights, ratio=plan.ratio, threshold=plan.threshold, method=method)
            low, high = float(given.min()), float(given.max())
            gentle, aggressive = (low, high) if self.absolute else (high, low)
            options = plan.options
            self._bounds = float(options.get("gentle", gentle)), float(options.get("aggressive", aggressive))
            self._known = weights
        return self._bounds

    def _update_regime(self, now: Situation) -> None:
        """Compare the norms of an interval with those of the interval before."""
        norms = [(report.norm, now.examples[report.client]) for report in now.reports if report.norm is not None]
        if any(weight for _, weight in norms):
            self._sum += float(sum(norm * weight for norm, weight in norms) / sum(weight for _, weight in norms))
            self._rounds += 1
        if self._rounds == self.interval:
            mean = self._sum / self.interval
            if self._before is not None:
                self._critical = abs(mean - self._before) >= self.change * self._before
            self._before, self._sum, self._rounds = mean, 0.0, 0


METHOD = Method(
    ("ratio", "threshold"),
    Accordion,
    ("interval", "change", "gentle", "aggressive"),
    about="one of two levels for everybody, by how fast the gradient norm changes; keeps to no budget",
)
