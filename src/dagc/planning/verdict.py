"""Whether compression is worth it, in words: how many more rounds it may take before it loses what it saves."""

import math

from dagc.planning.forecast import Forecast
from dagc.report.words import brief

__all__ = ["MORE_ROUNDS", "duration", "verdict"]

MORE_ROUNDS = (2, 30)
"""How many times as many rounds as no compression: many, and the most that `dagc` took beside its rivals."""
YES, PERHAPS, NO = "Worth it", "May be worth it", "Not worth it"


def verdict(name: str, method: Forecast, dense: Forecast) -> list[str]:
    """What speaks for a method and against it, compared with no compression in equally many rounds.

    Args:
        name: The method's name.
        method: Its forecast.
        dense: The forecast without compression.

    Example:
        >>> from dagc.planning import Fleet, forecast
        >>> from dagc.policies import Plan
        >>> fleet = Fleet(parameters=7850, examples={"ann": 900, "bob": 100}, up=1e8, down=1e8, compute_seconds=30)
        >>> both = (forecast(Plan(method=name), fleet, rounds=100) for name in ("dagc", "none"))
        >>> verdict("dagc", *both)[-1]
        'Not worth it for time: dense frames take 5.0 ms of a round of 30.0 s. Worth it for bytes.'
    """
    low, high = map(float, MORE_ROUNDS)
    faster = dense.round_seconds / method.round_seconds if method.round_seconds else 1.0
    sent = max(dense.bytes_up + dense.bytes_down - method.first_download, 0.0)  # what is left for the method's rounds
    fewer = sent / dense.rounds * method.rounds / method.changes if method.changes else math.inf
    once = " (the first download happens only once)" if method.first_download or dense.first_download else ""
    whole, part = dense.round_seconds, dense.exchange_seconds
    longer = f"may take {brief(faster)} times the rounds of no compression before it takes longer, and"
    if faster < 1.05:
        longer = "takes longer with any more rounds than no compression; it may take"
    found = [
        f"A round takes {duration(whole)} without compression, {duration(part)} of it ({_percent(part, whole)}) for "
        f"the slowest client's transfers; {duration(method.round_seconds)} with {name}."
    ]
    if method.rounds == dense.rounds:  # assumed for both, so that neither is known
        found.append(
            f"{name} {longer} {brief(fewer)} times as many before it sends more{once}. In docs/studies/dagc.md "
            f"dagc took up to {high:g} times."
        )
    else:
        low = high = method.rounds / dense.rounds
        found.append(f"{name} takes {brief(high)} times the rounds of no compression here.")
    time, bytes = (_worth(gain, low, high) for gain in (faster, fewer))
    why = f"dense frames take {duration(part)} of a round of {duration(whole)}"
    if time == bytes:
        found.append(f"{time} for time and bytes{': ' + why if time != YES else ''}.")
    else:
        found.append(f"{time} for time{': ' + why if time != YES else ''}. {bytes} for bytes.")
    return found


def _worth(gain: float, low: float, high: float) -> str:
    return YES if gain > high else PERHAPS if gain > low else NO


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2g} %" if whole and part / whole < 0.0995 else f"{100 * part / (whole or 1):.0f} %"


def duration(seconds: float) -> str:
    """A number of seconds with a unit.

    Example:
        >>> [duration(seconds) for seconds in (0.00012, 0.5, 90, 600, 5400, 1e6)]
        ['0.12 ms', '0.50 s', '90.0 s', '10.0 min', '1.50 h', '11.6 days']
    """
    for unit, size, least in (("days", 86_400, 172_800), ("h", 3600, 3600), ("min", 60, 120), ("s", 1, 0.1)):
        if seconds >= least:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(1000 * seconds)} ms" if seconds else "0 s"


def _three(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 2 else f"{number:.2f}"
