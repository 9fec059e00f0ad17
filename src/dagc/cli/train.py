"""`dagc run`, `dagc resume`, `dagc compare`: training from the command line."""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dagc.cli.options import given_fields, with_config_flags
from dagc.cli.report import command_line
from dagc.data.folder import write_atomically
from dagc.errors import InvalidInput
from dagc.experiments import compared, comparison_configs, run_all, stopping
from dagc.report import panels_of, read_run, sentence, write_report
from dagc.report.numbers import in_bytes
from dagc.training import Config, Federation, Round, read_metrics, summary, train

__all__ = ["compare", "resume", "run"]

ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file; flags change what it says.")]
Output = Annotated[
    Path | None, typer.Option(help="The run's folder (default: runs/TASK/METHOD-…).", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
TensorBoard = Annotated[bool, typer.Option(help="Write TensorBoard logs to the run's folder, too.")]

log = Console(stderr=True, highlight=False)


@with_config_flags()
def run(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. cnn@cifar-10.")] = None,
    config: ConfigFile = None,
    output: Output = None,
    as_json: AsJson = False,
    tensorboard: TensorBoard = False,
    **fields: Any,
) -> None:
    """Train one model over many clients, with one method.

    Killed or stopped with Ctrl-C, the same command goes on where it was.

    Example: dagc run logistic@fashion-mnist --method dagc-r --ratio 0.001 --workers 10 --skew-ratio 100
    """
    given = given_fields({"task": task, **fields})
    if not given and config is None:
        raise InvalidInput("say what to train: dagc run TASK, e.g. dagc run mlp@digits --ratio 0.01, or --config FILE")
    settings = _with_budget(given, config)
    folder = output or Path("runs") / _slug(settings.task) / f"{settings.method}-{settings.key()}"
    _train(settings, folder, as_json, tensorboard)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run that did not come to its end.")],
    as_json: AsJson = False,
    tensorboard: TensorBoard = False,
) -> None:
    """Go on with a run from its last checkpoint; the result is the same to the bit."""
    if not (folder / "config.toml").exists():
        raise InvalidInput(f"{folder} is not a run's folder: it has no config.toml")
    _train(Config.read(folder / "config.toml"), folder, as_json, tensorboard)


@with_config_flags("method", "seed")
def compare(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. cnn@cifar-10 (default: mlp@digits).")] = None,
    methods: Annotated[str, typer.Option(help="With commas between them.")] = "dagc-r,top-k,accordion,none",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …")] = 3,
    target: Annotated[float | None, typer.Option(help="Accuracy to be reached, e.g. 0.75.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: the cores).")] = None,
    config: ConfigFile = None,
    output: Output = None,
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Compare methods on the same data, seeds, model and budget.

    Killed or stopped with Ctrl-C, the same command goes on where it was; what is finished is not done again.

    Example: dagc compare logistic@fashion-mnist --methods dagc-r,top-k,none --ratio 0.001 --seeds 4 --target 0.75
    """
    base = given_fields({"task": task, **fields})
    if config is not None:
        told = Config.read(config).model_dump(exclude_none=True, exclude={"method", "seed"})
        if {"ratio", "budget_bytes"} & base.keys():  # these two say the same: a flag replaces the file's
            told = {name: value for name, value in told.items() if name not in ("ratio", "budget_bytes")}
        base = {**told, **base}
    task = base.setdefault("task", Config.model_fields["task"].default)
    budgets = {name: base.pop(name, None) for name in ("ratio", "budget_bytes", "budget_rate", "threshold")}
    if all(value is None for value in budgets.values()):
        budgets["ratio"] = 0.01
    configs = comparison_configs(base, [name.strip() for name in methods.split(",")], range(seeds), budgets)
    for method in dict.fromkeys(config.method for config in configs):  # what cannot work is refused before any work
        Federation(next(config for config in configs if config.method == method))
    folder = output or Path("runs") / f"compare-{_slug(task)}"
    try:
        with _bars([f"{c.method}, seed {c.seed}" for c in configs], configs[0].rounds) as tell:
            paths = run_all(configs, folder, jobs or os.cpu_count() or 1, tell)
    except KeyboardInterrupt:
        log.print(f"stopped; the same command goes on from {folder}", markup=False, soft_wrap=True)
        raise
    result = compared(configs, paths, target)
    with write_atomically(folder / "comparison.json") as file:
        file.write(json.dumps({**result, "runs": [path.name for path in paths]}, indent=1).encode())
    panels = panels_of(map(read_run, paths), () if target is None else (target,))
    page = write_report(panels, folder, panels[0].title, command_line())
    if as_json:
        print(json.dumps(result))
    else:
        _print_comparison(result, budgets)
        Console(highlight=False).print(
            f"\n{sentence(panels)}\npage: {page}; runs: {folder}", markup=False, soft_wrap=True
        )


def _with_budget(given: dict[str, Any], config: Path | None) -> Config:
    settings = Config.read(config, **given) if config is not None else Config(**given)
    if settings.method != "none" and settings.ratio is settings.threshold is settings.round_bytes is None:
        raise InvalidInput(
            f"method {settings.method!r} needs a budget: give --ratio (e.g. 0.001), --threshold or --budget-bytes"
        )
    return settings


def _train(config: Config, folder: Path, as_json: bool, tensorboard: bool) -> None:
    callbacks = [_tensorboard(folder)] if tensorboard else []
    accuracy = ""
    with (
        warnings.catch_warnings(),
        _bars([f"{config.task} {config.method}"], config.rounds) as tell,
        stopping() as stop,
    ):
        warnings.showwarning = lambda message, *_: log.print(f"warning: {message}", style="yellow", markup=False)
        for result in train(config, folder, callbacks):
            accuracy = accuracy if result.accuracy is None else f"accuracy {result.accuracy:.1%}, "
            tell(0, result.round, accuracy + _in_words(result))
            if stop.is_set() and result.round < config.rounds:
                break
        else:
            stop.clear()
    if stop.is_set():
        log.print(f"stopped after a checkpoint; go on with: dagc resume {folder}", markup=False, soft_wrap=True)
        sys.exit(130)
    told = {"task": config.task, "method": config.method, **summary(read_metrics(folder)), "folder": str(folder)}
    if as_json:
        print(json.dumps(told))
        return
    table = Table(show_header=False)
    for name, value in (
        ("task, method", f"{config.task}, {config.method}"),
        ("final accuracy", f"{told['final_accuracy']:.2%} (mean of the last evaluations)"),
        ("best accuracy", f"{told['best_accuracy']:.2%}"),
        ("uploaded", in_bytes(told["bytes_up"])),
        ("downloaded", in_bytes(told["bytes_down"])),
        ("network's clock", f"{told['seconds']:,.1f} s on {config.network}"),
        ("folder", str(folder)),
    ):
        table.add_row(name, value)
    Console(highlight=False, markup=False).print(table)


def _print_comparison(result: dict[str, Any], budgets: dict[str, Any]) -> None:
    budget = ", ".join(
        f"{name} {value if isinstance(value, str) else format(value, 'g')}"
        for name, value in budgets.items()
        if value is not None
    )
    title = f"{result['task']}, {result['rounds']:,} rounds, {budget}; up to {result['target']:.0%} accuracy:"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("method", "final", "best", "rounds", "bytes up", "× best", "seconds", "all up"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    reached = [row["to_target"]["bytes"] for row in result["methods"] if row["to_target"]["bytes"] is not None]
    for row in result["methods"]:
        to, sd = row["to_target"], row["final_accuracy_sd"]
        there = [f"{to['reached']} of {row['seeds']}", "", "", ""]
        if to["bytes"] is not None:
            times = f"{to['bytes'] / min(reached):.1f}"
            there = [f"{to['iterations']:,.0f}", in_bytes(to["bytes"]), times, f"{to['seconds']:,.1f}"]
        final = f"{100 * row['final_accuracy']:.1f}" + (f" ± {100 * sd:.1f} %" if sd is not None else " %")
        table.add_row(row["method"], final, f"{row['best_accuracy']:.1%}", *there, in_bytes(row["bytes_up"]))
    Console(highlight=False).print(table)


@contextmanager
def _bars(names: list[str], rounds: int) -> Iterator[Any]:
    """Live progress on a terminal; on anything else a line now and then."""
    if not log.is_terminal:
        last = [0] * len(names)

        def say(number: int, done: int, text: str = "") -> None:
            tenth = len(names) == 1 and done * 10 // rounds > last[number] * 10 // rounds
            if done > last[number] and (done == rounds or tenth):
                log.print(f"{names[number]}: round {done:,} of {rounds:,} {text}", markup=False, soft_wrap=True)
                last[number] = done

        yield say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=log) as bars:
        tasks = [bars.add_task(name, total=rounds, text="") for name in names]
        yield lambda number, done, text="": bars.update(
            tasks[number], completed=done, **({"text": text} if text else {})
        )


def _in_words(result: Round) -> str:
    return f"loss {result.loss:.4g}, up {in_bytes(result.bytes_up)}, down {in_bytes(result.bytes_down)}"


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInput("--tensorboard needs the package tensorboard: pip install tensorboard") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def write(federation: Federation, result: Round) -> None:
        for name in ("loss", "accuracy", "test_loss", "bytes_up", "bytes_down", "seconds"):
            value = getattr(result, name)
            if value is not None:
                writer.add_scalar(name, value, result.round)
        if result.accuracy is not None:
            writer.flush()

    return write


def _slug(task: str) -> str:
    return Path(task).name if "/" in task else task
