"""A budget as a rate: what may be sent by when, all rounds together. What a round leaves, later ones may use."""

import re
from typing import Literal, NamedTuple

from dagc.errors import InvalidInput

__all__ = ["Rate", "make_rate"]

_UNITS = {"": 1, "B": 1, "kB": 1000, "MB": 10**6, "GB": 10**9}


class Rate(NamedTuple):
    """So many bytes per round, per hour of the network's clock, or for the whole training.

    Attributes:
        bytes: How many.
        per: For which time.
        shape: For a training: the first part t of the rounds may take t^shape of the bytes. Below 1 more is sent early,
            above 1 late.
    """

    bytes: float
    per: Literal["round", "hour", "training"]
    shape: float = 1.0

    def usual(self, rounds: int) -> int | None:
        """The bytes of a usual round; an hour does not say."""
        return {"round": int(self.bytes), "hour": None, "training": int(self.bytes / rounds)}[self.per]

    def allowed(self, round: int, rounds: int, seconds: float) -> int:
        """How many bytes may have been sent once this round (from 0) is over, if it begins at `seconds`.

        Example:
            >>> make_rate("2 kB/training^2").allowed(49, 100, 0.0), make_rate("640/round").allowed(1, 100, 0.0)
            (500, 1280)
        """
        if self.per == "round":
            return int(self.bytes * (round + 1))
        if self.per == "hour":
            return int(self.bytes * seconds / 3600 + 1e-6)
        return int(self.bytes * ((round + 1) / rounds) ** self.shape)

    def wait(self, bytes: int, seconds: float) -> float:
        """How long until so many bytes may have been sent; 0 for a rate that is not of time."""
        return max(0.0, bytes / self.bytes * 3600 - seconds) if self.per == "hour" else 0.0


def make_rate(text: str) -> Rate:
    """A rate as a text says: `640/round`, `1.5 MB/hour`, `2 MB/training`, `2 MB/training^0.5`.

    Example:
        >>> make_rate("1.5 MB/hour")
        Rate(bytes=1500000.0, per='hour', shape=1.0)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kMG]?B)?\s*/\s*(round|hour|training)(?:\^([0-9.]+))?\s*", text)
    try:
        if found is None or (found[4] and found[3] != "training"):
            raise ValueError
        rate = Rate(float(found[1]) * _UNITS[found[2] or ""], found[3], float(found[4] or 1))  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(
            f"a rate is written like 640/round, 1.5 MB/hour, 2 MB/training or 2 MB/training^0.5, not {text!r}"
        ) from None
    if not rate.bytes >= 1 or not 0.1 <= rate.shape <= 10:
        raise InvalidInput(f"a rate needs at least 1 byte, and a power from 0.1 to 10, not {text!r}")
    return rate
