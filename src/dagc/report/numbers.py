"""Statistics over the seeds of a series: means, spreads, curves, and when a score was reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from dagc.folder import BEST, FINAL, SCORE
from dagc.report.panels import Panel, Series
from dagc.report.runs import Run
from dagc.text import Spread

__all__ = [
    "AMOUNTS",
    "BYTES",
    "Reached",
    "Spread",
    "curve",
    "difference",
    "final",
    "part_sent",
    "reached",
    "spread",
    "targets",
]

BYTES = ("bytes_up", "bytes_down", "bytes_total")
"""How bytes are counted: up, down, and in total."""
AMOUNTS = ("rounds", *BYTES, "seconds")
"""What it takes to reach a score."""


@dataclass(frozen=True)
class Reached:
    """When a series first reached a score: means over the seeds, only if all of them did.

    Attributes:
        score: The score in question.
        seeds: How many of the seeds reached it.
        of: How many seeds there are.
        rounds: Rounds until then.
        bytes_up: Bytes uploaded until then.
        bytes_down: Bytes downloaded until then.
        bytes_total: Both together.
        seconds: Seconds on the network's clock until then.
    """

    score: float
    seeds: int
    of: int
    rounds: Spread | None = None
    bytes_up: Spread | None = None
    bytes_down: Spread | None = None
    bytes_total: Spread | None = None
    seconds: Spread | None = None


def spread(numbers: Sequence[float]) -> Spread:
    """The mean and the standard deviation.

    Example:
        >>> spread([1.0, 3.0]).mean, spread([1.0, math.nan])
        (2.0, Spread(mean=nan, sd=None))
    """
    if not all(map(math.isfinite, numbers)):
        return Spread(math.nan, None)
    return Spread(mean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def final(series: Series, name: str = FINAL) -> Spread:
    """A number from the runs' results; `bytes_total` is up and down together."""
    return spread([(_bytes(run.result) if name in BYTES else run.result)[name] for run in series.runs])


def targets(panel: Panel) -> tuple[float, ...]:
    """The panel's own targets; without any, the highest whole percent that all runs reached, diverged ones aside."""
    valid = [series for series in panel.series if math.isfinite(final(series).mean)]
    best = [run.result[BEST] for series in valid for run in series.runs]
    return panel.targets or (math.floor(100 * min(best, default=0.0)) / 100,)


def reached(series: Series, score: float) -> Reached:
    """When the series reached a score."""
    rows = [row for row in (_first(run, score) for run in series.runs) if row is not None]
    if len(rows) < len(series.runs):
        return Reached(score, len(rows), len(series.runs))
    amounts = [{**row, **_bytes(row), "rounds": row["round"]} for row in rows]
    means = {name: spread([each[name] for each in amounts]) for name in AMOUNTS}
    return Reached(score, len(rows), len(rows), **means)


def curve(series: Series) -> dict[str, list[float]]:
    """The evaluations that all seeds have: rounds, bytes, seconds, and the mean and the range of the score."""
    by_round = [{row["round"]: row for row in run.rows if math.isfinite(row[SCORE])} for run in series.runs]
    rounds = [number for number in by_round[0] if all(number in rows for rows in by_round)]
    together = [[rows[number] for rows in by_round] for number in rounds]
    scores = [[row[SCORE] for row in rows] for rows in together]
    return {
        "rounds": [float(number) for number in rounds],
        **{name: [mean(_bytes(row)[name] for row in rows) for rows in together] for name in BYTES},
        "seconds": [mean(row["seconds"] for row in rows) for rows in together],
        "mean": [mean(values) for values in scores],
        "low": [min(values) for values in scores],
        "high": [max(values) for values in scores],
    }


def difference(series: Series, other: Series, score: float | None = None) -> Spread:
    """By how much one series ends above another or, with a score, how many more bytes it takes to reach it.

    It is measured seed by seed, because with the same seed both had the same data. Without shared seeds, or with
    several runs of one seed, it is the difference of the means.
    """
    numbers = [[_compared(each, run, score) for run in each.runs] for each in (series, other)]
    mine, theirs = (
        {run.seed: number for run, number in zip(each.runs, some, strict=True)}
        for each, some in zip((series, other), numbers, strict=True)
    )
    shared = mine.keys() & theirs.keys()
    if shared and (len(mine), len(theirs)) == (len(series.runs), len(other.runs)):
        return spread([mine[seed] - theirs[seed] for seed in sorted(shared)])
    first, second = map(spread, numbers)
    sd = None if first.sd is None or second.sd is None else math.hypot(first.sd, second.sd)
    return Spread(first.mean - second.mean, sd)


def part_sent(series: Series) -> float:
    """The mean fraction of the model's entries that a client uploaded in a round, counting all clients."""
    parts: list[float] = [
        run.result["entries_sent"] / (run.result["rounds"] * len(run.clients["sizes"]) * run.clients["parameters"])
        for run in series.runs
    ]
    return mean(parts)


def _first(run: Run, score: float) -> dict[str, Any] | None:
    return next((row for row in run.rows if row[SCORE] >= score), None)


def _bytes(row: dict[str, Any]) -> dict[str, float]:
    """The bytes so far."""
    up, down = float(row["bytes_up"]), float(row["bytes_down"])
    return {"bytes_up": up, "bytes_down": down, "bytes_total": up + down}


def _compared(series: Series, run: Run, score: float | None) -> float:
    """What `difference` compares: the final score, or the bytes to a score; NaN if it was not reached."""
    if score is None:
        return float(run.result[FINAL])
    row = _first(run, score)
    return math.nan if row is None else _bytes(row)["bytes_total"]
