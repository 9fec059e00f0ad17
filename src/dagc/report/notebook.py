"""A run's history for a notebook: a small table and its curve, as HTML that needs no script."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dagc.folder import FINAL, FINAL_RULE, SCORE, summary
from dagc.text import Spread, capital, in_bytes, in_seconds, percent, to_html

SHOWN = 10  # the table has about as many of the evaluations; the curve has all
WIDTH, HEIGHT, EDGE = 420, 160, 6


def history_html(rows: Sequence[Mapping[str, Any]], metric: str = "score", notes: Sequence[str] = ()) -> str:
    """The evaluated rounds of a run as a table, with the score against total bytes as an inline SVG.

    Args:
        rows: The rounds, with the fields of `metrics.jsonl`; those without a score are not shown.
        metric: What the score is called.
        notes: What to know about the run, shown below.

    Example:
        >>> rows = [{"round": 1, "score": 0.5, "bytes_up": 10, "bytes_down": 90, "seconds": 2.0}]
        >>> history_html(rows, metric="accuracy").count("<tr>")
        2
    """
    remarks = "".join(f"<p>Note: {to_html(note)}</p>" for note in notes)
    measured = [row for row in rows if row.get(SCORE) is not None]
    if not measured:
        return f"<div><p>{len(rows):,} rounds, none of them evaluated yet.</p>{remarks}</div>"
    step = -(-len(measured) // SHOWN)
    head = "".join(f"<th>{name}</th>" for name in ("Round", to_html(capital(metric)), "Up", "Down", "Network time"))
    body = ""
    for row in measured[::-1][::step][::-1]:
        sent = [in_bytes(row[name]) for name in ("bytes_up", "bytes_down")]
        cells = [f"{row['round']:,}", percent(Spread(row[SCORE])), *sent, in_seconds(row["seconds"])]
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    final = percent(Spread(summary(measured)[FINAL]))
    caption = f"<p>Final {to_html(metric)}: {final} ({FINAL_RULE}).</p>"
    return f"<div><table><tr>{head}</tr>{body}</table>{_curve(measured, metric)}{caption}{remarks}</div>"


def _curve(rows: Sequence[Mapping[str, Any]], metric: str) -> str:
    """The score against total bytes, both from their lowest to their highest."""
    points = [(row["bytes_up"] + row["bytes_down"], row[SCORE]) for row in rows if math.isfinite(row[SCORE])]
    if len(points) < 2:
        return ""
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*points, strict=True))
    across, up = (WIDTH - 2 * EDGE) / (right - left or 1.0), (HEIGHT - 2 * EDGE) / (high - low or 1.0)
    places = (
        f"{EDGE + across * (amount - left):.1f},{HEIGHT - EDGE - up * (score - low):.1f}" for amount, score in points
    )
    ends = f"{percent(Spread(low), 1)} to {percent(Spread(high), 1)}"
    words = f"{to_html(capital(metric))} from {ends}, against {in_bytes(left)} to {in_bytes(right)} in total"
    return (
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{words}'>"
        f"<polyline points='{' '.join(places)}' fill='none' stroke='#0072b2' stroke-width='2'/></svg><p>{words}</p>"
    )
