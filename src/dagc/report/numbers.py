"""What the seeds of a series say together: means, spreads, curves, and when an accuracy was reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from dagc.report.panels import Panel, Series
from dagc.report.runs import Run

__all__ = ["Reached", "Spread", "curve", "difference", "final", "in_bytes", "reached", "spread", "targets"]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation between them, if there are two or more.

    The mean is NaN if one of the numbers is.
    """

    mean: float
    sd: float | None


@dataclass(frozen=True)
class Reached:
    """When a series first evaluated at an accuracy or above: means over the seeds, only if all of them did.

    Attributes:
        accuracy: The accuracy in question.
        seeds: How many of the seeds reached it.
        of: How many seeds there are.
        rounds: Rounds until then.
        bytes_up: Bytes uploaded until then.
        bytes_down: Bytes downloaded until then.
        bytes_total: Both together.
        seconds: Of the network's clock until then; None if the bytes are those of a formula.
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
    """A number of the runs' results; `bytes_up` is counted as the series says."""
    if name == "bytes_up" and series.bytes_per_entry is not None:
        return spread([_bytes_up(series, run.rows[-1]) for run in series.runs])
    return spread([run.result[name] for run in series.runs])


def targets(panel: Panel) -> tuple[float, ...]:
    """The panel's own or, without any, the highest whole percent that every series ended at."""
    ends = [end for end in (final(series).mean for series in panel.series) if math.isfinite(end)]
    return panel.targets or (math.floor(100 * min(ends, default=0.0)) / 100,)


def reached(series: Series, accuracy: float) -> Reached:
    """When the series reached an accuracy."""
    there = [row for row in (_first(run, accuracy) for run in series.runs) if row is not None]
    if len(there) < len(series.runs):
        return Reached(accuracy, len(there), len(series.runs))
    up, down = [_bytes_up(series, row) for row in there], [float(row["bytes_down"]) for row in there]
    return Reached(
        accuracy,
        len(there),
        len(there),
        rounds=spread([row["round"] for row in there]),
        bytes_up=spread(up),
        bytes_down=spread(down),
        bytes_total=spread([one + other for one, other in zip(up, down, strict=True)]),
        seconds=None if series.bytes_per_entry else spread([row["seconds"] for row in there]),
    )


def curve(series: Series) -> dict[str, list[float]]:
    """The evaluations that all seeds have: `x` by rounds, bytes and seconds, and the accuracy's mean and range."""
    by_round = [{row["round"]: row for row in run.rows if math.isfinite(row["accuracy"])} for run in series.runs]
    rounds = [number for number in by_round[0] if all(number in rows for rows in by_round)]
    together = [[rows[number] for rows in by_round] for number in rounds]
    accuracies = [[row["accuracy"] for row in rows] for rows in together]
    return {
        "rounds": [float(number) for number in rounds],
        "bytes": [mean(_bytes_up(series, row) for row in rows) for rows in together],
        "seconds": [] if series.bytes_per_entry else [mean(row["seconds"] for row in rows) for rows in together],
        "mean": [mean(values) for values in accuracies],
        "low": [min(values) for values in accuracies],
        "high": [max(values) for values in accuracies],
    }


def difference(one: Series, other: Series) -> Spread:
    """By how much one ends above another, seed by seed: with the same seed both had the same data."""
    ends = {run.seed: run.result["final_accuracy"] for run in other.runs}
    pairs = [run.result["final_accuracy"] - ends[run.seed] for run in one.runs if run.seed in ends]
    return spread(pairs) if pairs else Spread(final(one).mean - final(other).mean, None)


def in_bytes(count: float) -> str:
    """As people write it.

    Example:
        >>> in_bytes(999), in_bytes(314_150), in_bytes(5_100_000)
        ('999 B', '314 kB', '5.10 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.{max(0, 2 - int(math.log10(count / size)))}f} {unit}"
    return f"{count:,.0f} B"


def _first(run: Run, accuracy: float) -> dict[str, Any] | None:
    return next((row for row in run.rows if row["accuracy"] >= accuracy), None)


def _bytes_up(series: Series, row: dict[str, Any]) -> float:
    if series.bytes_per_entry is not None:
        return float(series.bytes_per_entry * row["entries_sent"])
    return float(row["bytes_up"])
