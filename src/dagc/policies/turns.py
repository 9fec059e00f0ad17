"""Taking turns: clients save up their part of the budget, so that a frame is worth its header."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.allocation import allocate
from dagc.compressors import Compressor
from dagc.errors import InvalidInput
from dagc.policies.frames import budget_in_entries, shared_out, worth_a_frame
from dagc.policies.policy import Report, Setting

__all__ = ["Turns"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Turns:
    """An allocator's parts of the budget, but clients save up and only those send that have saved most.

    Options, one of two: with `turns`, in each round that many times fewer clients send; with `overhead`, as many as
    have enough for a frame of which no more than this part is something else than entries.

    Error feedback keeps what waits. Fewer and larger frames spend less on headers, and on each index: where frames are
    small, that gains more than waiting loses.
    """

    wants_norms = False
    needs_exchange = False

    def __init__(self, setting: Setting, allocator: str, compressor: Compressor) -> None:
        """Nobody has saved up anything yet."""
        self.setting = setting
        self.allocator = allocator
        self.compressor = compressor
        if len(setting.options) != 1:
            raise InvalidInput("turns and overhead are two ways to say who waits: give one of them")
        self.turns = float(setting.options.get("turns", 1))
        if not 1 <= self.turns <= 1000:
            raise InvalidInput(f"turns must be from 1 to 1000 rounds, not {self.turns:g}")
        overhead = setting.options.get("overhead")
        self.least = 0 if overhead is None else worth_a_frame(setting, float(overhead))
        self.allowance = setting.bytes
        self._round, self._before = -1, np.zeros(len(setting.weights))
        self._saved = self._before
        if not sum(self._counts(np.flatnonzero(setting.weights > 0), self._before)[0]):
            raise InvalidInput("the budget is too small for an entry a round: raise it")

    def allow(self, bytes: int) -> None:
        """The next round may take so many bytes."""
        self.allowance = bytes

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """As `Policy.parameters`; asked again in the same round, it answers as if for the first time."""
        if round != self._round:
            self._round, self._before = round, self._saved
        counts, self._saved = self._counts(np.array(present, dtype=np.int64), self._before)
        return [int(count) for count in counts]

    def _counts(self, here: Ints, before: Array) -> tuple[Ints, Array]:
        """How many entries each sends, and what everybody has saved up then."""
        setting = self.setting
        caps = None if setting.caps is None else np.asarray(setting.caps)[here]
        ratios = allocate(setting.weights[here], ratio=setting.ratio or 0.001, method=self.allocator, caps=caps)
        saved = before.copy()
        saved[here] += ratios / ratios.sum()
        holding = np.flatnonzero(ratios > 0)
        order = holding[np.argsort(-saved[here[holding]], kind="stable")]
        most = np.full(len(order), setting.size) if caps is None else (caps[order] * setting.size).astype(np.int64)
        quota = np.maximum(saved[here[order]], 1e-9)
        sending = self._sending(quota)
        while True:
            chosen = shared_out(setting, quota[:sending], most[:sending], len(holding), self.allowance)
            if not self.least or sending >= len(order) or not np.array_equal(chosen, most[:sending]):
                break
            sending *= 2  # they send all they have, and there is some left
        counts = np.zeros(len(here), dtype=np.int64)
        counts[order[:sending]] = chosen
        if not counts.any():
            return counts, before
        saved[here] -= counts / counts.sum()
        return counts, saved

    def _sending(self, saved: Array) -> int:
        """How many clients send, if these are their savings, the largest first."""
        if not self.least:
            return int(np.ceil(len(saved) / self.turns))
        total = budget_in_entries(self.setting, len(saved), self.allowance)
        share = saved / np.cumsum(saved)  # of the last one, if so many send
        return max(1, int(np.count_nonzero(share * total >= self.least)))

    def state_dict(self) -> dict[str, Any]:
        """What each client has saved up."""
        return {"saved": self._saved.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._round, self._saved = -1, np.array(state["saved"], dtype=np.float64)
