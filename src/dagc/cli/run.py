"""`dagc run` and `dagc resume`: training from the command line."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dagc.cli.compare import COMPARISON, short
from dagc.cli.options import AsJson, ConfigFile, Target, passed, settings_of, with_flags
from dagc.cli.terminal import progress_of, say
from dagc.comparison import stopping
from dagc.errors import InvalidInput
from dagc.folder import BEST, ENOUGH, FINAL, LAST, SCORE, read_settings
from dagc.text import Spread, in_bytes, percent, printable
from dagc.training import Config, TensorBoard, iterate, read_metrics, summary

Tensors = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs to the run's folder.")]


@with_flags()
def run(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. mlp@table.csv.")] = None,
    config: ConfigFile = None,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder (default: runs/TASK/METHOD-…).", show_default=False)
    ] = None,
    as_json: AsJson = False,
    tensorboard: Tensors = False,
    target: Target = None,
    **flags: Any,
) -> None:
    """Train one model over many clients, with one method.

    If it was killed or stopped with Ctrl-C, the same command continues from the last checkpoint.

    Example: dagc run mlp@digits --local-steps 20 --lr 0.1 --rounds 200
    """
    values = passed({"task": task, **flags})
    if not values and config is None:
        raise InvalidInput("nothing to train: give a task, e.g. dagc run mlp@digits, or --config FILE")
    checked = Config(**settings_of(values, config))
    folder = output or Path("runs") / short(checked.task) / f"{checked.method}-{checked.key()}"
    if (folder / COMPARISON).exists():
        raise InvalidInput(f"{folder} holds a comparison, not a run: choose another --output")
    _train(checked, folder, as_json, tensorboard, target)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an unfinished run.")],
    as_json: AsJson = False,
    tensorboard: Tensors = False,
    target: Target = None,
) -> None:
    """Continue a run from its last checkpoint. The result is the same, bit for bit."""
    if (folder / COMPARISON).exists():
        raise InvalidInput(f"{folder} holds a comparison: repeat its command to continue it")
    if not (folder / "config.toml").exists():
        raise InvalidInput(f"{folder} is not the folder of a run: it has no config.toml")
    settings = read_settings(folder)
    if "engine" in settings:
        raise InvalidInput(f"{folder} holds a run of {settings['engine']}: start its own app again to continue it")
    _train(Config(**settings), folder, as_json, tensorboard, target)


def _train(config: Config, folder: Path, as_json: bool, tensorboard: bool, target: float | None) -> None:
    training = iterate(config, folder, [TensorBoard(folder / "tensorboard", target)] if tensorboard else ())
    metric = training.federation.goal.metric
    for note in training.federation.notes:
        say(f"note: {note}")
    score = ""
    with progress_of([f"{short(config.task)} {config.method}"], [config.rounds]) as show, stopping() as stop:
        for result in training:
            if result.score is not None:
                score = f"{metric} {result.score:.1%}, "
            nobody = "nobody answered, " if result.loss is None else ""
            sent = f"up {in_bytes(result.bytes_up)}, down {in_bytes(result.bytes_down)}"
            show(0, result.round, f"{score}{nobody}{sent}")
            if stop.is_set() and result.round < config.rounds:
                break
        else:
            stop.clear()
    if stop.is_set():
        say(f"stopped, with a checkpoint; continue with: dagc resume {shlex.quote(str(folder))}")
        sys.exit(130)
    rows = read_metrics(folder)
    totals = {"task": config.task, "method": config.method, **summary(rows), "folder": str(folder)}
    if target is not None:
        reached = next((row for row in rows if row.get(SCORE, -math.inf) >= target), None)
        amounts = ("round", "bytes_up", "bytes_down", "seconds")
        totals["to_target"] = None if reached is None else {SCORE: target, **{name: reached[name] for name in amounts}}
    if as_json:
        print(json.dumps(totals))
    else:
        scores = sum(SCORE in row for row in rows)
        final = f"final {metric}, mean of last {LAST}" if scores >= ENOUGH else f"final {metric}"
        _print(totals, metric, config.network, target, final)


def _print(result: dict[str, Any], metric: str, network: str, target: float | None, final: str) -> None:
    table = Table(show_header=False)
    table.add_row("task, method", f"{result['task']}, {result['method']}")
    table.add_row(final, percent(Spread(result[FINAL])))
    table.add_row(f"best {metric}", percent(Spread(result[BEST])))
    table.add_row("uploaded", in_bytes(result["bytes_up"]))
    table.add_row("downloaded", in_bytes(result["bytes_down"]))
    table.add_row("in total", _total(result))
    if target is not None:
        way, words = result["to_target"], "not reached"
        if way is not None:
            words = f"{way['round']:,} rounds, {_total(way)} in total, {way['seconds']:,.1f} s"
        table.add_row(f"to {100 * target:g} %", words)
    table.add_row("network's clock", f"{result['seconds']:,.1f} s on {network}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(f"folder: {printable(result['folder'])}", soft_wrap=True)  # never cut: report and resume need it


def _total(row: dict[str, Any]) -> str:
    return in_bytes(row["bytes_up"] + row["bytes_down"])
