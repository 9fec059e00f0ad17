"""One threshold for all: each round's budget goes to the largest entries of all clients, weighted by their data.

The paper fixes before training how much each client sends. Here clients tell, in two or three bytes, how large their
entries are this time (`dagc.wire.outline`), and the server answers each with the number of entries to send: those above
one threshold on pˢ·|residual + gradient|, the one that meets the budget.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.compressors import Compressor, top_k
from dagc.errors import InvalidInput
from dagc.policies.frames import budget_in_entries, shared_out, worth_a_frame
from dagc.policies.policy import Report, Setting
from dagc.wire import payload_size
from dagc.wire.outline import LONGEST, ranks_within, read_outline, write_outline

__all__ = ["OneThreshold"]

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

MARGIN = 0.25
"""So many doublings below the last threshold, clients begin to tell of their entries."""


class OneThreshold:
    """The K largest entries of all clients together, by pˢ·magnitude.

    Options: `bins` (to a doubling, 4) and `overhead`, the largest part of a frame that may be no entries (1/8): with a
    budget in bytes, a client that has too few entries above the threshold to be worth a frame waits until it has more.

    Only the last threshold is kept from round to round, to tell clients from where on their entries matter. One that
    has too little there says nothing, and sends nothing.

    Attributes:
        bins: How many bins of the histogram there are to a doubling.
        least: The fewest entries that are worth a frame.
    """

    wants_norms = False
    needs_exchange = True
    compressor: Compressor = staticmethod(top_k)

    def __init__(self, setting: Setting) -> None:
        """Refuse a bad setting before any work."""
        self.setting = setting
        exponent = 2 / 3 if setting.exponent is None else setting.exponent
        self.bins = int(setting.options.get("bins", 4))
        overhead = float(setting.options.get("overhead", 0.125))
        if self.bins not in (1, 2, 4, 8, 16):
            raise InvalidInput(f"bins must be 1, 2, 4, 8 or 16, not {self.bins}")
        worth = worth_a_frame(setting, overhead)
        self.allowance = setting.bytes
        with np.errstate(divide="ignore"):
            self._weights = exponent * np.log2(setting.weights / setting.weights.max())
        caps = np.ones(len(setting.weights)) if setting.caps is None else np.asarray(setting.caps, dtype=np.float64)
        if caps.shape != setting.weights.shape or not np.all((caps > 0) & (caps <= 1)):
            raise InvalidInput("caps must hold a ratio above 0 and at most 1 for each client")
        self._most = np.where(setting.weights > 0, np.maximum(1, np.floor(caps * setting.size)), 0).astype(np.int64)
        self._threshold: float | None = None
        everybody = np.flatnonzero(setting.weights > 0).tolist()
        self._longest = LONGEST
        if setting.bytes is not None:  # an eighth of the budget for outlines, but for the smallest
            self._longest = min(LONGEST, max(4, setting.bytes // (8 * len(everybody))))
        if setting.bytes is not None and not self._affords(len(everybody)):
            raise InvalidInput(f"{setting.bytes} bytes a round are too few for {len(everybody)} clients: raise them")
        total = self._total(len(everybody))
        if total < 1:
            raise InvalidInput("the budget is too small for an entry a round: raise it")
        self._reach = min(setting.size, 2 * int(total) + 1)
        self.least = 1 if setting.bytes is None else max(1, min(int(total / 2), worth))

    def allow(self, bytes: int) -> None:
        """The next round may take so many bytes, outlines and frames together."""
        self.allowance = bytes

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """What each client would send if nobody told anything: in proportion to pˢ."""
        return _integers(self._share(np.exp2(self._weights[list(present)]), list(present), 0))

    def ask(self, present: Sequence[int]) -> list[int]:
        """The lowest bin that each client is to tell of; 0 for all if the budget is too small for that and a frame."""
        if self.setting.bytes is not None and not self._affords(len(present)):
            return [0] * len(present)
        if self._threshold is None:
            return [1] * len(present)
        own = self._threshold - MARGIN - self._weights[list(present)]
        return _integers(np.maximum(1, self._bin(np.exp2(np.clip(own, -149, 127)))))

    def tell(self, counts: Ints, floor: int) -> bytes:
        """A client's message for its histogram (`ErrorFeedback.histogram`); empty if it has too little to send."""
        if floor == 0 or counts[floor:].sum() < self.least:
            return b""
        return write_outline(counts, floor, self._reach, self._longest)

    def answer(self, present: Sequence[int], floors: Sequence[int], messages: Sequence[bytes]) -> list[int]:
        """How many entries each client is to send, of all who are present."""
        setting, here, told = self.setting, list(present), sum(map(len, messages))
        if not any(floors):
            return [0] * len(here)
        limits = self._reach, int(self._bin(np.array([np.inf]))[0]), self._longest
        outlines = [read_outline(message, floor, *limits) for message, floor in zip(messages, floors, strict=True)]
        speaking = np.array([k for k, outline in enumerate(outlines) if len(outline)], dtype=np.int64)
        if not len(speaking):
            self._threshold = None
            return _integers(self._share(np.exp2(self._weights[here]), here, told))
        points = self._points([outlines[k] for k in speaking], [floors[k] for k in speaking])
        points += self._weights[here][speaking, None]
        most = self._most[here][speaking]
        total = self._total(len(here), told) or 1.0
        while True:
            chosen, quota = self._above(points, most, total)
            every = np.zeros(len(here))
            every[speaking[chosen]] = quota
            counts = self._share(every, here, told)
            saturated = np.array_equal(counts[speaking[chosen]], most[chosen])
            if not saturated or len(chosen) == len(speaking) or setting.ratio is not None:
                return _integers(counts)
            total *= 2  # they send all they have, and there is some left

    def _above(self, points: Array, most: Ints, total: float) -> tuple[Ints, Array]:
        """Who has entries above the threshold, enough to be worth a frame, and how many."""
        chosen = np.arange(len(points))
        while True:
            self._threshold = _threshold(points[chosen], most[chosen], total)
            counts = _counts(points[chosen], most[chosen], self._threshold)
            few = np.flatnonzero(counts < min(self.least, total / 2))  # a round's budget may be less than the first's
            if not len(few) or len(chosen) == 1:
                return chosen, np.maximum(counts, 1e-9)
            # Half of those with too few wait, the lesser half: the others may get enough of what becomes free.
            waiting = few[np.argsort(counts[few], kind="stable")[: (len(few) + 1) // 2]][: len(chosen) - 1]
            sending = np.delete(chosen, waiting)
            if most[sending].sum() < total:  # they could not use it all
                return chosen, np.maximum(counts, 1e-9)
            chosen = sending

    def _affords(self, clients: int) -> bool:
        """Whether the round's budget is enough for everybody's outline and for the smallest frame."""
        smallest = payload_size(self.setting.size, 1, self.setting.values, compact=self.setting.compact)[0]
        return self.allowance is not None and self.allowance >= self._longest * clients + smallest

    def _left(self, told: int) -> int | None:
        """The bytes that are left for frames, if the budget is in bytes."""
        return None if self.allowance is None else self.allowance - told

    def _total(self, clients: int, told: int = 0) -> float:
        """How many entries the round's budget is, if it is in bytes about."""
        return budget_in_entries(self.setting, clients, self._left(told))

    def _share(self, quota: Array, present: list[int], told: int) -> Ints:
        """Integers in proportion to the quota that meet the budget."""
        return shared_out(self.setting, quota, self._most[present], len(present), self._left(told))

    def _bin(self, magnitude: Array) -> Ints:
        keys = magnitude.astype(np.float32).view(np.int32) >> (24 - self.bins.bit_length())
        return keys.astype(np.int64)

    def _points(self, outlines: list[Ints], floors: list[int]) -> Array:
        """Where about the ranks 1, 2, 4, … lie, as logarithms of magnitudes, strictly descending.

        Ranks in one bin are spread over it. Those that were not told are below the floor, and go on as the last did.
        """
        points = np.empty((len(outlines), ranks_within(self._reach) + 2))
        for row, bins, floor in zip(points, outlines, floors, strict=True):
            told = len(bins)
            starts, ends = np.searchsorted(-bins, -bins), np.searchsorted(-bins, -bins, side="right")
            row[:told] = self._log(bins + 1 - (np.arange(told) - starts + 0.5) / (ends - starts))
            last = min(3, told - 1)
            slope = max(0.1, (row[told - 1 - last] - row[told - 1]) / last if last else 0.5)
            if told < ranks_within(self._reach):
                slope = max(slope, row[told - 1] - float(self._log(np.array([floor]))[0]))
            row[told:] = row[told - 1] - slope * np.arange(1, len(row) - told + 1)
        return points

    def _log(self, places: NDArray[Any]) -> Array:
        """log2 of the magnitude at a place among the bins: exponent and linear mantissa."""
        exponents = np.floor(places / self.bins)
        return np.asarray(exponents - 127 + np.log2(1 + places / self.bins - exponents))

    def state_dict(self) -> dict[str, Any]:
        """The last threshold."""
        return {"threshold": self._threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._threshold = None if state["threshold"] is None else float(state["threshold"])


def _integers(numbers: Ints) -> list[int]:
    return [int(number) for number in numbers]


def _counts(points: Array, most: Ints, threshold: float) -> Array:
    """How many entries each client has above a threshold: between ranks that were told, along a straight line."""
    told = (points >= threshold).sum(1)
    rows = np.arange(len(points))
    upper = points[rows, np.maximum(told - 1, 0)]
    lower = points[rows, np.minimum(told, points.shape[1] - 1)]
    gap = np.where(upper > lower, upper - lower, 1.0)
    rank = np.exp2(np.maximum(told - 1, 0) + np.where(upper > lower, (upper - threshold) / gap, 0.0))
    return np.asarray(np.minimum(np.where(told > 0, rank, 0.0), most))


def _threshold(points: Array, most: Ints, total: float) -> float:
    """The threshold above which all clients together have `total` entries, or hardly more."""
    low, high = float(points.min()), float(points.max())
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _counts(points, most, middle).sum() >= total else (low, middle)
    return low
