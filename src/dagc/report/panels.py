"""How runs are grouped: a panel is one problem, a series in it one way to solve it, with all its seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dagc.policies import BUDGETS, METHODS
from dagc.report.runs import Run
from dagc.text import count
from dagc.training import OWN, SOLUTION, Config

TUNED = ("learning_rate", "server_rate", "schedule", "server_schedule", "rounds", "threshold_units")
USUAL = {name: Config.default(name) for name in SOLUTION if name not in ("method", *TUNED)}
"""What settings are if nobody gives them, but for those that each method may have its own of."""
NEITHER = {name for name, each in Config.schema().items() if each.group == "Run"}
"""Settings that describe neither a problem nor its solution."""


@dataclass(frozen=True, eq=False)
class Series:
    """One way to solve a problem: its name in tables and curves, and a run for each seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        """The method that its runs share."""
        return str(self.runs[0].settings["method"])

    @property
    def unfinished(self) -> int:
        """How many of its runs are not finished."""
        return sum(not run.finished for run in self.runs)


@dataclass(frozen=True, eq=False)
class Panel:
    """One problem and the ways to solve it.

    Attributes:
        title: What the problem is.
        series: The ways to solve it.
        targets: Accuracies; the report says when each is reached.
        notes: What else to know, such as a stand-in for the data.
    """

    title: str
    series: tuple[Series, ...]
    targets: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> str:
        """What the score is called: accuracy, unless the runs have another."""
        return str(self.series[0].runs[0].clients.get("metric") or "accuracy")


def metric_of(panels: Sequence[Panel]) -> str:
    """What the score of all panels is called."""
    names = {panel.metric for panel in panels}
    return names.pop() if len(names) == 1 else "score"


def panels_of(runs: Iterable[Run], targets: Sequence[float] = ()) -> list[Panel]:
    """Group runs: those that differ only in the seed are one series, series with the same problem are one panel.

    Several runs with the same seed, e.g. one that was stopped and started again elsewhere, count once.
    """
    problems: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        solution = {name: run.settings.get(name) for name in (*SOLUTION, "task")}
        problems.setdefault(_problem(run), {}).setdefault(repr(solution), []).append(run)
    firsts = [next(iter(groups.values()))[0] for groups in problems.values()]
    panels = []
    for first, groups in zip(firsts, problems.values(), strict=True):
        ranked = sorted(groups.values(), key=_rank)
        solutions = [group[0].settings for group in ranked]
        series, notes = [], []
        for group in ranked:
            label, once = _label(group[0].settings, solutions), _once(group)
            if len(once) < len(group):
                notes.append(f"{label}: {len(group)} runs of {len(once)} seeds; each seed counts once")
            series.append(Series(label, tuple(once)))
        notes += [str(note) for each in series for run in each.runs for note in run.clients.get("notes") or ()]
        title = _title(first, solutions, firsts)
        panels.append(Panel(title, tuple(series), tuple(targets), tuple(dict.fromkeys(notes))))
    return panels


def _once(group: Sequence[Run]) -> list[Run]:
    """One run per seed: the one that got farthest. The seeds of other engines' runs are not known."""
    farthest: dict[Any, Run] = {}
    for run in group:
        seed = run.seed if run.local else run.path
        best = farthest.setdefault(seed, run)
        if (run.result["rounds"], len(run.rows)) > (best.result["rounds"], len(best.rows)):
            farthest[seed] = run
    return sorted(farthest.values(), key=lambda run: run.seed)


def _problem(run: Run) -> str:
    """What comparable runs have in common.

    What a Flower app trains is known to the app alone; there, it is the model's size and the clients.
    """
    settings = {name: value for name, value in run.settings.items() if name not in (*SOLUTION, *NEITHER)}
    if not run.local:
        settings |= {"task": "", "parameters": run.clients["parameters"], "sizes": sorted(run.clients["sizes"])}
    return repr(sorted(settings.items()))


def _rank(group: Sequence[Run]) -> int:
    """Ours first, then what it is compared with, no compression last; otherwise the order given."""
    method = group[0].settings["method"]
    return 2 if method == "none" else 0 if method.startswith("dagc") else 1


def _label(settings: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    """The method, and the settings in which it differs: from series of the same method, or from itself as it is usual.

    What all have in common is left out, and so are rates that other methods have differently: those are tuned.
    """
    usual = {**USUAL, **(spec.defaults if (spec := METHODS.get(settings["method"])) else {})}
    words = [settings["method"]]
    for name in (*(name for name in SOLUTION if name != "method"), "task"):
        value = settings.get(name)
        if value is None or value is False or value == {}:
            continue
        same = [other for other in others if other["method"] == settings["method"]]
        if name in usual and value != usual[name]:
            same = [other for other in others if name not in BUDGETS or other["method"] != "none"]
        if any(other.get(name) != value for other in same):
            words.append(in_words(name, value))
    return ", ".join(words)


def _title(run: Run, solutions: Sequence[dict[str, Any]], others: Sequence[Run]) -> str:
    """The task, the clients and the rounds, and whatever else differs between the problems."""
    settings = run.settings
    named = settings.get("partition") not in (None, OWN, "by-client")
    split = settings["partition"] if named else f"{len(run.clients['sizes'])} clients"
    if "skew_ratio" in settings and "partition" not in settings:
        split += f", {in_words('skew_ratio', settings['skew_ratio'])}"
    words = [*dict.fromkeys(each["task"] for each in solutions), split]
    lengths = {each["rounds"] for each in solutions}
    if len(lengths) == 1:
        words.append(count(lengths.pop(), "round"))
    known = {*SOLUTION, *NEITHER, "task", "engine", "workers", "skew_ratio", "partition"}
    for name, value in settings.items():
        if name not in known and any(other.settings.get(name) != value for other in others):
            words.append(in_words(name, value))
    return ", ".join(words)


def in_words(name: str, value: Any) -> str:
    """A setting in words: ratio 0.1 %, coded frames, step ahead 0.5."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name in ("bytes", "down"):
            return f"{value:,g} bytes {'down ' if name == 'down' else ''}per client and round"
        if name == "rounds":
            return count(value, "round")
        if name == "ratio":
            return f"ratio {100 * value:g} %"
    if name in ("rate", "task"):
        return str(value)
    if name == "frames":
        return f"{value} frames"
    plain = name.replace("_", " ")
    if isinstance(value, dict):
        return f"{plain} {', '.join(f'{key} {_short(each)}' for key, each in value.items())}"
    return plain if value is True else f"{plain} {_short(value)}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
