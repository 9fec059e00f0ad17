"""The curves of a report, prepared once for the page, the figures and the CSV file."""

from collections.abc import Sequence
from dataclasses import dataclass

from dagc.report.numbers import curve
from dagc.report.panels import Panel
from dagc.text import printable

__all__ = ["AXES", "COLORS", "DARK", "Chart", "Line", "charts"]

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


@dataclass(frozen=True)
class Line:
    """A series in a chart.

    Attributes:
        label: Its name.
        seeds: How many runs it is the mean of.
        points: For every axis, and for the `mean`, `low` and `high` score, a number for each evaluation.
    """

    label: str
    seeds: int
    points: dict[str, list[float]]


@dataclass(frozen=True)
class Chart:
    """A panel's curves: its title, what its score is called, and its lines."""

    title: str
    metric: str
    lines: tuple[Line, ...]


def charts(panels: Sequence[Panel]) -> list[Chart]:
    """The curves of all panels, with printable names."""
    return [
        Chart(
            printable(panel.title),
            printable(panel.metric),
            tuple(Line(printable(series.label), len(series.runs), curve(series)) for series in panel.series),
        )
        for panel in panels
    ]
