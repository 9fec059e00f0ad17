"""The table of a report: as CSV and JSON for programs; for people prepared once, then LaTeX and Markdown from it."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dagc.folder import BEST, FINAL, SCORE
from dagc.report.charts import Chart
from dagc.report.numbers import BYTES, Reached, final, part_sent, reached, targets
from dagc.report.panels import Panel, Series, metric_of
from dagc.text import Spread, brief, capital, count, in_bytes, percent, to_markdown, to_tex

__all__ = ["Cell", "Table", "comparison", "csv_table", "curves_csv", "latex_table", "markdown_table", "table_of"]

AMOUNTS = ("rounds", *BYTES, "seconds")
"""What it takes to reach a target."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a text, a note about it, and whether it is the best of its column."""

    text: str
    note: str = ""
    best: bool = False

    def __str__(self) -> str:
        """The cell as one text."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Table:
    """A table for people: its headings, and for each setting its title and its rows, methods first."""

    heads: list[str]
    groups: list[tuple[str, list[list[Cell]]]]

    def flat(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows as plain text; with several settings, their titles are the first column."""
        several = len(self.groups) > 1
        rows = []
        for title, group in self.groups:
            rows += [[title] * several + [str(cell) for cell in group[0]]]
            rows += [[""] * several + [str(cell) for cell in row] for row in group[1:]]
        return ["Setting"] * several + self.heads, rows


def table_of(panels: Sequence[Panel]) -> Table:
    """The table of a report. What decides, the bytes to each target, comes first: phones are narrow."""
    shared = {targets(panel) for panel in panels}
    goals = shared.pop() if len(shared) == 1 else ()
    paper = any(series.paper is not None for panel in panels for series in panel.series)
    heads = ["Method", *(f"Total to {100 * goal:g} %" for goal in goals), capital(metric_of(panels))]
    heads += [*["Paper"] * paper, "Entries sent", "Up", "Down"]
    groups = []
    for panel in panels:
        columns = [[Cell(_name(series)) for series in panel.series]]
        columns += [_goals([reached(series, goal) for series in panel.series]) for goal in goals]
        columns.append(_finals(panel.series))
        if paper:
            columns.append([Cell("" if one.paper is None else f"{one.paper:.2f} %") for one in panel.series])
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


def latex_table(panels: Sequence[Panel], caption: str) -> str:
    """The table for papers, with booktabs."""
    heads, body = table_of(panels).flat()
    columns = "".join("l" if name in ("Setting", "Method") else "r" for name in heads)
    lines = [rf"\begin{{table}}\caption{{{to_tex(caption)}}}\centering", rf"\begin{{tabular}}{{{columns}}}"]
    lines += [r"\toprule", " & ".join(map(to_tex, heads)) + r" \\", r"\midrule"]
    for number, row in enumerate(body):
        if number and row[0] and heads[0] == "Setting":
            lines.append(r"\midrule")
        lines.append(" & ".join(map(to_tex, row)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def markdown_table(panels: Sequence[Panel]) -> str:
    """The table for READMEs, issues and notebooks."""
    heads, body = table_of(panels).flat()
    sides = ["---" if name in ("Setting", "Method") else "---:" for name in heads]
    rows = [[to_markdown(cell) for cell in row] for row in [heads, *body]]
    return "".join(f"| {' | '.join(row)} |\n" for row in [rows[0], sides, *rows[1:]])


def comparison(panel: Panel) -> dict[str, Any]:
    """The rows of one panel as plain numbers for JSON, with the bytes, rounds and seconds to its first target.

    A number is None where it is not known: a score that was NaN, a target that not all seeds reached, or rounds that
    differ.
    """
    settings, target = panel.series[0].runs[0].settings, targets(panel)[0]
    methods = []
    for series in panel.series:
        goal = reached(series, target)
        means = {name: _pair(getattr(goal, name))[0] for name in AMOUNTS}
        row = {"method": series.runs[0].settings["method"], "label": series.label, "seeds": len(series.runs)}
        methods.append(row | _numbers(series) | {"to_target": {SCORE: goal.score, "reached": goal.seeds, **means}})
    lengths = {series.runs[0].settings["rounds"] for series in panel.series}
    rounds = lengths.pop() if len(lengths) == 1 else None
    return {"task": settings["task"], "rounds": rounds, "target": target, "methods": methods}


def csv_table(panels: Sequence[Panel]) -> str:
    """The rows as CSV; a line for each series and target, so that every panel may have its own targets."""
    rows: list[dict[str, Any]] = []
    for panel, series in ((each, series) for each in panels for series in each.series):
        row = {"panel": panel.title, "series": series.label, "seeds": len(series.runs), "unfinished": series.unfinished}
        row |= {"rounds": min(run.result["rounds"] for run in series.runs), "paper_percent": series.paper}
        row |= {"part_sent": part_sent(series), **_numbers(series)}
        for goal in (reached(series, target) for target in targets(panel)):
            amounts = {}
            for name in AMOUNTS:
                amounts[f"{name}_to_target"], amounts[f"{name}_to_target_sd"] = _pair(getattr(goal, name))
            rows.append({**row, "target": goal.score, "seeds_there": goal.seeds, **amounts})
    return _csv([list(rows[0]), *(list(row.values()) for row in rows)])


def _numbers(series: Series) -> dict[str, Any]:
    """The results of a series at its end: means, and standard deviations between the seeds."""
    numbers = {}
    for name in (FINAL, BEST, *BYTES, "seconds"):
        numbers[name], numbers[f"{name}_sd"] = _pair(final(series, name))
    return numbers


def curves_csv(panels: Sequence[Chart]) -> str:
    """Every evaluation of every line: means over the seeds, and the range of the score."""
    lines: list[list[Any]] = [["panel", "series", "round", *BYTES, "seconds", SCORE, "lowest", "highest"]]
    for panel in panels:
        for line in panel.lines:
            columns = (line.points[name] for name in ("rounds", *BYTES, "seconds", "mean", "low", "high"))
            lines += [[panel.title, line.label, int(number), *row] for number, *row in zip(*columns, strict=True)]
    return _csv(lines)


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _pair(value: Spread | None) -> list[float | None]:
    return [None, None] if value is None or math.isnan(value.mean) else [value.mean, value.sd]
