"""Schedules of a rate: a function of the round alone, so there is no state to save."""

from math import cos, pi

__all__ = ["SCHEDULES", "rate_at"]

SCHEDULES = ("constant", "linear", "cosine")
"""The names of schedules."""


def rate_at(schedule: str, first: float, round: int, rounds: int) -> float:
    """The rate in a round, counted from 0. The first has the full rate; linear and cosine end just above 0.

    Example:
        >>> [rate_at("linear", 0.4, round, 4) for round in range(4)]
        [0.4, 0.30000000000000004, 0.2, 0.1]
        >>> [round(rate_at("cosine", 0.4, t, 4), 3) for t in range(4)]
        [0.4, 0.341, 0.2, 0.059]
    """
    done = round / rounds
    if schedule == "linear":
        return first * (1 - done)
    return first * (1 + cos(pi * done)) / 2 if schedule == "cosine" else first
