"""Budgets over time: how much may have been sent by now. What one round does not use, later rounds may."""

import re
from typing import Literal, NamedTuple

from dagc.errors import InvalidInput, shown
from dagc.settings import UNITS
from dagc.state import Stateful, fields, finite, whole

MOST_BYTES = 1 << 48
"""The largest budget in bytes: far above any real one, and small enough that sums of budgets stay exact."""
SAVED_ROUNDS, SAVED_BYTES = 16, 1024
"""What is not spent is saved for later, up to this many rounds' worth, or this many bytes if those are more. Without a
bound, one order could spend what many rounds have left."""


class Rate(NamedTuple):
    """Bytes per client, for the whole training or per hour."""

    bytes: float
    per: Literal["training", "hour"]


def make_rate(text: str) -> Rate:
    """Parse a rate such as `200 kB/training` or `1.5 MB/hour`.

    Example:
        >>> make_rate("1.5 MB/hour")
        Rate(bytes=1500000.0, per='hour')
    """
    try:
        match = re.fullmatch(r"\s*([0-9.]+)\s*([kMG]?B)?\s*/\s*(training|hour)\s*", str(text))
        if match is None:
            raise ValueError
        rate = Rate(float(match[1]) * UNITS[match[2] or "B"], match[3])  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(
            f"rate is {shown(text)}: write bytes per client, like 200 kB/training or 1.5 MB/hour "
            "(for bytes per round, use the setting bytes)"
        ) from None
    if not 1 <= rate.bytes <= MOST_BYTES:
        raise InvalidInput(f"rate is {shown(text)}: it must be at least 1 byte and at most 2^48")
    return rate


class Account(Stateful):
    """What has been earned and spent of a budget in bytes. It never goes below 0.

    Every client that takes part in a round earns its share: bytes per round, or a rate over time, or both. What all
    clients together may spend in a round, `Account.balance`, is bounded. The most that an order may cost is spent when
    it is given: an upload that never arrives may still have been sent. What an upload did not use is refunded.

    Example:
        >>> account = Account(bytes=20)
        >>> account.earn(clients=3)
        >>> account.spend(45)
        >>> account.earn(clients=3)
        >>> account.balance
        75
    """

    FITS = "this budget"
    STATE = fields(_by_round=finite, _by_rate=finite, _seconds=finite, _begun=whole, _earned=finite)

    def __init__(self, bytes: float | None = None, rate: Rate | None = None, rounds: int | None = None) -> None:
        if rate is not None and rate.per == "training" and rounds is None:
            raise InvalidInput("a rate per training needs rounds, the number of rounds of the training")
        self.bytes, self.rate, self.rounds = bytes, rate, rounds
        self._by_round, self._by_rate, self._seconds = 0.0, 0.0, 0.0
        self._begun, self._earned = 0, 0.0  # rounds so far, and the part of a training's budget that they have earned

    def earn(self, clients: float, seconds: float = 0.0) -> None:
        """Start a round with this number of clients, this many seconds after the start of the training."""
        if self.bytes is not None:
            self._by_round = _saved(self._by_round, self.bytes * clients)
        if self.rate is not None and self.rate.per == "training":  # this round's part: what is left by the rounds left
            part = (1 - self._earned) / max(1, (self.rounds or 1) - self._begun)
            self._begun, self._earned = self._begun + 1, self._earned + part
            self._by_rate = _saved(self._by_rate, self.rate.bytes * part * clients)
        elif self.rate is not None:
            self._by_rate += self.rate.bytes * ((seconds - self._seconds) / 3600) * clients
        if self.rate is not None:
            self._seconds = seconds

    def spend(self, bytes: int) -> None:
        """Record bytes that are sent, or may be; a negative number refunds bytes that were not."""
        self._by_round -= bytes
        self._by_rate -= bytes

    @property
    def balance(self) -> int:
        """What may be spent now."""
        left = [self._by_round] * (self.bytes is not None) + [self._by_rate] * (self.rate is not None)
        return max(0, int(min(left) + 1e-6))

    def wait(self, clients: int, seconds: float) -> float:
        """Seconds until a round with these clients can afford its usual bytes; 0 if the budget is not per hour."""
        if self.rate is None or self.rate.per != "hour" or self.bytes is None:
            return 0.0
        missing = self.bytes * clients - self._by_rate
        return max(0.0, self._seconds + missing / (self.rate.bytes * clients) * 3600 - seconds)


def _saved(before: float, earned: float) -> float:
    return min(before + earned, max(SAVED_ROUNDS * earned, SAVED_BYTES))
