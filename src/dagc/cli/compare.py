"""`dagc compare`: several methods on the same data, seeds and model."""

import hashlib
import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dagc.cli.options import AsJson, ConfigFile, Jobs, passed, settings_of, with_flags
from dagc.cli.progress import progress_of
from dagc.cli.report import command_line
from dagc.cli.table import print_panels
from dagc.cli.terminal import say
from dagc.comparison import SWEPT, comparison_fields, run_all, split_methods
from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.report import comparison, panels_of, read_run, write_report
from dagc.training import Config, Federation, ToTarget

__all__ = ["COMPARISON", "Question", "compare", "compare_as", "read_question"]

COMPARISON = "compare.json"
"""The file in a comparison's folder that says what was asked."""
VERSION = 1
"""The version of that file."""


@with_flags("method", "seed", lists=SWEPT)
def compare(
    task: Annotated[str | None, typer.Argument(help="MODEL@DATA, e.g. mlp@table.csv (default: mlp@digits).")] = None,
    methods: Annotated[
        str, typer.Option(help="Separated by commas; NAME:key=value,… gives a method its own settings.")
    ] = "dagc,thrifty,dagc-r,stc,none",
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds: 0, 1, 2, …")] = 3,
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

    A setting with several values, e.g. --ratio 0.001,0.01 or --learning-rate 0.05,0.1,0.2, makes a line for each.

    If it was killed or stopped with Ctrl-C, the same command continues; finished runs are not repeated.

    Example: dagc compare mlp@digits --local-steps 20 --rounds 100 --target 0.9
    """
    values = passed({"task": task, **flags}, SWEPT)
    settings = {"task": Config.default("task"), **settings_of(values, config)}
    settings = {name: value for name, value in settings.items() if name not in ("method", "seed")}
    compare_as(Question(settings, split_methods(methods), seeds, target, command_line()), output, jobs, as_json)


@dataclass(frozen=True)
class Question:
    """What a comparison was asked. It is stored in its folder, so that it can be resumed and recognized."""

    settings: dict[str, Any]
    methods: list[str]
    seeds: int
    target: float | None
    command: str


def read_question(folder: Path) -> tuple[str, Question]:
    """The key of the comparison in a folder, and what was asked."""
    file = folder / COMPARISON
    try:
        stored = json.loads(file.read_bytes())
        newer = stored.pop("version") > VERSION
        key, question = stored.pop("key"), None if newer else Question(**stored)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{file} cannot be read ({error!r}): choose another folder") from error
    if question is None:
        raise InvalidInput(f"{file} was written by a newer version of dagc: update dagc to read it")
    return key, question


def compare_as(question: Question, output: Path | None, jobs: int | None, as_json: bool) -> None:
    """Run what is missing, and report it."""
    ToTarget(question.target)  # refuses impossible targets
    lines = comparison_fields(question.settings, question.methods)
    for fields in lines:  # refuse what cannot work before any work
        Federation(Config(**fields))
    configs = [Config(**{**fields, "seed": seed}) for fields in lines for seed in range(question.seeds)]
    key = hashlib.sha256(" ".join(config.key() for config in configs).encode()).hexdigest()[:8]
    task = question.settings["task"]
    folder = output or Path("runs") / f"compare-{Path(task).name if '/' in task else task}-{key}"
    _claim(folder, key, question)
    try:
        names = [f"{config.method}, seed {config.seed}" for config in configs]
        with progress_of(names, [config.rounds for config in configs]) as show:
            paths = run_all(configs, folder, jobs or os.cpu_count() or 1, show)
    except KeyboardInterrupt:
        say(f"stopped; the same command continues, or: dagc resume {shlex.quote(str(folder))}")
        raise
    (panel,) = panels_of(map(read_run, paths), () if question.target is None else (question.target,))
    page = write_report([panel], folder, panel.title, question.command)
    if as_json:
        print(json.dumps(comparison(panel)))
    else:
        print_panels([panel], f"page: {page}; runs: {folder}")


def _claim(folder: Path, key: str, question: Question) -> None:
    """Store the question in the folder. One that holds something else is refused."""
    if (folder / "config.toml").exists():
        raise InvalidInput(f"{folder} holds a run, not a comparison: choose another --output")
    if (folder / COMPARISON).exists():
        other_key, other = read_question(folder)
        if other_key != key:
            raise InvalidInput(f"{folder} holds another comparison ({other.command}): choose another --output")
    try:
        with write_atomically(folder / COMPARISON) as file:
            file.write(json.dumps({"version": VERSION, "key": key, **asdict(question)}, indent=1).encode())
    except OSError as error:
        raise InvalidInput(f"the comparison cannot be written to {folder}: {failure(error)}") from error
