"""The figure of the energy study: what each form carries, by bytes, for every model and both ways."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.energy import BUDGETS, MODELS, SHOWN, shares

__all__ = ["write_energy"]

LINES: dict[str, dict[str, Any]] = {
    "signs": {"color": "#d55e00", "marker": "v"},
    "int8": {"color": "#e69f00", "marker": "s"},
    "levels": {"color": "#56b4e9", "marker": "D"},
    "low rank": {"color": "#0072b2", "marker": "^"},
    "chosen": {"color": "#000000", "marker": "o", "linewidth": 2.2, "zorder": 5},
    "PowerSGD": {"color": "#009e73", "linestyle": "--", "marker": "x"},
    "STC": {"color": "#cc79a7", "linestyle": "--", "marker": "+"},
    "NNCodec": {"color": "#6b6b6b", "linestyle": "--", "marker": "1"},
}
"""How forms are drawn: ours with solid lines, others' with dashed ones."""
WAYS = {"client": "a client's update", "server": "the server's x − y"}


def write_energy(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the mean share of the first, the middle and the last round over the bytes of a frame."""
    import matplotlib
    from matplotlib.figure import Figure

    models = [model for model in MODELS if any(row["model"] == model for row in rows)]
    style: dict[Any, Any] = {"font.size": 8, "svg.hashsalt": "dagc", "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(2.3 * len(models) + 0.4, 5.2), layout="constrained")
        axes = figure.subplots(len(WAYS), len(models), sharex=True, sharey=True, squeeze=False)
        for line, (way, words) in zip(axes, WAYS.items(), strict=True):
            for each, model in zip(line, models, strict=True):
                _draw(each, rows, model, way)
            line[0].set_ylabel(f"share of the energy\nof {words}")
        for each, model in zip(axes[0], models, strict=True):
            each.set_title(MODELS[model], fontsize=8)
        axes[0][0].set(xscale="log", ylim=(0, 1.02))
        for each in axes[-1]:
            each.set_xticks(BUDGETS, [f"{budget:g}" for budget in BUDGETS], minor=False)
            each.set_xticks([], minor=True)
        figure.supxlabel("bytes, in multiples of ½√d", fontsize=8)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], model: str, way: str) -> None:
    """A line for each form, from the budget on with which it carries anything of every vector."""
    full = max(len(shares(rows, model, "chosen", budget, way)) for budget in BUDGETS)
    for form in SHOWN:
        each = {budget: shares(rows, model, form, budget, way) for budget in BUDGETS}
        points = [(budget, statistics.mean(found)) for budget, found in each.items() if found and len(found) == full]
        axes.plot(*zip(*points, strict=True) if points else ([], []), label=form, markersize=3.5, **LINES[form])
    axes.grid(alpha=0.25)
