"""The table of a report: as CSV and JSON for machines, as LaTeX and Markdown for people, as rows for the page."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from dagc.report.numbers import BYTES, Spread, curve, final, in_bytes, part_sent, reached, targets
from dagc.report.panels import Panel, metric_of
from dagc.report.words import capital, percent

__all__ = ["comparison", "csv_table", "curves_csv", "latex_table", "markdown_table", "name_of", "rows", "text_rows"]


def rows(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """One row for each series: its accuracy, the paper's, its traffic, and when it reached each target."""
    found = []
    for panel in panels:
        for series in panel.series:
            row: dict[str, Any] = {"panel": panel.title, "series": series.label, "seeds": len(series.runs)}
            row["unfinished"] = series.unfinished
            row["rounds"] = min(run.result["rounds"] for run in series.runs)
            row["accuracy"], row["best"] = final(series), final(series, "best_accuracy")
            row["paper"] = series.paper
            row |= {name: final(series, name) for name in BYTES}
            row["seconds"] = final(series, "seconds")
            row["entries"] = part_sent(series)
            row["reached"] = [reached(series, target) for target in targets(panel)]
            found.append(row)
    return found


def comparison(panel: Panel) -> dict[str, Any]:
    """The rows of one panel as plain numbers for JSON, with the bytes, rounds and seconds to its first target.

    A number is None where it is not known: an accuracy that was NaN, a target that not all seeds reached, or rounds
    that differ.
    """
    amounts = ("rounds", *BYTES, "seconds")
    settings = panel.series[0].runs[0].settings
    methods = []
    for series, row in zip(panel.series, rows([panel]), strict=True):
        method = series.runs[0].settings["method"]
        found: dict[str, Any] = {"method": method, "label": series.label, "seeds": row["seeds"]}
        for name in ("accuracy", "best", *BYTES, "seconds"):
            long = {"accuracy": "final_accuracy", "best": "best_accuracy"}.get(name, name)
            found[long], found[f"{long}_sd"] = _cells(row[name])
        goal = row["reached"][0]
        means = {name: _cells(getattr(goal, name))[0] for name in amounts}
        found["to_target"] = {"accuracy": goal.accuracy, "reached": goal.seeds, **means}
        methods.append(found)
    lengths = {series.runs[0].settings["rounds"] for series in panel.series}
    rounds = lengths.pop() if len(lengths) == 1 else None
    return {"task": settings["task"], "rounds": rounds, "target": targets(panel)[0], "methods": methods}


def csv_table(panels: Sequence[Panel]) -> str:
    """The rows as CSV; a line for each series and target, so that every panel may have its own targets."""
    numbers, amounts = ("accuracy", "best", *BYTES, "seconds"), ("rounds", *BYTES, "seconds")
    names = [*("panel", "series", "seeds", "unfinished", "rounds", "paper_percent", "part_sent")]
    for name in numbers:
        names += [name, f"{name}_sd"]
    names += ["target", "seeds_there"]
    for name in amounts:
        names += [f"{name}_to_target", f"{name}_to_target_sd"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for row in rows(panels):
        head = [row[name] for name in ("panel", "series", "seeds", "unfinished", "rounds", "paper", "entries")]
        for name in numbers:
            head += _cells(row[name])
        for goal in row["reached"]:
            there = [cell for name in amounts for cell in _cells(getattr(goal, name))]
            writer.writerow([*head, goal.accuracy, goal.seeds, *there])
    return text.getvalue()


def curves_csv(panels: Sequence[Panel]) -> str:
    """Every evaluation of every series: means over the seeds, and the range of the accuracy."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", "series", "round", *BYTES, "seconds", "accuracy", "lowest", "highest"])
    for panel in panels:
        for series in panel.series:
            at = curve(series)
            seconds: Sequence[float | None] = at["seconds"] or [None] * len(at["rounds"])
            counts = [at[name] for name in BYTES]
            lines = zip(at["rounds"], *counts, seconds, at["mean"], at["low"], at["high"], strict=True)
            for number, *line in lines:
                writer.writerow([panel.title, series.label, int(number), *line])
    return text.getvalue()


def latex_table(panels: Sequence[Panel], caption: str) -> str:
    """The table for papers, with booktabs."""
    heads, body = text_rows(panels)
    columns = "".join("l" if name in ("Setting", "Method") else "r" for name in heads)
    lines = [rf"\begin{{table}}\caption{{{_tex(caption)}}}\centering", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(map(_tex, heads)) + r" \\", r"\midrule"]
    for number, row in enumerate(body):
        if number and row[0] and heads[0] == "Setting":
            lines.append(r"\midrule")
        lines.append(" & ".join(map(_tex, row)) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def markdown_table(panels: Sequence[Panel]) -> str:
    """The table for READMEs, issues and notebooks."""
    heads, body = text_rows(panels)
    sides = ["---" if name in ("Setting", "Method") else "---:" for name in heads]
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in [heads, sides, *body])
        + "\n"
    )


def text_rows(panels: Sequence[Panel]) -> tuple[list[str], list[list[str]]]:
    """The headings and the rows as text; a setting's name is in its first row only."""
    found = rows(panels)
    paper = any(row["paper"] is not None for row in found)
    several = len(panels) > 1
    shared = {targets(panel) for panel in panels}
    goals = next(iter(shared)) if len(shared) == 1 else ()
    heads = (
        ["Setting"] * several
        + ["Method", capital(metric_of(panels))]
        + ["Paper"] * paper
        + ["Entries sent", "Up", "Down"]
    )
    heads += [f"Total to {100 * goal:g} %" for goal in goals]
    body, before = [], None
    for row in found:
        line = [row["panel"] if row["panel"] != before else ""] * several + [name_of(row), percent(row["accuracy"])]
        line += ["" if row["paper"] is None else f"{row['paper']:.2f} %"] * paper
        line += [f"{100 * row['entries']:.3g} %", in_bytes(row["bytes_up"].mean), in_bytes(row["bytes_down"].mean)]
        if goals:
            line += [
                in_bytes(goal.bytes_total.mean) if goal.bytes_total else f"{goal.seeds} of {goal.of}"
                for goal in row["reached"]
            ]
        body.append(line)
        before = row["panel"]
    return heads, body


def name_of(row: dict[str, Any]) -> str:
    """The name of a series in a table, marked if it is not finished."""
    if not row["unfinished"]:
        return str(row["series"])
    return f"{row['series']} (unfinished: {row['unfinished']} of {row['seeds']})"


def _cells(value: Spread | None) -> list[float | None]:
    return [None, None] if value is None or math.isnan(value.mean) else [value.mean, value.sd]


def _tex(text: str) -> str:
    for plain, escaped in (("\\", r"\textbackslash "), ("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("#", r"\#")):
        text = text.replace(plain, escaped)
    return text.replace("±", r"$\pm$").replace("–", "--").replace("…", r"\dots ")
