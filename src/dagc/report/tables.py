"""The table of a report: prepared for people, and as plain numbers for programs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagc.folder import BEST, FINAL, SCORE
from dagc.report.numbers import AMOUNTS, BYTES, Reached, final, part_sent, reached, targets
from dagc.report.panels import Panel, Series, metric_of
from dagc.text import Spread, brief, capital, count, in_bytes, percent

__all__ = ["Cell", "Table", "comparison", "table_of"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, a note about it, and whether it is the best of its column."""

    text: str
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table for people: its headings, and for each setting its title and its rows, methods first."""

    heads: list[str]
    groups: list[tuple[str, list[list[Cell]]]]


def table_of(panels: Sequence[Panel]) -> Table:
    """The table of a report. What decides, the bytes to each target, comes first: phones are narrow."""
    shared = {targets(panel) for panel in panels}
    goals = shared.pop() if len(shared) == 1 else ()
    heads = ["Method", *(f"Total to {100 * goal:g} %" for goal in goals), capital(metric_of(panels))]
    heads += ["Entries sent", "Up", "Down"]
    groups = []
    for panel in panels:
        columns = [[Cell(_name(series)) for series in panel.series]]
        columns += [_goals([reached(series, goal) for series in panel.series]) for goal in goals]
        columns.append(_finals(panel.series))
        columns.append([Cell(f"{100 * part_sent(series):.3g} %") for series in panel.series])
        for name in ("bytes_up", "bytes_down"):
            columns.append([Cell(in_bytes(final(series, name).mean)) for series in panel.series])
        groups.append((panel.title, [list(row) for row in zip(*columns, strict=True)]))
    return Table(heads, groups)


def _name(series: Series) -> str:
    """The name of a series, marked if it is not finished."""
    unfinished = f" (unfinished: {series.unfinished} of {len(series.runs)})" if series.unfinished else ""
    return f"{series.label}{unfinished}"


def _finals(series: Sequence[Series]) -> list[Cell]:
    """The final scores, the highest one marked."""
    ends = [final(each) for each in series]
    best = max((end.mean for end in ends if math.isfinite(end.mean)), default=math.nan)
    return [Cell(percent(end), best=len(ends) > 1 and end.mean == best) for end in ends]


def _goals(goals: Sequence[Reached]) -> list[Cell]:
    """The total bytes to a target, with the rounds, and as a multiple of the fewest."""
    totals = [goal.bytes_total.mean for goal in goals if goal.bytes_total is not None]
    fewest = min(totals, default=0.0)
    cells = []
    for goal in goals:
        if goal.bytes_total is None or goal.rounds is None:
            cells.append(Cell(f"{goal.seeds} of {goal.of} seeds"))
            continue
        note = count(goal.rounds.mean, "round")
        if fewest and goal.bytes_total.mean > 1.05 * fewest:
            note += f", ×{brief(goal.bytes_total.mean / fewest)}"
        cells.append(Cell(in_bytes(goal.bytes_total.mean), note, goal.bytes_total.mean == fewest))
    return cells


def comparison(panel: Panel) -> dict[str, Any]:
    """The rows of one panel as plain numbers for JSON, with the bytes, rounds and seconds to each of its targets.

    A number is None where it is not known: a score that was NaN, a target that not all seeds reached, or rounds that
    differ.
    """
    settings, goals = panel.series[0].runs[0].settings, targets(panel)
    methods = []
    for series in panel.series:
        row = {"method": series.runs[0].settings["method"], "label": series.label, "seeds": len(series.runs)}
        row |= {"unfinished": series.unfinished, "part_sent": part_sent(series)}
        for name in (FINAL, BEST, *BYTES, "seconds"):
            row |= _pair(name, final(series, name))
        first, *others = [_to_target(reached(series, goal)) for goal in goals]
        methods.append({**row, "to_target": first, "to_other_targets": others})
    lengths = {series.runs[0].settings["rounds"] for series in panel.series}
    rounds = lengths.pop() if len(lengths) == 1 else None
    title = {"task": settings["task"], "title": panel.title}
    return {**title, "rounds": rounds, "target": goals[0], "methods": methods}


def _to_target(goal: Reached) -> dict[str, Any]:
    """What it took to reach a target."""
    row: dict[str, Any] = {SCORE: goal.score, "reached": goal.seeds}
    for name in AMOUNTS:
        row |= _pair(name, getattr(goal, name))
    return row


def _pair(name: str, value: Spread | None) -> dict[str, float | None]:
    """A mean and the standard deviation between the seeds, under two names."""
    known = Spread(math.nan) if value is None else value
    return {name: None, f"{name}_sd": None} if math.isnan(known.mean) else {name: known.mean, f"{name}_sd": known.sd}
