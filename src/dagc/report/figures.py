"""Curves as SVG and PNG for papers and slides; needs matplotlib (extra `lab`)."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from dagc.report.charts import AXES, COLORS, Chart
from dagc.text import in_bytes

__all__ = ["write_figures"]

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "dagc",
    "text.parse_math": False,  # a name may contain dollars
}


def write_figures(panels: Sequence[Chart], folder: Path) -> list[Path]:
    """`curves-AXIS.svg` and `.png` for total bytes, bytes up, rounds and seconds; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    from matplotlib.figure import Figure  # no pyplot: no global state, no window

    written = []
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    width, height = max(5.0, 4.2 * columns), 3.4 * rows
    with matplotlib.rc_context(STYLE):
        for axis in AXES:
            figure = Figure(figsize=(width, height))
            for number, panel in enumerate(panels):
                _draw(figure.add_subplot(rows, columns, number + 1), panel, axis)
            # Margins by hand: computing them takes matplotlib longer than all the drawing.
            figure.subplots_adjust(left=0.6 / width, right=1 - 0.15 / width, bottom=0.5 / height, top=1 - 0.45 / height)
            figure.subplots_adjust(hspace=0.45, wspace=0.25)
            for ending in ("svg", "png"):
                path = folder / f"curves-{axis}.{ending}"
                figure.savefig(path, dpi=160, metadata={"Date": None} if ending == "svg" else {})
                written.append(path)
    return written


def _draw(axes: Any, panel: Chart, axis: str) -> None:
    """One panel's curves, a band from the lowest seed to the highest around each."""
    for place, line in enumerate(panel.lines):
        across = line.points[axis]
        if not across:
            continue
        color, dashes = COLORS[place % len(COLORS)], ("-", "--", ":")[place // len(COLORS) % 3]
        mean, low, high = ([100 * y for y in line.points[name]] for name in ("mean", "low", "high"))
        axes.plot(across, mean, dashes, color=color, label=fill(line.label, 40), lw=1.4)
        axes.fill_between(across, low, high, color=color, alpha=0.15, lw=0)
    if axis.startswith("bytes"):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: in_bytes(amount, short=True)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=AXES[axis], ylabel=f"{panel.metric}, %")
    axes.set_title(fill(panel.title, 60), fontsize=8)
    axes.grid(alpha=0.25, lw=0.5)
    if axes.lines:
        axes.legend(edgecolor="none", framealpha=0.7, fontsize=7, loc="lower right")
