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
from dagc.policies import METHODS
from dagc.report.numbers import Reached, curve, final, part_sent, reached, targets
from dagc.report.panels import Panel, Series, metric_of
from dagc.report.words import notes, sentence
from dagc.text import BYTE_UNITS, TIME_UNITS, brief, capital, count, in_bytes, percent, printable, to_html
from dagc.training import Config


def page(panels: Sequence[Panel], title: str, command: str) -> str:
    """The report as HTML, under a title, with the command that reproduces it."""
    local = any(series.runs[0].local for panel in panels for series in panel.series)
    data = {"units": {"bytes": BYTE_UNITS, "seconds": TIME_UNITS}, "panels": [*map(_data, panels)]}
    parts = {
        "title": to_html(title),
        "subtitle": to_html(panels[0].title if len(panels) == 1 and panels[0].title != title else ""),
        "metric": to_html(capital(metric_of(panels))),
        "summary": re.sub(r"(?<=\d) (?=%|[kMG]?B|±)|(?<=±) ", "&nbsp;", to_html(sentence(panels))),
        "notes": "".join(f"<li>{to_html(note)}</li>" for note in notes(panels)),
        "table": _table(panels),
        "final": to_html(f"{capital(metric_of(panels))} at the end is {FINAL_RULE}"),
        "command": to_html(command),
        "alone": ", and the command that runs it alone" if local else "",
        "configs": "\n".join(_config(panel, series, len(panels) == 1) for panel in panels for series in panel.series),
        "style": _file("page.css"),
        "script": _file("page.js"),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "version": to_html(dagc.__version__),
    }
    return Template(_file("page.html")).substitute(parts)


def _file(name: str) -> str:
    return resources.files("dagc.report").joinpath(name).read_text(encoding="utf-8")


def _table(panels: Sequence[Panel]) -> str:
    """The results of every method. What decides, the bytes to each target, comes first: phones are narrow."""
    shared = {targets(panel) for panel in panels}
    goals = shared.pop() if len(shared) == 1 else ()
    heads = ["Method", *(f"Total to {100 * goal:g} %" for goal in goals), capital(metric_of(panels))]
    heads += ["Entries sent", "Up", "Down"]
    body = []
    for panel in panels:
        if len(panels) > 1:
            title = f"<th colspan='{len(heads)}' scope='rowgroup'><span>{to_html(panel.title)}</span></th>"
            body.append(f"<tr class='panel'>{title}</tr>")
        body += [f"<tr>{''.join(row)}</tr>" for row in rows_of(panel, goals)]
    head = "".join(f"<th scope='col'>{to_html(name)}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def rows_of(panel: Panel, goals: Sequence[float]) -> list[tuple[str, ...]]:
    """The cells of every series: name, total bytes to each goal, final score, entries sent, bytes up and down."""
    ends = [final(each) for each in panel.series]
    best = max((end.mean for end in ends if math.isfinite(end.mean)), default=math.nan)
    columns = [[f"<th scope='row'>{to_html(_name(series))}</th>" for series in panel.series]]
    columns += [_totals([reached(series, goal) for series in panel.series]) for goal in goals]
    columns.append([_cell(percent(end), best=len(ends) > 1 and end.mean == best) for end in ends])
    columns.append([_cell(f"{100 * part_sent(series):.3g} %") for series in panel.series])
    for name in ("bytes_up", "bytes_down"):
        columns.append([_cell(in_bytes(final(series, name).mean)) for series in panel.series])
    return list(zip(*columns, strict=True))


def _cell(text: str, note: str = "", best: bool = False) -> str:
    """A cell with a note about it; the best of its column is marked."""
    return f"<td{' class=best' if best else ''}>{text}{f' <small>{note}</small>' if note else ''}</td>"


def _name(series: Series) -> str:
    """The name of a series, marked if it is not finished."""
    unfinished = f" (unfinished: {series.unfinished} of {len(series.runs)})" if series.unfinished else ""
    return f"{series.label}{unfinished}"


def _totals(ways: Sequence[Reached]) -> list[str]:
    """The total bytes to a target, with the rounds, and as a multiple of the fewest."""
    fewest = min((way.bytes_total.mean for way in ways if way.bytes_total is not None), default=0.0)
    cells = []
    for way in ways:
        if way.bytes_total is None or way.rounds is None:
            cells.append(_cell(f"{way.seeds} of {way.of} seeds"))
            continue
        total, note = way.bytes_total.mean, count(way.rounds.mean, "round")
        if fewest and total > 1.05 * fewest:
            note += f", ×{brief(total / fewest)}"
        cells.append(_cell(in_bytes(total), note, total == fewest))
    return cells


def _config(panel: Panel, series: Series, alone: bool) -> str:
    """The settings of a series, and the command that repeats its first run."""
    name = series.label if alone else f"{panel.title}: {series.label}"
    seeds = [str(run.settings["seed"]) for run in series.runs if "seed" in run.settings]
    if seeds:
        name += f" ({'seeds' if len(seeds) > 1 else 'seed'} {', '.join(seeds)})"
    run = series.runs[0]
    lines = [f"# {run_command(run.settings)}", ""] if run.local else []
    text = "\n".join(map(to_html, [*lines, *to_toml(run.settings).splitlines()]))
    return f"<details><summary>{to_html(name)}</summary><pre tabindex='0'>{text}</pre></details>"


def run_command(settings: Mapping[str, Any]) -> str:
    """The command that repeats one run of the local engine: a flag for every setting that is not the default."""
    words = ["dagc", "run", settings["task"]]
    for name in Config.schema():
        value = settings.get(name)
        if name in ("task", "threads", "data_dir") or value in (None, Config.default(name)):
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
    """Each client's first ratio, of the bytes of a whole model or of its entries, or its threshold."""
    run = series.runs[0]
    if series.method == "none":
        return {"kind": "everything", "values": []}
    kind = "ratio" if run.settings.get("threshold") is None else "threshold"
    of = "bytes" if series.method in METHODS and METHODS[series.method].encodes else "entries"
    unit = run.clients["parameters"] * (4 if of == "bytes" else 1) if kind == "ratio" else 1
    first = run.clients.get("first_parameters") or ()
    known = [isinstance(value, int | float) and math.isfinite(value) for value in first]
    values = [value / unit if ok else None for value, ok in zip(first, known, strict=True)]
    return {"kind": kind, "of": of, "values": values}
