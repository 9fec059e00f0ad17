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

BYTES = ("bytes_up", "bytes_down", "bytes_total")  # how bytes are counted: up, down, and in total
AMOUNTS = ("rounds", *BYTES, "seconds")  # what it takes to reach a score


@dataclass(frozen=True)
class Reached:
    """When a series first reached a score, and how many of its seeds did: means, only if all of them did."""

    score: float
    seeds: int
    of: int
    rounds: Spread | None = None
    bytes_up: Spread | None = None
    bytes_down: Spread | None = None
    bytes_total: Spread | None = None
    seconds: Spread | None = None


def spread(numbers: Sequence[float]) -> Spread:
    """The mean and the standard deviation; NaN if a number is."""
    if not all(map(math.isfinite, numbers)):
        return Spread(math.nan, None)
    return Spread(mean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def final(series: Series, name: str = FINAL) -> Spread:
    """A number from the runs' results; `bytes_total` is up and down together."""
    return spread([(_amounts(run.result) if name in BYTES else run.result)[name] for run in series.runs])


def targets(panel: Panel) -> tuple[float, ...]:
    """The panel's own targets; without any, the highest whole percent that all runs reached, diverged ones aside."""
    valid = [series for series in panel.series if math.isfinite(final(series).mean)]
    best = [run.result[BEST] for series in valid for run in series.runs]
    return panel.targets or (math.floor(100 * min(best, default=0.0)) / 100,)


def reached(series: Series, score: float) -> Reached:
    """When the series reached a score."""
    rows = [row for row in (_first(run, score) for run in series.runs) if row is not None]
    counts = (score, len(rows), len(series.runs))
    if len(rows) < len(series.runs):
        return Reached(*counts)
    return Reached(*counts, *(spread([row[name] for row in rows]) for name in AMOUNTS))


def curve(series: Series) -> dict[str, list[float]]:
    """The evaluations that all seeds have: rounds, bytes, seconds, and the mean and the range of the score."""
    by_round = [{row["round"]: _amounts(row) for row in run.rows if math.isfinite(row[SCORE])} for run in series.runs]
    rounds = [number for number in by_round[0] if all(number in rows for rows in by_round)]
    together = [[rows[number] for rows in by_round] for number in rounds]
    scores = [[row[SCORE] for row in rows] for rows in together]
    return {
        "rounds": [float(number) for number in rounds],
        **{name: [mean(row[name] for row in rows) for rows in together] for name in (*BYTES, "seconds")},
        "mean": [mean(values) for values in scores],
        "low": [min(values) for values in scores],
        "high": [max(values) for values in scores],
    }


def difference(series: Series, other: Series, score: float | None = None) -> Spread:
    """By how much one series ends above another or, with a score, how many more bytes it takes to reach it.

    It is measured seed by seed, because with the same seed both had the same data. Without shared seeds, or with
    several runs of one seed, it is the difference of the means.
    """
    mine, theirs = ([(run.seed, _compared(run, score)) for run in each.runs] for each in (series, other))
    first, second = dict(mine), dict(theirs)
    shared = first.keys() & second.keys()
    if shared and (len(first), len(second)) == (len(mine), len(theirs)):
        return spread([first[seed] - second[seed] for seed in sorted(shared)])
    ours, others = (spread([number for _, number in each]) for each in (mine, theirs))
    sd = None if ours.sd is None or others.sd is None else math.hypot(ours.sd, others.sd)
    return Spread(ours.mean - others.mean, sd)


def part_sent(series: Series) -> float:
    """The mean fraction of the model's entries that a client uploaded in a round, counting all clients."""
    parts: list[float] = [
        run.result["entries_sent"] / (run.result["rounds"] * len(run.clients["sizes"]) * run.clients["parameters"])
        for run in series.runs
    ]
    return mean(parts)


def comparison(panel: Panel) -> dict[str, Any]:
    """The rows of one panel as plain numbers for JSON, with the bytes, rounds and seconds to each of its targets.

    A number is None where it is not known: a score that was NaN, a target that not all seeds reached, or rounds that
    differ.
    """
    goals, methods = targets(panel), []
    for series in panel.series:
        ways = [reached(series, goal) for goal in goals]
        first, *others = [
            {SCORE: way.score, "reached": way.seeds, **_pairs({name: getattr(way, name) for name in AMOUNTS})}
            for way in ways
        ]
        about = {"method": series.runs[0].settings["method"], "label": series.label, "seeds": len(series.runs)}
        about |= {"unfinished": series.unfinished, "part_sent": part_sent(series)}
        ends = _pairs({name: final(series, name) for name in (FINAL, BEST, *BYTES, "seconds")})
        methods.append({**about, **ends, "to_target": first, "to_other_targets": others})
    lengths = {series.runs[0].settings["rounds"] for series in panel.series}
    title = {"task": panel.series[0].runs[0].settings["task"], "title": panel.title}
    return {**title, "rounds": lengths.pop() if len(lengths) == 1 else None, "target": goals[0], "methods": methods}


def _pairs(spreads: dict[str, Spread | None]) -> dict[str, float | None]:
    """Means and standard deviations between the seeds, under two names each."""
    known = {name: each for name, each in spreads.items() if each is not None and not math.isnan(each.mean)}
    pairs: dict[str, float | None] = {}
    for name in spreads:
        pairs[name] = known[name].mean if name in known else None
        pairs[f"{name}_sd"] = known[name].sd if name in known else None
    return pairs


def _first(run: Run, score: float) -> dict[str, Any] | None:
    """What had been needed when a run first had a score."""
    return next((_amounts(row) for row in run.rows if row[SCORE] >= score), None)


def _amounts(row: dict[str, Any]) -> dict[str, Any]:
    """A round or a result with its bytes in total, and its number among the amounts."""
    up, down = float(row["bytes_up"]), float(row["bytes_down"])
    amounts = {**row, "bytes_up": up, "bytes_down": down, "bytes_total": up + down}
    return {**amounts, "rounds": row["round"]} if "round" in row else amounts


def _compared(run: Run, score: float | None) -> float:
    """What `difference` compares: the final score, or the bytes to a score; NaN if it was not reached."""
    if score is None:
        return float(run.result[FINAL])
    row = _first(run, score)
    return math.nan if row is None else float(row["bytes_total"])
