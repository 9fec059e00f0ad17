"""`dagc run`, `dagc resume`, `dagc compare`: training from the command line."""

import hashlib
import json
import math
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from dagc.cli.options import given_fields, several, with_config_flags
from dagc.cli.report import command_line
from dagc.cli.terminal import log, say
from dagc.comparison import (
    SWEPT,
    TUNING_SEEDS,
    Choice,
    candidates_hash,
    comparison_fields,
    run_all,
    split_methods,
    stopping,
)
from dagc.comparison import tune as tune_all
from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.folder import BEST, FINAL, FINAL_RULE, SCORE, read_settings
from dagc.report import comparison, notes, panels_of, read_run, sentence, write_report
from dagc.report.numbers import BYTES
from dagc.text import Spread, brief, in_bytes, percent
from dagc.training import (
    Config,
    CsvLog,
    Federation,
    Round,
    TensorBoard,
    ToTarget,
    iterate,
    read_metrics,
    summary,
)

__all__ = ["compare", "resume", "run"]

ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings; flags override it.")]
Output = Annotated[
    Path | None, typer.Option(help="The run's folder (default: runs/TASK/METHOD-…).", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Tensors = Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs to the run's folder, too.")]
Csv = Annotated[bool, typer.Option("--csv", help="Write log.csv to the run's folder, too: a line for every round.")]
Target = Annotated[float | None, typer.Option(help="A score, e.g. 0.75: report what it took to reach it.")]
BUDGETS = ("ratio", "threshold", "bytes", "rate")
COMPARISON = "compare.json"
"""The file in a comparison's folder that says what was asked for."""
VERSION = 1
"""The version of that file."""
NARROW = 110
"""Terminals with fewer columns get shorter progress lines."""


@with_config_flags()
def run(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. cnn@cifar-10.")] = None,
    config: ConfigFile = None,
    output: Output = None,
    as_json: AsJson = False,
    tensorboard: Tensors = False,
    csv: Csv = False,
    target: Target = None,
    **fields: Any,
) -> None:
    """Train one model over many clients, with one method.

    If it was killed or stopped with Ctrl-C, the same command continues from the last checkpoint.

    Example: dagc run logistic@fashion-mnist --local-steps 20 --learning-rate 0.3 --rounds 200
    """
    given = given_fields({"task": task, **fields})
    if not given and config is None:
        raise InvalidInput("nothing to train: give a task, e.g. dagc run mlp@digits, or --config FILE")
    settings = _settings(given, config)
    checked = Config(**settings)
    folder = output or Path("runs") / _slug(checked.task) / f"{checked.method}-{checked.key()}"
    _train(checked, folder, as_json, tensorboard, csv, target)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an unfinished run or comparison.")],
    as_json: AsJson = False,
    tensorboard: Tensors = False,
    csv: Csv = False,
    target: Target = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="For a comparison: runs at a time (default: the number of cores).")
    ] = None,
) -> None:
    """Continue a run or a comparison from its last checkpoints. The result is the same, bit for bit."""
    if (folder / COMPARISON).exists():
        for name, given in (("--tensorboard", tensorboard), ("--csv", csv), ("--target", target is not None)):
            if given:
                raise InvalidInput(f"{folder} holds a comparison, but {name} is for runs: leave {name} out")
        _compare(_read_asked(folder)[1], folder, jobs, as_json)
        return
    if jobs is not None:
        raise InvalidInput(f"{folder} does not hold a comparison, but --jobs is for comparisons: leave --jobs out")
    if not (folder / "config.toml").exists():
        raise InvalidInput(
            f"{folder} is not the folder of a run (it has no config.toml) or of a comparison (it has no {COMPARISON})"
        )
    settings = read_settings(folder)
    if "engine" in settings:
        raise InvalidInput(f"{folder} holds a run of {settings['engine']}: start its own app again to continue it")
    _train(Config(**settings), folder, as_json, tensorboard, csv, target)


