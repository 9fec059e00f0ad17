"""ACCORDION: gentle compression while the gradients change fast, aggressive compression otherwise."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagc.allocation import allocate
from dagc.compressors import Compressor, hard_threshold, top_k
from dagc.policies.policy import Report, Setting

__all__ = ["Accordion"]


class Accordion:
    """The same parameter for all, one of two, chosen by how much the gradient norm changed.

    Every `interval` rounds the gradient norm (mean over the interval, weighted by data) is compared with that of the
    interval before: a relative change of at least `change` is a critical regime and gets the gentle parameter, anything
    else the aggressive one. The first two intervals count as critical. The two parameters are the largest and the
    smallest that DAGC would assign.

    (The DAGC paper's text has it the other way round; ACCORDION itself does this.)
    """

    wants_norms = True

    def __init__(self, setting: Setting, interval: int = 10, change: float = 0.5) -> None:
        """Find the two parameters."""
        self.weights = setting.weights
        self.interval = interval
        self.change = change
        if setting.threshold is not None:
            thresholds = allocate(setting.weights, threshold=setting.threshold, method="dagc-a")
            self.compressor: Compressor = hard_threshold
            self.gentle: Any = float(thresholds.min())
            self.aggressive: Any = float(thresholds[np.isfinite(thresholds)].max())
        else:
            budget = {"ratio": setting.ratio, "bytes": setting.bytes}
            ratios = allocate(setting.weights, **budget, method="dagc-r", size=setting.size, values=setting.values)  # type: ignore[arg-type]
            self.compressor = top_k
            self.gentle = max(1, int(ratios.max() * setting.size))
            self.aggressive = max(1, int(ratios[ratios > 0].min() * setting.size))
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
