"""The report as one HTML file that opens anywhere, offline."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

import dagc
from dagc.folder import FINAL_RULE, to_toml
from dagc.report.numbers import curve
from dagc.report.panels import Panel, Series, metric_of
from dagc.report.tables import Cell, Table, table_of
from dagc.report.words import notes, sentence
from dagc.text import BYTE_UNITS, TIME_UNITS, capital, printable, to_html
from dagc.training import Config

__all__ = ["page", "run_command"]

AXES = {
    "bytes_total": "total bytes, up and down",
    "bytes_up": "bytes up",
    "rounds": "rounds",
    "seconds": "seconds on the network's clock",
}
"""What a score can be drawn against."""
COLORS = ("#0072b2", "#d55e00", "#00855f", "#b8548c", "#b07800", "#2f8fc4", "#7a5195", "#5f6670")
DARK = ("#56b4e9", "#ff8a3d", "#2fcf9d", "#e895c4", "#f0b83c", "#9ad3f5", "#bd9ae0", "#aab4c0")
"""Colors that people with any color vision can distinguish (after Okabe and Ito), on white and on black."""


def page(panels: Sequence[Panel], title: str, command: str) -> str:
    """The report as HTML.

    Args:
        panels: What to show.
        title: Its heading.
        command: The command that reproduces it.
    """
    subtitle = panels[0].title if len(panels) == 1 and panels[0].title != title else ""
    local = any(series.runs[0].local for panel in panels for series in panel.series)
    data = {"axes": AXES, "units": {"bytes": BYTE_UNITS, "seconds": TIME_UNITS}, "panels": [*map(_data, panels)]}
    parts = {
        "title": to_html(title),
        "subtitle": to_html(subtitle),
        "metric": to_html(capital(metric_of(panels))),
        "summary": re.sub(r"(?<=\d) (?=%|[kMG]?B|±)|(?<=±) ", "&nbsp;", to_html(sentence(panels))),
        "notes": "".join(f"<li>{to_html(note)}</li>" for note in notes(panels)),
        "table": _table(table_of(panels)),
        "final": to_html(f"{capital(metric_of(panels))} at the end is {FINAL_RULE}"),
        "command": to_html(command),
        "alone": ", and the command that runs it alone" if local else "",
        "configs": "\n".join(_config(panel, series, len(panels) == 1) for panel in panels for series in panel.series),
        "style": Template(_file("page.css")).substitute(light=_palette(COLORS), dark=_palette(DARK)),
        "script": _file("page.js"),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "version": to_html(dagc.__version__),
    }
    return Template(_file("page.html")).substitute(parts)


def _file(name: str) -> str:
    return resources.files("dagc.report").joinpath(name).read_text(encoding="utf-8")


def _palette(colors: Sequence[str]) -> str:
    return " ".join(f"--s{place}: {color};" for place, color in enumerate(colors))


def _table(table: Table) -> str:
    head = "".join(f"<th scope='col'>{to_html(name)}</th>" for name in table.heads)
    body = []
    for title, rows in table.groups:
        if len(table.groups) > 1:
            span = f"colspan='{len(table.heads)}'"
            body.append(f"<tr class='panel'><th {span} scope='rowgroup'><span>{to_html(title)}</span></th></tr>")
        for name, *cells in rows:
            body.append(f"<tr><th scope='row'>{to_html(name.text)}</th>{''.join(map(_cell, cells))}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(cell: Cell) -> str:
    note = f" <small>{to_html(cell.note)}</small>" if cell.note else ""
    return f"<td{' class=best' if cell.best else ''}>{to_html(cell.text)}{note}</td>"


def _config(panel: Panel, series: Series, alone: bool) -> str:
    name = series.label if alone else f"{panel.title}: {series.label}"
    seeds = [str(run.settings["seed"]) for run in series.runs if "seed" in run.settings]
    if seeds:
        name += f" ({'seeds' if len(seeds) > 1 else 'seed'} {', '.join(seeds)})"
    run = series.runs[0]
    lines = to_toml(run.settings).splitlines()
    if run.local:
        lines = [f"# {run_command(run.settings)}", "", *lines]
    text = "\n".join(map(to_html, lines))
    return f"<details><summary>{to_html(name)}</summary><pre tabindex='0'>{text}</pre></details>"


def run_command(settings: Mapping[str, Any]) -> str:
    """The command that repeats one run of the local engine: a flag for every setting that is not the default.

    Example:
        >>> run_command({"task": "mlp@digits", "method": "top-k", "ratio": 0.01, "per_tensor": True, "seed": 3})
        'dagc run mlp@digits --method top-k --ratio 0.01 --per-tensor --seed 3'
    """
    words = ["dagc", "run", settings["task"]]
    for name in Config.schema():
        value = settings.get(name)
        unset = value is None or value == Config.default(name)
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
    lines = [
        {
            "label": printable(series.label),
            "seeds": len(series.runs),
            "curve": {name: [float(f"{value:.6g}") for value in values] for name, values in curve(series).items()},
            "shares": _shares(series),
        }
        for series in panel.series
    ]
    return {
        "title": printable(panel.title),
        "metric": printable(panel.metric),
        "seed": run.settings.get("seed"),
        "names": [printable(name) for name in run.clients.get("names") or range(len(sizes))],
        "weights": [size / (sum(sizes) or 1) for size in sizes],
        "series": lines,
    }


def _shares(series: Series) -> dict[str, Any]:
    """Each client's first ratio or threshold."""
    run = series.runs[0]
    if run.settings["method"] == "none":
        return {"kind": "everything", "values": []}
    kind = "ratio" if run.settings.get("threshold") is None else "threshold"
    unit = run.clients["parameters"] if kind == "ratio" else 1
    first = run.clients.get("first_parameters") or ()
    known = [isinstance(value, int | float) and math.isfinite(value) for value in first]
    return {"kind": kind, "values": [value / unit if ok else None for value, ok in zip(first, known, strict=True)]}
