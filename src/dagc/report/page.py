"""The report as one HTML file that opens anywhere, offline."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from dagc.folder import to_toml
from dagc.report.document import document, template
from dagc.report.numbers import Reached, curve, final, in_bytes, targets
from dagc.report.panels import Panel, Series, metric_of
from dagc.report.tables import name_of, rows
from dagc.report.words import brief, capital, notes, percent, sentence
from dagc.training import Config

__all__ = ["page", "run_command"]


def page(panels: Sequence[Panel], title: str, command: str) -> str:
    """The report as HTML.

    Args:
        panels: What to show.
        title: Its heading.
        command: The command that reproduces it.
    """
    subtitle = len(panels) == 1 and panels[0].title != title
    local = any(series.runs[0].local for panel in panels for series in panel.series)
    parts = {
        "subtitle": f"<p class='sub'>{escape(panels[0].title)}</p>" if subtitle else "",
        "title": escape(title),
        "metric": escape(capital(metric_of(panels))),
        "summary": escape(sentence(panels)),
        "notes": _notes(panels),
        "table": _table(panels),
        "legend": escape(LEGEND.replace("$metric", capital(metric_of(panels)))),
        "command": escape(command),
        "alone": ", and the command that runs it alone" if local else "",
        "configs": "\n".join(_config(panel, series, len(panels) == 1) for panel in panels for series in panel.series),
    }
    body = Template(template("dagc.report", "page.html")).substitute(parts)
    return document(title, body, {"panels": [_data(panel) for panel in panels]}, "dagc.report")


def _notes(panels: Sequence[Panel]) -> str:
    found = notes(panels)
    return "<ul class='notes'>" + "".join(f"<li>{escape(note)}</li>" for note in found) + "</ul>" if found else ""


LEGEND = (
    "$metric is the mean of a run's last five evaluations; ± is the standard deviation between seeds. "
    "Bytes are those of the encoded frames of all clients together; totals are up and down."
)


def _table(panels: Sequence[Panel]) -> str:
    found = rows(panels)
    paper = any(row["paper"] is not None for row in found)
    shared = {targets(panel) for panel in panels}
    goals = next(iter(shared)) if len(shared) == 1 else ()
    heads = ["Method", *(f"Total to {100 * goal:g} %" for goal in goals)]  # what decides comes first: phones are narrow
    heads += [capital(metric_of(panels)), *["Paper"] * paper, "Entries sent", "Uploaded", "Downloaded"]
    body, before = [], None
    for row in found:
        if len(panels) > 1 and row["panel"] != before:
            body.append(
                f"<tr class='panel'><th colspan='{len(heads)}' scope='rowgroup'>{escape(row['panel'])}</th></tr>"
            )
        before = row["panel"]
        beside = [other for other in found if other["panel"] == row["panel"]]
        ends = [other["accuracy"].mean for other in beside if math.isfinite(other["accuracy"].mean)]
        best = len(beside) > 1 and row["accuracy"].mean == max(ends, default=None)
        cells = [
            _goal(goal, [other["reached"][place] for other in beside]) for place, goal in enumerate(row["reached"])
        ]
        cells = [*cells * bool(goals), _cell(percent(row["accuracy"]), best)]
        cells += [_cell("" if row["paper"] is None else f"{row['paper']:.2f} %")] * paper
        cells += [_cell(f"{100 * row['entries']:.3g} %"), _cell(in_bytes(row["bytes_up"].mean))]
        cells += [_cell(in_bytes(row["bytes_down"].mean))]
        body.append(f"<tr><th scope='row'>{escape(name_of(row))}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(text: str, best: bool = False) -> str:
    return f"<td{' class=best' if best else ''}>{escape(text)}</td>"


def _goal(goal: Reached, beside: Sequence[Reached]) -> str:
    """The total bytes to a target, as a multiple of the fewest, too."""
    if goal.bytes_total is None:
        return f"<td><small>{goal.seeds} of {goal.of} did</small></td>"
    fewest = min(other.bytes_total.mean for other in beside if other.bytes_total is not None)
    times = f" <small>×{brief(goal.bytes_total.mean / fewest)}</small>" if fewest else ""
    best = " class=best" if goal.bytes_total.mean == fewest else ""
    return f"<td{best}>{in_bytes(goal.bytes_total.mean)}{times}</td>"


def _config(panel: Panel, series: Series, alone: bool) -> str:
    name = series.label if alone else f"{panel.title}: {series.label}"
    seeds = [str(run.settings["seed"]) for run in series.runs if "seed" in run.settings]
    if seeds:
        name += f" (seeds {', '.join(seeds)})" if len(seeds) > 1 else f" (seed {seeds[0]})"
    run = series.runs[0]
    text = to_toml(run.settings)
    if run.local:
        text = f"# {run_command(run.settings)}\n\n{text}"
    return f"<details><summary>{escape(name)}</summary><pre tabindex='0'>{escape(text)}</pre></details>"


def run_command(settings: Mapping[str, Any]) -> str:
    """The command that repeats one run of the local engine: a flag for every setting that is not the default.

    Example:
        >>> run_command({"task": "mlp@digits", "method": "top-k", "ratio": 0.01, "per_tensor": True, "seed": 3})
        'dagc run mlp@digits --method top-k --ratio 0.01 --per-tensor --seed 3'
    """
    words = ["dagc", "run", settings["task"]]
    for name, field in Config.model_fields.items():
        value = settings.get(name)
        unset = value is None or value == field.get_default(call_default_factory=True)
        if name in ("task", "threads", "data_dir") or unset:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return shlex.join(words)


def _data(panel: Panel) -> dict[str, Any]:
    """What the page's script draws."""
    run = panel.series[0].runs[0]
    sizes = run.clients["sizes"]
    total = sum(sizes) or 1
    return {
        "title": panel.title,
        "metric": panel.metric,
        "paper": panel.paper,
        "seed": run.settings.get("seed"),
        "names": [str(name) for name in run.clients.get("names") or range(len(sizes))],
        "sizes": sizes,
        "weights": [size / total for size in sizes],
        "labels": run.clients.get("labels"),
        "classes": run.clients.get("classes"),
        "series": [_series(series) for series in panel.series],
        "shares": [_shares(series) for series in panel.series],
    }


def _series(series: Series) -> dict[str, Any]:
    curves = {name: [float(f"{value:.6g}") for value in values] for name, values in curve(series).items()}
    traffic = {name: round(final(series, f"bytes_{name}").mean) for name in ("up", "down")}
    return {"label": series.label, "seeds": len(series.runs), "curve": curves, **traffic}


def _shares(series: Series) -> dict[str, Any]:
    """Each client's first ratio or threshold."""
    run = series.runs[0]
    given = [
        None if value is None or not math.isfinite(value) else value
        for value in run.clients.get("first_parameters") or ()
    ]
    if run.settings["method"] == "none":
        return {"label": series.label, "kind": "everything", "values": []}
    if run.settings.get("threshold") is not None:
        return {"label": series.label, "kind": "threshold", "values": given}
    ratios = [None if value is None else value / run.clients["parameters"] for value in given]
    return {"label": series.label, "kind": "ratio", "values": ratios}