@with_config_flags("method", "seed", lists=SWEPT)
def compare(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. cnn@cifar-10 (default: mlp@digits).")] = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas; NAME:key=value,… gives a method its own settings.")
    ] = "dagc,dagc-r,top-k,stc,none",
    seeds: Annotated[int, typer.Option(min=1, max=TUNING_SEEDS, help="Number of seeds: 0, 1, 2, …")] = 3,
    tune: Annotated[
        list[str] | None, typer.Option(help="Choose for each method, e.g. learning-rate=0.05,0.1,0.2; repeatable.")
    ] = None,
    tune_seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for tuning: 1000, 1001, …")] = 2,
    target: Annotated[float | None, typer.Option(help="Accuracy to reach, e.g. 0.75.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: the number of cores).")] = None,
    config: ConfigFile = None,
    output: Output = None,
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Compare methods on the same data, seeds and model; each gets the budget and the options that it takes.

    A setting with several values, e.g. --ratio 0.001,0.01, makes a line for each. With --tune, each line's own settings
    are chosen first, on other seeds: by total bytes to the target or, without one, by accuracy.

    If it was killed or stopped with Ctrl-C, the same command continues; finished runs are not repeated.

    Example: dagc compare logistic@fashion-mnist --local-steps 20 --rounds 200 --tune learning-rate=0.1,0.3 --target 0.8
    """
    given = given_fields({"task": task, **fields}, SWEPT)
    settings = _settings(given, config)
    task = settings.setdefault("task", Config.default("task"))
    settings = {name: value for name, value in settings.items() if name not in ("method", "seed")}
    ToTarget(target)  # refuses impossible targets
    asked = Asked(settings, split_methods(methods), seeds, _grid(tune or []), tune_seeds, target, command_line())
    both = sorted(f"--{name.replace('_', '-')}" for name in asked.grid.keys() & given.keys())
    if both:  # what a file says is replaced by what is chosen
        raise InvalidInput(f"{', '.join(both)} is given, and --tune chooses it, too: leave one of them out")
    _compare(asked, output, jobs, as_json)


@dataclass(frozen=True)
class Asked:
    """What a comparison was asked for. It is stored in its folder, so that it can be resumed and recognised."""

    settings: dict[str, Any]
    methods: list[str]
    seeds: int
    grid: dict[str, list[str]]
    tune_seeds: int
    target: float | None
    command: str


def _read_asked(folder: Path) -> tuple[str, Asked]:
    """The key of the comparison in a folder, and what it was asked for."""
    file = folder / COMPARISON
    try:
        kept = json.loads(file.read_bytes())
        if kept.pop("version") > VERSION:
            raise InvalidInput(f"{file} was written by a newer version of dagc: update dagc to read it")
        return kept.pop("key"), Asked(**kept)
    except InvalidInput:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read ({error!r}): choose another folder") from error


def _claim(folder: Path, key: str, asked: Asked) -> None:
    """Store what was asked for in the folder. One that holds something else is refused."""
    if (folder / "config.toml").exists():
        raise InvalidInput(f"{folder} holds a run, not a comparison: choose another --output")
    if (folder / COMPARISON).exists():
        there, other = _read_asked(folder)
        if there != key:
            raise InvalidInput(f"{folder} holds another comparison ({other.command}): choose another --output")
    _write_json(folder / COMPARISON, {"version": VERSION, "key": key, **asdict(asked)})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    try:
        with write_atomically(path) as file:
            file.write(json.dumps(content, indent=1).encode())
    except OSError as error:
        raise InvalidInput(f"the comparison cannot be written to {path.parent}: {failure(error)}") from error


def _compare(asked: Asked, output: Path | None, jobs: int | None, as_json: bool) -> None:
    settings, seeds, grid, target = asked.settings, asked.seeds, asked.grid, asked.target
    ways = comparison_fields(settings, asked.methods, grid)
    for candidates in ways:  # refuse what cannot work before any work
        Federation(Config(**candidates[0]))
    jobs = jobs or os.cpu_count() or 1
    own = range(TUNING_SEEDS, TUNING_SEEDS + asked.tune_seeds)
    configs = [Config(**{**way[0], "seed": seed}) for way in ways for seed in range(seeds)]
    key = _key(configs, candidates_hash(ways, own, target) if grid else "")
    folder = output or Path("runs") / f"compare-{_slug(settings['task'])}-{key}"
    _claim(folder, key, asked)
    try:
        choices = _tuned(ways, grid, own, target, folder, jobs) if grid else []
        if choices:
            best = [{**way[0], **choice.chosen} for way, choice in zip(ways, choices, strict=True)]
            configs = [Config(**{**way, "seed": seed}) for way in best for seed in range(seeds)]
        with _bars([_name(config) for config in configs], [config.rounds for config in configs]) as show:
            paths = run_all(configs, folder, jobs, show)
    except KeyboardInterrupt:
        say(f"stopped; the same command continues, or: dagc resume {shlex.quote(str(folder))}")
        raise
    (panel,) = panels_of(map(read_run, paths), () if target is None else (target,))
    result = comparison(panel)
    if choices:
        label_of = {run.path: series.label for series in panel.series for run in series.runs}
        labels = [label_of[path] for path in paths[::seeds]]
        panel = replace(panel, notes=(*panel.notes, _tuning_note(labels, choices, own, target)))
        chosen = [{"label": label, **asdict(one)} for label, one in zip(labels, choices, strict=True)]
        result["tuned"] = {"seeds": list(own), "ways": chosen}
    page = write_report([panel], folder, panel.title, asked.command)
    _write_json(folder / "comparison.json", {**result, "runs": [path.name for path in paths]})
    if as_json:
        print(json.dumps(result))
    else:
        shared = {name: settings[name] for name in (*BUDGETS, "down") if name in settings}
        alike = {name: value for name, value in shared.items() if not isinstance(value, list)}
        _print_comparison(result, alike, panel.metric)
        said = [
            f"\n{sentence([panel])}",
            *(f"note: {note}" for note in notes([panel])),
            f"page: {page}; runs: {folder}",
        ]
        Console(highlight=False).print("\n".join(said), markup=False, soft_wrap=True)


def _settings(given: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """The settings of a file, overridden by the command line. A budget there replaces any in the file."""
    settings = {} if config is None else read_settings(config)
    if given.keys() & set(BUDGETS):
        settings = {name: value for name, value in settings.items() if name not in BUDGETS}
    return {**settings, **given}


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


def _tuned(
    ways: list[list[dict[str, Any]]],
    grid: dict[str, list[str]],
    seeds: range,
    target: float | None,
    folder: Path,
    jobs: int,
) -> list[Choice]:
    """The settings chosen for every line of the comparison, with progress."""
    with ExitStack() as bars:

        def watch(configs: Sequence[Config]) -> Any:
            names = [f"tuning {_name(config)}" for config in configs]
            return bars.enter_context(_bars(names, [config.rounds for config in configs]))

        return tune_all(ways, list(grid), seeds, target, folder, jobs, watch)


def _tuning_note(labels: list[str], choices: list[Choice], seeds: range, target: float | None) -> str:
    """The chosen settings, in words."""
    goal = "final accuracy" if target is None else f"total bytes to {100 * target:g} %"
    found = []
    for label, choice in zip(labels, choices, strict=True):
        words = [f"{name.replace('_', ' ')} {value}" for name, value in choice.chosen.items()]
        if choice.at_the_edge:
            words.append("at the edge of what was tried")
        if target is not None and choice.by == "accuracy" and choice.chosen:
            words.append("by accuracy, since none reached the target")
        found.append(f"{label}: {', '.join(words) or 'as given'}")
    on = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"tuned on {on} by {goal}. {'; '.join(found)}"


def _train(
    config: Config, folder: Path, as_json: bool, tensorboard: bool, csv: bool = False, target: float | None = None
) -> None:
    if (folder / COMPARISON).exists():
        raise InvalidInput(f"{folder} holds a comparison, not a run: choose another --output")
    callbacks = [ToTarget(target)]  # refuses impossible targets
    callbacks += [TensorBoard(folder / "tensorboard", target)] if tensorboard else []
    callbacks += [CsvLog(folder / "log.csv", target)] if csv else []
    accuracy, measured = "", 0
    training = iterate(config, folder, callbacks)
    metric = training.federation.goal.metric
    name = "" if log.is_terminal and log.width < NARROW else f"{metric} "
    for note in training.federation.notes:
        say(f"note: {note}")
    with _bars([f"{_slug(config.task)} {config.method}"], [config.rounds]) as show, stopping() as stop:
        for result in training:
            if result.score is not None:
                accuracy, measured = f"{name}{result.score:.1%}", result.round
            older = "" if log.is_terminal or measured == result.round else f" in round {measured:,}"
            show(0, result.round, (accuracy and f"{accuracy}{older}, ") + _in_words(result))
            if stop.is_set() and result.round < config.rounds:
                break
        else:
            stop.clear()
    if stop.is_set():
        say(f"stopped, with a checkpoint; continue with: dagc resume {shlex.quote(str(folder))}")
        sys.exit(130)
    rows = read_metrics(folder)
    found = {"task": config.task, "method": config.method, **summary(rows), "folder": str(folder)}
    if target is not None:
        there = next((row for row in rows if row.get(SCORE, -math.inf) >= target), None)
        amounts = ("round", "bytes_up", "bytes_down", "seconds")
        found["to_target"] = None if there is None else {"accuracy": target, **{name: there[name] for name in amounts}}
    if as_json:
        print(json.dumps(found))
        return
    table = Table(show_header=False)
    for name, value in (
        ("task, method", f"{config.task}, {config.method}"),
        (f"final {metric}", f"{percent(Spread(found[FINAL]))} ({FINAL_RULE})"),
        (f"best {metric}", percent(Spread(found[BEST]))),
        ("uploaded", in_bytes(found["bytes_up"])),
        ("downloaded", in_bytes(found["bytes_down"])),
        ("in total", in_bytes(found["bytes_up"] + found["bytes_down"])),
        *_to_target(found, target),
        ("network's clock", f"{found['seconds']:,.1f} s on {config.network}"),
        ("folder", str(folder)),
    ):
        table.add_row(name, value)
    Console(highlight=False, markup=False).print(table)


def _to_target(found: dict[str, Any], target: float | None) -> list[tuple[str, str]]:
    """The line about the target, if there is one."""
    if target is None:
        return []
    there = found["to_target"]
    if there is None:
        return [(f"to {100 * target:g} %", "not reached")]
    both = in_bytes(there["bytes_up"] + there["bytes_down"])
    return [(f"to {100 * target:g} %", f"{there['round']:,} rounds, {both} in total, {there['seconds']:,.1f} s")]


def _print_comparison(result: dict[str, Any], budgets: dict[str, Any], metric: str = "accuracy") -> None:
    words = [result["task"], *([] if result["rounds"] is None else [f"{result['rounds']:,} rounds"])]
    words += [
        f"{name} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in budgets.items()
        if value is not None
    ]
    title = f"{', '.join(words)}; until {100 * result['target']:g} % {metric}:"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("method", "final, %", "rounds", "up", "down", "total", "× best", "seconds"):
        first = name == "method"
        table.add_column(name, justify="left" if first else "right", no_wrap=not first, overflow="fold")
    goals = [row["to_target"] for row in result["methods"]]
    fewest = min((goal["bytes_total"] for goal in goals if goal["bytes_total"] is not None), default=None)
    for row, goal in zip(result["methods"], goals, strict=True):
        there = [f"{goal['reached']} of {row['seeds']}", *[""] * 5]
        if goal["bytes_total"] is not None:
            there = [f"{goal['rounds']:,.0f}", *(in_bytes(goal[name]) for name in BYTES)]
            there += [brief(goal["bytes_total"] / fewest) if fewest else "", brief(goal["seconds"])]
        final, sd = row[FINAL], row[f"{FINAL}_sd"]
        end = "–" if final is None else f"{100 * final:.1f}" + ("" if sd is None else f" ± {100 * sd:.1f}")
        table.add_row(row["label"], end, *there)
    Console(highlight=False).print(table)


@contextmanager
def _bars(names: list[str], rounds: list[int]) -> Iterator[Any]:
    """Live progress on a terminal; otherwise an occasional line."""
    if not log.is_terminal:
        last = [0] * len(names)

        def lines(number: int, done: int, text: str = "") -> None:
            of = rounds[number]
            tenth = len(names) == 1 and done * 10 // of > last[number] * 10 // of
            if done > last[number] and (done == of or tenth):
                say(f"{names[number]}: round {done:,} of {of:,} {text}")
                last[number] = done

        yield lines
        return
    narrow, digits = log.width < NARROW, len(str(max(rounds)))
    columns = (
        TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=18 if narrow else 60)
        ),
        BarColumn(8 if narrow else 40, table_column=Column(min_width=8)),
        TextColumn("{task.completed}/{task.total}", table_column=Column(justify="right", min_width=2 * digits + 1)),
        *(() if narrow else (TimeElapsedColumn(),)),
        TimeRemainingColumn(table_column=Column(min_width=7)),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=log) as bars:
        tasks = [bars.add_task(name, total=of, text="") for name, of in zip(names, rounds, strict=True)]
        yield lambda number, done, text="": bars.update(
            tasks[number], completed=done, **({"text": text} if text else {})
        )


def _in_words(result: Round) -> str:
    nobody = "nobody answered, " if result.loss is None else ""
    return f"{nobody}up {in_bytes(result.bytes_up)}, down {in_bytes(result.bytes_down)}"


def _slug(task: str) -> str:
    return Path(task).name if "/" in task else task
