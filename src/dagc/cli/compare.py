"""`dagc compare` and `dagc report`: several methods on the same data, and a page about runs."""

import hashlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dagc.cli.options import AsJson, ConfigFile, Target, passed, settings_of, targets, with_flags
from dagc.cli.terminal import print_panels, progress_of, say
from dagc.comparison import SWEPT, comparison_fields, run_all, split_methods
from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.report import comparison, panels_of, read_run, read_runs, write_report
from dagc.training import Config, Federation

COMPARISON = "compare.json"  # the file in a comparison's folder that says which one it is


@with_flags("method", "seed", lists=SWEPT)
def compare(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. mlp@table.csv (default: mlp@digits).")] = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas; NAME:key=value,… gives a method its own settings.")
    ] = "dagc,thrifty,dagc-r,stc,none",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds: 0, 1, 2, …")] = 3,
    target: Target = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: the number of cores).")] = None,
    config: ConfigFile = None,
    output: Annotated[
        Path | None, typer.Option(help="The comparison's folder (default: runs/compare-TASK-…).", show_default=False)
    ] = None,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Compare methods on the same data, seeds and model; each gets the budget and the options that it takes.

    A setting with several values, e.g. --ratio 0.001,0.01 or --learning-rate 0.05,0.1,0.2, makes a line for each.

    If it was killed or stopped with Ctrl-C, the same command continues; finished runs are not repeated.

    Example: dagc compare mlp@digits --local-steps 20 --rounds 100 --target 0.9
    """
    settings = {"task": Config.default("task"), **settings_of(passed({"task": task, **flags}, SWEPT), config)}
    settings = {name: value for name, value in settings.items() if name not in ("method", "seed")}
    lines = comparison_fields(settings, split_methods(methods))
    for fields in lines:  # refuse what cannot work before any work
        Federation(Config(**fields))
    configs = [Config(**{**fields, "seed": seed}) for fields in lines for seed in range(seeds)]
    key = hashlib.sha256(" ".join(each.key() for each in configs).encode()).hexdigest()[:8]
    folder = output or Path("runs") / f"compare-{short(str(settings['task']))}-{key}"
    _claim(folder, key)
    names = [f"{each.method}, seed {each.seed}" for each in configs]
    try:
        with progress_of(names, [each.rounds for each in configs]) as show:
            paths = run_all(configs, folder, jobs or os.cpu_count() or 1, show)
    except KeyboardInterrupt:
        say(f"stopped; the same command continues from {folder}")
        raise
    (panel,) = panels_of(map(read_run, paths), () if target is None else (target,))
    page = write_report([panel], folder, panel.title, command_line())
    if as_json:
        print(json.dumps(comparison(panel)))
    else:
        print_panels([panel], f"page: {page}; runs: {folder}")


def _claim(folder: Path, key: str) -> None:
    """Write down which comparison the folder holds. One that holds something else is refused."""
    file = folder / COMPARISON
    if (folder / "config.toml").exists():
        raise InvalidInput(f"{folder} holds a run, not a comparison: choose another --output")
    try:
        held = json.loads(file.read_bytes()) if file.exists() else {"key": key}
        ours, command = held["key"] == key, held.get("command")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read ({error!r}): choose another --output") from error
    if not ours:
        raise InvalidInput(f"{folder} holds another comparison ({command}): choose another --output")
    try:
        with write_atomically(file) as opened:
            opened.write(json.dumps({"key": key, "command": command_line()}).encode())
    except OSError as error:
        raise InvalidInput(f"the comparison cannot be written to {folder}: {failure(error)}") from error


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders with runs anywhere below them.")],
    output: Annotated[Path, typer.Option(help="Where to write.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    goals: Annotated[str | None, typer.Option("--targets", help="Accuracies to reach, e.g. 0.75,0.8.")] = None,
) -> None:
    """Write one page about runs, and their numbers as JSON.

    Runs that differ only in the seed become one line with a band. Unreadable runs are left out, with a warning.

    Example: dagc report runs --targets 0.8,0.9
    """
    panels = panels_of(read_runs(runs), targets(goals))
    heading = title or (panels[0].title if len(panels) == 1 else f"{len(panels)} settings")
    page = write_report(panels, output, heading, command_line())
    print_panels(panels, f"page: {page}")


def command_line(program: str = "dagc") -> str:
    """The command as it was given."""
    return f"{program} {shlex.join(sys.argv[1:])}"


def short(task: str) -> str:
    """A task without the folders of its data."""
    return Path(task).name if "/" in task else task
