"""Statistics over the seeds of a series: means, spreads, curves, and when an accuracy was reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from dagc.report.panels import Panel, Series
from dagc.report.runs import Run

__all__ = [
    "BYTES",
    "Reached",
    "Spread",
    "curve",
    "difference",
    "final",
    "in_bytes",
    "on_shared_seeds",
    "part_sent",
    "reached",
    "spread",
    "targets",
]

BYTES = ("bytes_up", "bytes_down", "bytes_total")
"""How bytes are counted: up, down, and in total."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation between them, if there are two or more.

    The mean is NaN if one of the numbers is.
    """

    mean: float
    sd: float | None


@dataclass(frozen=True)
class Reached:
    """When a series first reached an accuracy: means over the seeds, only if all of them did.

    Attributes:
        accuracy: The accuracy in question.
        seeds: How many of the seeds reached it.
        of: How many seeds there are.
        rounds: Rounds until then.
        bytes_up: Bytes uploaded until then.
        bytes_down: Bytes downloaded until then.
        bytes_total: Both together.
        seconds: Seconds on the network's clock until then.
    """

    accuracy: float
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


def final(series: Series, name: str = "final_accuracy") -> Spread:
    """A number from the runs' results; `bytes_total` is up and down together."""
    if name in BYTES:
        return spread([_bytes(run.result)[name] for run in series.runs])
    return spread([run.result[name] for run in series.runs])


def targets(panel: Panel) -> tuple[float, ...]:
    """The panel's own targets; without any, the highest whole percent that all runs reached, diverged ones aside."""
    valid = [series for series in panel.series if math.isfinite(final(series).mean)]
    best = [run.result["best_accuracy"] for series in valid for run in series.runs]
    return panel.targets or (math.floor(100 * min(best, default=0.0)) / 100,)


def reached(series: Series, accuracy: float) -> Reached:
    """When the series reached an accuracy."""
    there = [row for row in (_first(run, accuracy) for run in series.runs) if row is not None]
    if len(there) < len(series.runs):
        return Reached(accuracy, len(there), len(series.runs))
    counted = [_bytes(row) for row in there]
    return Reached(
        accuracy,
        len(there),
        len(there),
        rounds=spread([row["round"] for row in there]),
        bytes_up=spread([count["bytes_up"] for count in counted]),
        bytes_down=spread([count["bytes_down"] for count in counted]),
        bytes_total=spread([count["bytes_total"] for count in counted]),
        seconds=spread([row["seconds"] for row in there]),
    )


def curve(series: Series) -> dict[str, list[float]]:
    """The evaluations that all seeds have: rounds, bytes, seconds, and the mean and the range of the accuracy."""
    by_round = [{row["round"]: row for row in run.rows if math.isfinite(row["accuracy"])} for run in series.runs]
    rounds = [number for number in by_round[0] if all(number in rows for rows in by_round)]
    together = [[rows[number] for rows in by_round] for number in rounds]
    accuracies = [[row["accuracy"] for row in rows] for rows in together]
    counted = [[_bytes(row) for row in rows] for rows in together]
    return {
        "rounds": [float(number) for number in rounds],
        **{name: [mean(count[name] for count in counts) for counts in counted] for name in BYTES},
        "seconds": [mean(row["seconds"] for row in rows) for rows in together],
        "mean": [mean(values) for values in accuracies],
        "low": [min(values) for values in accuracies],
        "high": [max(values) for values in accuracies],
    }


def on_shared_seeds(*series: Series) -> tuple[Series, ...]:
    """With the runs of the seeds that all of them have."""
    shared = set.intersection(*({run.seed for run in one.runs} for one in series))
    return tuple(replace(one, runs=tuple(run for run in one.runs if run.seed in shared)) for one in series)


def difference(one: Series, other: Series, accuracy: float | None = None) -> Spread:
    """By how much one series ends above another or, with an accuracy, how many more bytes it takes to reach it.

    It is measured seed by seed, because with the same seed both had the same data. Without shared seeds, or with
    several runs of one seed, it is the difference of the means.
    """
    numbers = [[_compared(series, run, accuracy) for run in series.runs] for series in (one, other)]
    mine, theirs = (
        {run.seed: number for run, number in zip(series.runs, some, strict=True)}
        for series, some in zip((one, other), numbers, strict=True)
    )
    shared = mine.keys() & theirs.keys()
    if shared and (len(mine), len(theirs)) == (len(one.runs), len(other.runs)):
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


def in_bytes(count: float) -> str:
    """A number of bytes with a unit.

    Example:
        >>> in_bytes(999), in_bytes(314_150), in_bytes(999_700)
        ('999 B', '314 kB', '1.00 MB')
    """
    count = float(f"{count:.3g}")  # before the unit is chosen: 999.7 kB are 1.00 MB
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.{max(0, 2 - int(math.log10(count / size)))}f} {unit}"
    return f"{count:,.0f} B"


def _first(run: Run, accuracy: float) -> dict[str, Any] | None:
    return next((row for row in run.rows if row["accuracy"] >= accuracy), None)


def _bytes(row: dict[str, Any]) -> dict[str, float]:
    """The bytes so far."""
    up, down = float(row["bytes_up"]), float(row["bytes_down"])
    return {"bytes_up": up, "bytes_down": down, "bytes_total": up + down}


def _compared(series: Series, run: Run, accuracy: float | None) -> float:
    """What `difference` compares: the final accuracy, or the bytes to an accuracy; NaN if it was not reached."""
    if accuracy is None:
        return float(run.result["final_accuracy"])
    row = _first(run, accuracy)
    return math.nan if row is None else _bytes(row)["bytes_total"]
