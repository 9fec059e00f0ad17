"""ACCORDION: gentle compression while the gradients change fast, aggressive compression otherwise."""

import math
from collections.abc import Sequence
from typing import Any

from dagc.allocation import allocate
from dagc.compressors import Compressor, hard_threshold, top_k
from dagc.errors import InvalidInput
from dagc.policies.policy import Report, Setting

__all__ = ["Accordion"]


class Accordion:
    """The same parameter for all, one of two, chosen by how much the gradient norm changed.

    Options: `interval`, `change`, and the parameters `gentle` and `aggressive` (ratios, or thresholds).

    Every `interval` rounds the gradient norm (mean over the interval, weighted by data) is compared with that of the
    interval before: a relative change of at least `change` is a critical regime and gets the gentle parameter, anything
    else the aggressive one. The first two intervals count as critical. The two parameters are the largest and the
    smallest that DAGC would assign, unless given.

    (The DAGC paper's text has it the other way round; ACCORDION itself does this.)
    """

    wants_norms = True
    needs_exchange = False

    def __init__(self, setting: Setting) -> None:
        """Find the two parameters."""
        self.weights = setting.weights
        self.interval = int(setting.options.get("interval", 10))
        self.change = float(setting.options.get("change", 0.5))
        if self.interval < 1 or not self.change > 0:
            raise InvalidInput(f"accordion needs interval ≥ 1 and change > 0, not {self.interval} and {self.change}")
        absolute = setting.threshold is not None
        given = allocate(
            setting.weights,
            ratio=setting.ratio,
            bytes=setting.bytes,
            threshold=setting.threshold,
            method="dagc-a" if absolute else "dagc-r",
            size=setting.size,
            values=setting.values,
            compact=setting.compact,
        )
        bounds = float(given[setting.weights > 0].min()), float(given[setting.weights > 0].max())
        gentle = float(setting.options.get("gentle", min(bounds) if absolute else max(bounds)))
        aggressive = float(setting.options.get("aggressive", max(bounds) if absolute else min(bounds)))
        if not 0 < min(gentle, aggressive) < math.inf or (not absolute and max(gentle, aggressive) > 1):
            raise InvalidInput(
                f"accordion's bounds must be ratios or thresholds above 0, not {gentle} and {aggressive}"
            )
        self.compressor: Compressor = hard_threshold if absolute else top_k
        self.gentle: Any = gentle if absolute else max(1, int(gentle * setting.size))
        self.aggressive: Any = aggressive if absolute else max(1, int(aggressive * setting.size))
        self._sum, self._rounds = 0.0, 0
        self._before: float | None = None
        self._critical = True

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """As `Policy.parameters`."""
        norms = [(report.norm, self.weights[report.client]) for report in reports if report.norm is not None]
        if norms:
            self._sum += float(sum(norm * weight for norm, weight in norms) / sum(weight for _, weight in norms))
            self._rounds += 1
        if self._rounds == self.interval:
            now = self._sum / self.interval
            if self._before is not None:
                self._critical = abs(now - self._before) >= self.change * self._before
            self._before, self._sum, self._rounds = now, 0.0, 0
        return [self.gentle if self._critical else self.aggressive] * len(present)

    def state_dict(self) -> dict[str, Any]:
        """The norms so far and the regime."""
        return {"sum": self._sum, "rounds": self._rounds, "before": self._before, "critical": self._critical}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._sum, self._rounds = float(state["sum"]), int(state["rounds"])
        self._before = None if state["before"] is None else float(state["before"])
        self._critical = bool(state["critical"])
