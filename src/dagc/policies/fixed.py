"""The trivial policy: the parameters follow from the allocation alone, computed anew only for those present."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagc.allocation import allocate, entries
from dagc.compressors import Compressor, everything
from dagc.errors import InvalidInput
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
        self.allowance = setting.bytes
        self._last: tuple[tuple[list[int], int | None], list[Any]] = (([], None), [])
        self.parameters(0, range(len(setting.weights)), ())

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """As `Policy.parameters`; the round and the reports are passed over."""
        if (list(present), self.allowance) != self._last[0]:
            try:
                given = self._allocate(list(present))
            except InvalidInput:
                if self.allowance == self.setting.bytes:
                    raise
                given = [0] * len(present)  # a rate allows too little for now: it goes to later rounds
            self._last = (list(present), self.allowance), given
        return self._last[1]

    def allow(self, bytes: int) -> None:
        """The next round may take so many bytes."""
        self.allowance = bytes

    def _allocate(self, present: list[int]) -> list[Any]:
        setting = self.setting
        given = allocate(
            setting.weights[present],
            ratio=setting.ratio,
            threshold=setting.threshold,
            bytes=self.allowance,
            method=self.allocator,
            exponent=setting.exponent,
            size=setting.size,
            values=setting.values,
            compact=setting.compact,
            caps=None if setting.caps is None else np.asarray(setting.caps)[present],
        )
        if setting.threshold is not None:
            return [float(threshold) for threshold in given]
        caps = None if setting.caps is None else np.asarray(setting.caps)[present]
        return [int(count) for count in entries(given, setting.size, caps=caps)]

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
