"""How runs stand beside each other: a panel is one problem, a series in it one way to solve it, with all its seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dagc.report.runs import Run
from dagc.training import Config

__all__ = ["Panel", "Series", "panels_of"]

SOLUTION = ("method", "ratio", "threshold", "budget_bytes", "threshold_units", "exponent", "values")
"""The fields of `Config` that are a way to solve a problem; all others, but for the seed, say which problem it is."""
_NOT_THE_PROBLEM = {*SOLUTION, "seed", "threads", "data_dir", "device", "evaluate_every", "checkpoint_every"}


@dataclass(frozen=True, eq=False)
class Series:
    """One way to solve a problem.

    Attributes:
        label: What people call it.
        runs: One for each seed.
        paper: The accuracy that the paper has for it, in percent.
        bytes_per_entry: Count so many bytes for each entry uploaded, by formula, instead of those of the wire.
    """

    label: str
    runs: tuple[Run, ...]
    paper: float | None = None
    bytes_per_entry: int | None = None


@dataclass(frozen=True, eq=False)
class Panel:
    """One problem and the ways to solve it.

    Attributes:
        title: What the problem is.
        series: The ways to solve it.
        targets: Accuracies; when they are reached is told.
        paper: What the paper says of it.
        notes: What else to know, such as a stand-in for the data.
    """

    title: str
    series: tuple[Series, ...]
    targets: tuple[float, ...] = ()
    paper: str = ""
    notes: tuple[str, ...] = ()


def panels_of(runs: Iterable[Run], targets: Sequence[float] = ()) -> list[Panel]:
    """Put runs together that differ in nothing but the seed, and those beside each other that had the same problem."""
    problems: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        told = run.config.model_dump()
        problem = repr({name: value for name, value in told.items() if name not in _NOT_THE_PROBLEM})
        solution = repr([told[name] for name in SOLUTION])
        problems.setdefault(problem, {}).setdefault(solution, []).append(run)
    firsts = [next(iter(groups.values()))[0].config for groups in problems.values()]
    panels = []
    for groups, first in zip(problems.values(), firsts, strict=True):
        ordered = sorted(groups.values(), key=lambda group: _rank(group[0].config.method))
        configs = [group[0].config for group in ordered]
        series = tuple(
            Series(_label(group[0].config, configs), tuple(sorted(group, key=lambda run: run.config.seed)))
            for group in ordered
        )
        notes = tuple(dict.fromkeys(note for one in series for run in one.runs for note in run.clients["notes"]))
        panels.append(Panel(_title(first, firsts), series, tuple(targets), notes=notes))
    return panels


def _rank(method: str) -> int:
    """Ours first, what it is measured against after it, no compression last; otherwise the order given."""
    return 2 if method == "none" else 0 if method.startswith("dagc") else 1


def _label(config: Config, others: Sequence[Config]) -> str:
    """The method, and those of its settings in which series of the same method differ."""
    same = [other for other in others if other.method == config.method]
    words = [config.method]
    for name in SOLUTION[1:]:
        value = getattr(config, name)
        if value is not None and any(getattr(other, name) != value for other in same):
            words.append(_in_words(name, value))
    return ", ".join(words)


def _title(config: Config, others: Sequence[Config]) -> str:
    """The task, the clients and the rounds, and whatever else differs between the problems."""
    split = config.partition or f"{config.workers} clients, skew ratio {config.skew_ratio:g}"
    words = [config.task, split, f"{config.rounds:,} rounds"]
    said = {*_NOT_THE_PROBLEM, "task", "workers", "skew_ratio", "partition", "rounds"}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if name not in said and any(getattr(other, name) != value for other in others):
            words.append(_in_words(name, value))
    return ", ".join(words)


def _in_words(name: str, value: Any) -> str:
    if name == "ratio":
        return f"ratio {100 * value:g} %"
    if name == "budget_bytes":
        return f"{value:,} bytes a round"
    return f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
