"""`dagc compare`: several methods on the same data, seeds and model."""

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dagc.cli.options import BUDGETS, AsJson, ConfigFile, Jobs, passed, settings_of, several, with_flags
from dagc.cli.progress import progress_of
from dagc.cli.report import command_line
from dagc.cli.terminal import say
from dagc.comparison import SWEPT, TUNING_SEEDS, Choice, candidates_hash, comparison_fields, run_all, split_methods
from dagc.comparison import tune as tune_all
from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.folder import FINAL
from dagc.report import comparison, notes, panels_of, read_run, sentence, write_report
from dagc.report.numbers import BYTES
from dagc.text import brief, in_bytes
from dagc.training import Config, Federation, ToTarget

__all__ = ["COMPARISON", "Question", "compare", "compare_as", "read_question"]

COMPARISON = "compare.json"
"""The file in a comparison's folder that says what was asked."""
VERSION = 1
"""The version of that file."""


@with_flags("method", "seed", lists=SWEPT)
def compare(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. cnn@cifar-10 (default: mlp@digits).")] = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas; NAME:key=value,… gives a method its own settings.")
    ] = "dagc,thrifty,dagc-r,stc,none",
    seeds: Annotated[int, typer.Option(min=1, max=TUNING_SEEDS, help="Number of seeds: 0, 1, 2, …")] = 3,
    tune: Annotated[
        list[str] | None, typer.Option(help="Choose for each method, e.g. learning-rate=0.05,0.1,0.2; repeatable.")
    ] = None,
    tune_seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for tuning: 1000, 1001, …")] = 2,
    target: Annotated[float | None, typer.Option(help="A score to reach, e.g. 0.75.")] = None,
    jobs: Jobs = None,
    config: ConfigFile = None,
    output: Annotated[
        Path | None, typer.Option(help="The comparison's folder (default: runs/compare-TASK-…).", show_default=False)
    ] = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Compare methods on the same data, seeds and model; each gets the budget and the options that it takes.

    A setting with several values, e.g. --ratio 0.001,0.01, makes a line for each. With --tune, each line's own settings
    are chosen first, on other seeds: by total bytes to the target or, without one, by score.

    If it was killed or stopped with Ctrl-C, the same command continues; finished runs are not repeated.

    Example: dagc compare logistic@fashion-mnist --local-steps 20 --rounds 100 --target 0.8
    """
    values = passed({"task": task, **flags}, SWEPT)
    settings = {"task": Config.default("task"), **settings_of(values, config)}
    settings = {name: value for name, value in settings.items() if name not in ("method", "seed")}
    ToTarget(target)  # refuses impossible targets
    grid = _grid(tune or [])
    question = Question(settings, split_methods(methods), seeds, grid, tune_seeds, target, command_line())
    both = sorted(f"--{name.replace('_', '-')}" for name in grid.keys() & values.keys())
    if both:  # what a file says is replaced by what is chosen
        raise InvalidInput(f"{', '.join(both)} is given, but --tune chooses it: leave one of them out")
    compare_as(question, output, jobs, as_json)


@dataclass(frozen=True)
class Question:
    """What a comparison was asked. It is stored in its folder, so that it can be resumed and recognized."""

    settings: dict[str, Any]
    methods: list[str]
    seeds: int
    grid: dict[str, list[str]]
    tune_seeds: int
    target: float | None
    command: str


def read_question(folder: Path) -> tuple[str, Question]:
    """The key of the comparison in a folder, and what was asked."""
    file = folder / COMPARISON
    try:
        stored = json.loads(file.read_bytes())
        if stored.pop("version") > VERSION:
            raise InvalidInput(f"{file} was written by a newer version of dagc: update dagc to read it")
        return stored.pop("key"), Question(**stored)
    except InvalidInput:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read ({error!r}): choose another folder") from error


def compare_as(question: Question, output: Path | None, jobs: int | None, as_json: bool) -> None:
    """Tune and run what is missing, and report it."""
    settings, seeds, target = question.settings, question.seeds, question.target
    ways = comparison_fields(settings, question.methods, question.grid)
    for candidates in ways:  # refuse what cannot work before any work
        Federation(Config(**candidates[0]))
    jobs = jobs or os.cpu_count() or 1
    tuned_on = range(TUNING_SEEDS, TUNING_SEEDS + question.tune_seeds)
    configs = _configs([way[0] for way in ways], seeds)
    key = _key(configs, candidates_hash(ways, tuned_on, target) if question.grid else "")
    task = settings["task"]
    folder = output or Path("runs") / f"compare-{Path(task).name if '/' in task else task}-{key}"
    _claim(folder, key, question)
    try:
        choices = _tune(ways, question, tuned_on, folder, jobs) if question.grid else []
        if choices:
            best = [{**way[0], **choice.chosen} for way, choice in zip(ways, choices, strict=True)]
            configs = _configs(best, seeds)
        with progress_of([_name(config) for config in configs], [config.rounds for config in configs]) as show:
            paths = run_all(configs, folder, jobs, show)
    except KeyboardInterrupt:
        say(f"stopped; the same command continues, or: dagc resume {shlex.quote(str(folder))}")
        raise
    (panel,) = panels_of(map(read_run, paths), () if target is None else (target,))
    result = comparison(panel)
    if choices:
        label_of = {run.path: series.label for series in panel.series for run in series.runs}
        labels = [label_of[path] for path in paths[::seeds]]
        panel = replace(panel, notes=(*panel.notes, _tuning_note(labels, choices, tuned_on, target)))
        chosen = [{"label": label, **asdict(choice)} for label, choice in zip(labels, choices, strict=True)]
        result["tuned"] = {"seeds": list(tuned_on), "ways": chosen}
    page = write_report([panel], folder, panel.title, question.command)
    _write_json(folder / "comparison.json", {**result, "runs": [path.name for path in paths]})
    if as_json:
        print(json.dumps(result))
        return
    shared = {name: settings[name] for name in (*BUDGETS, "down") if name in settings}
    print_comparison(result, {n: value for n, value in shared.items() if not isinstance(value, list)}, panel.metric)
    lines = [f"\n{sentence([panel])}", *(f"note: {note}" for note in notes([panel])), f"page: {page}; runs: {folder}"]
    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)


def _claim(folder: Path, key: str, question: Question) -> None:
    """Store the question in the folder. One that holds something else is refused."""
    if (folder / "config.toml").exists():
        raise InvalidInput(f"{folder} holds a run, not a comparison: choose another --output")
    if (folder / COMPARISON).exists():
        other_key, other = read_question(folder)
        if other_key != key:
            raise InvalidInput(f"{folder} holds another comparison ({other.command}): choose another --output")
    _write_json(folder / COMPARISON, {"version": VERSION, "key": key, **asdict(question)})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    try:
        with write_atomically(path) as file:
            file.write(json.dumps(content, indent=1).encode())
    except OSError as error:
        raise InvalidInput(f"the comparison cannot be written to {path.parent}: {failure(error)}") from error


def _configs(ways: Sequence[Mapping[str, Any]], seeds: int) -> list[Config]:
    return [Config(**{**way, "seed": seed}) for way in ways for seed in range(seeds)]


def _key(configs: list[Config], tuned: str) -> str:
    """A short hash of this comparison, so that another one gets another folder."""
    return hashlib.sha256(" ".join([*(config.key() for config in configs), tuned]).encode()).hexdigest()[:8]


def _name(config: Config) -> str:
    return f"{config.method}, seed {config.seed}"


def _grid(texts: list[str]) -> dict[str, list[str]]:
    """The values to choose from, by setting, as given with `--tune`."""
    grid = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise InvalidInput(f"--tune is {text!r:.100}: write a setting and values, e.g. learning-rate=0.05,0.1,0.2")
        setting = name.strip().replace("-", "_")
        if setting in grid:
            raise InvalidInput(f"--tune {name} is given twice: write all values in one, e.g. {name}=0.05,0.1,0.2")
        grid[setting] = several(values, f"--tune {name}")
    return grid


def _tune(ways: list[list[dict[str, Any]]], question: Question, seeds: range, folder: Path, jobs: int) -> list[Choice]:
    """The settings chosen for every line of the comparison, with progress."""
    with ExitStack() as bars:

        def watch(configs: Sequence[Config]) -> Any:
            names = [f"tuning {_name(config)}" for config in configs]
            return bars.enter_context(progress_of(names, [config.rounds for config in configs]))

        return tune_all(ways, list(question.grid), seeds, question.target, folder, jobs, watch)


def _tuning_note(labels: list[str], choices: list[Choice], seeds: range, target: float | None) -> str:
    """The chosen settings, in words."""
    goal = "final score" if target is None else f"total bytes to {100 * target:g} %"
    chosen = []
    for label, choice in zip(labels, choices, strict=True):
        words = [f"{name.replace('_', ' ')} {value}" for name, value in choice.chosen.items()]
        if choice.at_the_edge:
            words.append("at the edge of what was tried")
        if target is not None and choice.by == "score" and choice.chosen:
            words.append("by score, since none reached the target")
        chosen.append(f"{label}: {', '.join(words) or 'as given'}")
    on = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"tuned on {on} by {goal}. {'; '.join(chosen)}"


def print_comparison(result: dict[str, Any], budgets: dict[str, Any], metric: str = "accuracy") -> None:
    """Print a line for every method: its end, and what it took to the target."""
    words = [result["task"], *([] if result["rounds"] is None else [f"{result['rounds']:,} rounds"])]
    words += [f"{name} {value if isinstance(value, str) else format(value, 'g')}" for name, value in budgets.items()]
    title = f"{', '.join(words)}; until {100 * result['target']:g} % {metric}:"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("method", "final, %", "rounds", "up", "down", "total", "× best", "seconds"):
        first = name == "method"
        table.add_column(name, justify="left" if first else "right", no_wrap=not first, overflow="fold")
    goals = [row["to_target"] for row in result["methods"]]
    fewest = min((goal["bytes_total"] for goal in goals if goal["bytes_total"] is not None), default=None)
    for row, goal in zip(result["methods"], goals, strict=True):
        cells = [f"{goal['reached']} of {row['seeds']}", *[""] * 5]
        if goal["bytes_total"] is not None:
            cells = [f"{goal['rounds']:,.0f}", *(in_bytes(goal[name]) for name in BYTES)]
            cells += [brief(goal["bytes_total"] / fewest) if fewest else "", brief(goal["seconds"])]
        final, sd = row[FINAL], row[f"{FINAL}_sd"]
        end = "–" if final is None else f"{100 * final:.1f}" + ("" if sd is None else f" ± {100 * sd:.1f}")
        table.add_row(row["label"], end, *cells)
    Console(highlight=False).print(table)
