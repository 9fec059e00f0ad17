"""Curves as SVG and PNG for papers and slides, from the same data as the page; needs matplotlib (extra `lab`)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

from dagc.report.numbers import BYTES, Reached, curve, in_bytes, on_shared_seeds, reached
from dagc.report.panels import Panel

__all__ = ["COLOURS", "highest_shared", "write_figures", "write_waterfall"]

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


def highest_shared(panel: Panel) -> float:
    """The highest target that every series reaches with all seeds; the lowest of all if there is none."""
    every = [goal for goal in panel.targets if all(reached(one, goal).bytes_total for one in panel.series)]
    return max(every, default=min(panel.targets))


def write_waterfall(panels: Sequence[Panel], path: Path) -> None:
    """Draw what each series of a panel takes off the bytes of the one before it, up and in total, to one accuracy.

    With the seeds that all series share.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {"font.size": 9, "svg.hashsalt": "dagc", "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        rows = max(len(panel.series) for panel in panels)
        figure = Figure(figsize=(11, (0.32 * rows + 1.1) * len(panels)), layout="constrained")
        for number, every in enumerate(panels):
            panel = replace(every, series=on_shared_seeds(*every.series))
            goal = highest_shared(panel)
            ways = [reached(one, goal) for one in panel.series]
            for place, (name, words) in enumerate((("bytes_up", "bytes up"), ("bytes_total", "bytes up and down"))):
                axes = figure.add_subplot(len(panels), 2, 2 * number + place + 1)
                _fall(axes, ways, name)
                axes.set_yticks(
                    range(len(ways)), [one.label for one in panel.series] if not place else [""] * len(ways)
                )
                axes.set(xscale="log", xlabel=f"{words} to {100 * goal:g} %, all clients")
                if not place:
                    axes.set_title(panel.title, fontsize=9, loc="left")
        figure.savefig(path, metadata={"Date": None})


def _fall(axes: Any, ways: Sequence[Reached], name: str) -> None:
    """A bar from the bytes of the one before to one's own, and how many times fewer that is."""
    means = [None if (found := getattr(way, name)) is None else found.mean for way in ways]
    known = [mean for mean in means if mean is not None]
    before = None
    for row, mean in enumerate(means):
        if mean is None:
            axes.text(
                max(known), row, f"{ways[row].seeds} of {ways[row].of} seeds", va="center", ha="right", fontsize=8
            )
            continue
        low, high = sorted((mean, before if before is not None else mean))
        colour = COLOURS[7] if before is None else COLOURS[2] if mean <= before else COLOURS[1]
        axes.barh(row, high - low, left=low, height=0.62, color=colour)
        axes.plot([mean, mean], [row - 0.31, row + 0.31], color="black", lw=1.4)
        times = "" if before is None else f"  ÷ {before / mean:.2f}" if mean <= before else f"  × {mean / before:.2f}"
        axes.annotate(
            f"{in_bytes(mean)}{times}", (high, row), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
        before = mean
    axes.set_ylim(len(ways) - 0.5, -0.5)
    axes.set_xlim(min(known) / 1.3, max(known) * 6)
    axes.grid(axis="x", alpha=0.25, lw=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


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
