"""The trivial policy: the parameters follow from the allocation alone, computed anew only for those present."""

from collections.abc import Sequence
from typing import Any

from dagc.allocation import allocate, entries
from dagc.compressors import Compressor, everything
from dagc.policies.policy import Report, Setting

__all__ = ["Fixed", "Nothing"]


class Fixed:
    """An allocator's ratios or thresholds for whoever is present, so that the budget holds in every round."""

    wants_norms = False
    needs_exchange = False

    def __init__(self, setting: Setting, allocator: str, compressor: Compressor) -> None:
        """Allocate for everybody once, which refuses a bad setting before any work."""
        self.setting = setting
        self.allocator = allocator
        self.compressor = compressor
        self._last: tuple[list[int], list[Any]] = ([], [])
        self.parameters(0, range(len(setting.weights)), ())

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """As `Policy.parameters`; the round and the reports are passed over."""
        if list(present) != self._last[0]:
            self._last = list(present), self._allocate(list(present))
        return self._last[1]

    def _allocate(self, present: list[int]) -> list[Any]:
        setting = self.setting
        given = allocate(
            setting.weights[present],
            ratio=setting.ratio,
            threshold=setting.threshold,
            bytes=setting.bytes,
            method=self.allocator,
            exponent=setting.exponent,
            size=setting.size,
            values=setting.values,
        )
        if setting.threshold is not None:
            return [float(threshold) for threshold in given]
        return [int(count) for count in entries(given, setting.size)]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it has no memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class Nothing:
    """No compression: everybody sends everything."""

    wants_norms = False
    needs_exchange = False
    compressor: Compressor = staticmethod(everything)

    def __init__(self, setting: Setting) -> None:
        """No budget to keep."""

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """None for everybody."""
        return [None] * len(present)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it has no memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
