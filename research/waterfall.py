"""The ablation's figure: what each step takes off the bytes of the one before it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dagc.report import Panel
from dagc.report.numbers import Reached, reached
from dagc.text import in_bytes
from research.judged import on_shared_seeds

__all__ = ["highest_shared", "write_waterfall"]

COLORS = ("#009e73", "#d55e00", "#6b6b6b")
"""For fewer bytes than before, for more, and for the first step."""


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
        color = COLORS[2 if before is None else 0 if mean <= before else 1]
        axes.barh(row, high - low, left=low, height=0.62, color=color)
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
