"""Curves as SVG and PNG for papers and slides, from the same data as the page; needs matplotlib (extra `lab`)."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from dagc.report.numbers import BYTES, curve
from dagc.report.panels import Panel

__all__ = ["COLOURS", "write_figures"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b")
"""Colours that people with any colour vision can distinguish (after Okabe and Ito); the page uses the same."""
_AXES = {
    "bytes_total": "total bytes, up and down",
    "bytes_up": "bytes up",
    "rounds": "rounds",
    "seconds": "seconds on the network's clock",
}


def write_figures(panels: Sequence[Panel], folder: Path) -> list[Path]:
    """`curves-AXIS.svg` and `.png` for total bytes, bytes up, rounds and seconds; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    from matplotlib.figure import Figure  # no pyplot: no global state, no window

    written = []
    width = min(3, len(panels))
    height = -(-len(panels) // width)
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "dagc",
    }
    for axis, words in _AXES.items():
        with matplotlib.rc_context(style):
            across, down = max(5.0, 4.2 * width), 3.4 * height
            figure = Figure(figsize=(across, down))
            for number, panel in enumerate(panels):
                _draw(figure.add_subplot(height, width, number + 1), panel, axis, words)
            # Margins by hand: computing them takes matplotlib longer than all the drawing.
            figure.subplots_adjust(left=0.6 / across, right=1 - 0.15 / across, bottom=0.5 / down, top=1 - 0.45 / down)
            figure.subplots_adjust(hspace=0.45, wspace=0.25)
            for ending in ("svg", "png"):
                path = folder / f"curves-{axis}.{ending}"
                figure.savefig(path, dpi=160, metadata={"Date": None} if ending == "svg" else {})
                written.append(path)
    return written


def _draw(axes: Any, panel: Panel, axis: str, words: str) -> None:
    """One panel's curves, a band from the lowest seed to the highest around each."""
    for place, series in enumerate(panel.series):
        points = curve(series)
        if not points[axis]:
            continue
        colour, line = COLOURS[place % len(COLOURS)], ("-", "--", ":")[place // len(COLOURS) % 3]
        mean, low, high = ([100 * y for y in points[name]] for name in ("mean", "low", "high"))
        axes.plot(points[axis], mean, line, color=colour, label=series.label, lw=1.4)
        axes.fill_between(points[axis], low, high, color=colour, alpha=0.15, lw=0)
    if axis in BYTES:
        axes.set_xscale("log")
    axes.set(xlabel=words, ylabel=f"{panel.metric}, %")
    axes.set_title(fill(panel.title, 60), fontsize=8)
    axes.grid(alpha=0.25, lw=0.5)
    if axes.lines:
        axes.legend(edgecolor="none", framealpha=0.7, fontsize=7, loc="lower right")
