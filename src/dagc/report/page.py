"""The one page: everything of a report in one HTML file that opens anywhere, offline, and stays."""

import json
import shlex
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

import dagc
from dagc.report.numbers import Reached, Spread, curve, final, in_bytes, targets
from dagc.report.panels import Panel, Series
from dagc.report.tables import rows
from dagc.report.words import percent, sentence
from dagc.training import Config

__all__ = ["page", "run_command"]


def page(panels: Sequence[Panel], title: str, command: str) -> str:
    """The report as HTML.

    Args:
        panels: What to show.
        title: Its heading.
        command: The command that does it all again.
    """
    alone = len(panels) == 1 and panels[0].title != title
    parts = {
        "subtitle": f"<p class='sub'>{escape(panels[0].title)}</p>" if alone else "",
        "title": escape(title),
        "css": _file("page.css"),
        "summary": escape(sentence(panels)),
        "notes": _notes(panels),
        "table": _table(panels),
        "legend": escape(_legend(panels)),
        "command": escape(command),
        "configs": "\n".join(_config(panel, series, len(panels) == 1) for panel in panels for series in panel.series),
        "version": escape(dagc.__version__),
        "data": json.dumps({"panels": [_data(panel) for panel in panels]}, separators=(",", ":")).replace(
            "<", "\\u003c"
        ),
        "js": _file("page.js"),
    }
    return Template(_file("page.html")).substitute(parts)


def _file(name: str) -> str:
    return resources.files("dagc.report").joinpath(name).read_text(encoding="utf-8")


def _notes(panels: Sequence[Panel]) -> str:
    notes = list(dict.fromkeys(note for panel in panels for note in panel.notes))
    unfinished = sum(not run.finished for panel in panels for series in panel.series for run in series.runs)
    if unfinished:
        notes.insert(0, f"{unfinished} of the runs have not come to their end yet")
    return "<ul class='notes'>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>" if notes else ""


def _legend(panels: Sequence[Panel]) -> str:
    words = ["Accuracy is the mean of a run's last five evaluations; ± is the standard deviation between seeds."]
    words.append("Bytes are those of the encoded frames, all clients together.")
    formulas = {series.bytes_per_entry for panel in panels for series in panel.series} - {None}
    words += [f"* By formula: {count} bytes for each entry sent." for count in sorted(formulas, key=str)]
    return " ".join(words)


def _table(panels: Sequence[Panel]) -> str:
    told = rows(panels)
    paper = any(row["paper"] is not None for row in told)
    shared = {targets(panel) for panel in panels}
    goals = next(iter(shared)) if len(shared) == 1 else ()
    heads = ["Method", "Accuracy", *["Paper"] * paper, "Entries sent", "Uploaded", "Downloaded"]
    heads += [f"Upload to {100 * goal:g} %" for goal in goals]
    body, before = [], None
    for row in told:
        if len(panels) > 1 and row["panel"] != before:
            body.append(
                f"<tr class='panel'><th colspan='{len(heads)}' scope='rowgroup'>{escape(row['panel'])}</th></tr>"
            )
        before = row["panel"]
        beside = [other for other in told if other["panel"] == row["panel"]]
        best = len(beside) > 1 and row["accuracy"].mean == max(other["accuracy"].mean for other in beside)
        star = " *" if row["formula"] else ""
        cells = [_cell(percent(row["accuracy"]), best)]
        cells += [_cell("" if row["paper"] is None else f"{row['paper']:.2f} %")] * paper
        cells += [_cell(f"{100 * row['entries']:.3g} %"), _cell(in_bytes(row["bytes_up"].mean) + star)]
        cells += [_cell(in_bytes(row["bytes_down"].mean))]
        if goals:
            cells += [_goal(goal, [other["reached"][n] for other in beside]) for n, goal in enumerate(row["reached"])]
        body.append(f"<tr><th scope='row'>{escape(row['series'])}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(text: str, best: bool = False) -> str:
    return f"<td{' class=best' if best else ''}>{escape(text)}</td>"


def _goal(goal: Reached, beside: Sequence[Reached]) -> str:
    """The bytes to a target, and how many times the fewest that is."""
    if goal.bytes is None:
        return f"<td><small>{goal.seeds} of {goal.of} did</small></td>"
    fewest = min(other.bytes.mean for other in beside if other.bytes is not None)
    times = goal.bytes.mean / fewest if fewest else 1.0
    best = " class=best" if goal.bytes.mean == fewest else ""
    return f"<td{best}>{in_bytes(goal.bytes.mean)} <small>×{_times(times)}</small></td>"


def _times(times: float) -> str:
    return f"{times:.1f}" if times < 100 else f"{times:,.0f}"


def _config(panel: Panel, series: Series, alone: bool) -> str:
    name = escape(series.label if alone else f"{panel.title}: {series.label}")
    config = series.runs[0].config
    text = escape(f"# {run_command(config)}\n\n{config.toml()}")
    seeds = ", ".join(str(run.config.seed) for run in series.runs)
    return f"<details><summary>{name} (seeds {seeds})</summary><pre tabindex='0'>{text}</pre></details>"


def run_command(config: Config) -> str:
    """The command that does one run again: a flag for every field that is not as it would be without one.

    Example:
        >>> run_command(Config(task="mlp@digits", method="top-k", ratio=0.01, seed=3))
        'dagc run mlp@digits --method top-k --ratio 0.01 --seed 3'
    """
    words = ["dagc", "run", config.task]
    for name, field in Config.model_fields.items():
        value = getattr(config, name)
        if name in ("task", "threads", "data_dir") or value == field.get_default(call_default_factory=True):
            continue
        words += [f"--{name.replace('_', '-')}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return shlex.join(words)


def _data(panel: Panel) -> dict[str, Any]:
    """What the page's script draws."""
    run = panel.series[0].runs[0]
    sizes = run.clients["sizes"]
    total = sum(sizes)
    return {
        "title": panel.title,
        "paper": panel.paper,
        "seed": run.config.seed,
        "sizes": sizes,
        "weights": [size / total for size in sizes],
        "labels": run.clients["labels"],
        "classes": run.clients["classes"],
        "series": [_series(series) for series in panel.series],
        "shares": [_shares(series) for series in panel.series],
    }


def _series(series: Series) -> dict[str, Any]:
    curves = {name: [float(f"{value:.6g}") for value in values] for name, values in curve(series).items()}
    traffic: dict[str, Spread] = {name: final(series, f"bytes_{name}") for name in ("up", "down")}
    means = {name: round(value.mean) for name, value in traffic.items()}
    return {"label": series.label, "seeds": len(series.runs), "curve": curves, **means}


def _shares(series: Series) -> dict[str, Any]:
    """Each client's first ratio or threshold."""
    run = series.runs[0]
    given = run.clients["first_parameters"]
    if run.config.method == "none":
        return {"label": series.label, "kind": "everything", "values": []}
    if run.config.threshold is not None:
        return {"label": series.label, "kind": "threshold", "values": given}
    ratios = [None if value is None else value / run.clients["parameters"] for value in given]
    return {"label": series.label, "kind": "ratio", "values": ratios}
