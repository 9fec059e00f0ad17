"""Runs on disk: what a report needs to know about each, read once and never changed."""

import json
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagc.errors import InvalidInput, shown
from dagc.folder import read_metrics, read_settings, summary

__all__ = ["TUNING", "Run", "find_runs", "read_run", "read_runs"]

TUNING = "tuning"
"""A folder with runs that only tuned settings for others; they are not reported with the runs around it."""
NUMBERS = ("round", "entries", "bytes_up", "bytes_down", "seconds")
LARGEST = 2.0**53
"""All numbers of a run are smaller."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run.

    Attributes:
        path: Its folder.
        settings: The content of `config.toml`. Which settings there are depends on the engine; `task`, `method` and
            `rounds` are always there.
        clients: The content of `clients.json`; `sizes` and `parameters` are always there.
        rows: The evaluated rounds.
        result: Accuracies, bytes, entries sent and seconds at its end, or at the last round so far.
        first_download: Bytes of the model that every client downloaded in the first round; None if not known.
    """

    path: Path
    settings: dict[str, Any]
    clients: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any]
    first_download: int | None = None

    @property
    def local(self) -> bool:
        """Whether `dagc run` can repeat it: only other engines record their name."""
        return "engine" not in self.settings

    @property
    def seed(self) -> int:
        """The seed; 0 if none is recorded."""
        return int(self.settings.get("seed", 0))

    @property
    def finished(self) -> bool:
        """Whether it ran to its end."""
        return bool(self.result["rounds"] >= self.settings["rounds"])


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The folders of runs among these, and anywhere below them."""
    found: list[Path] = []
    for given in map(Path, paths):
        if not given.exists():
            raise InvalidInput(f"there is no folder {given}: give the folder of a run, or one that holds runs")
        inside = list(_below(given))
        if not inside:
            raise InvalidInput(f"{given} holds no run: give a folder that has a config.toml, or one above such folders")
        found += [path for path in inside if path not in found]
    return found


def read_run(path: Path) -> Run:
    """Read a run's folder.

    Raises:
        InvalidInput: It is damaged, or there is nothing to report yet; the message names the folder.
    """
    settings = read_settings(path)
    missing = [name for name in ("task", "method", "rounds") if name not in settings]
    if missing:
        raise InvalidInput(f"{path} is not a run's folder: its config.toml has no {', '.join(missing)}")
    clients = _clients(path)
    lines = [_line(path, number, line) for number, line in enumerate(read_metrics(path), 1)]
    rows = [line for line in lines if "accuracy" in line]
    if not rows:
        advice = {"flower": ": give start() an evaluate_fn, or the strategy a fraction_evaluate above 0"}
        resume = advice.get(str(settings.get("engine")), f": continue it with dagc resume {path}")
        raise InvalidInput(f"{path} has not been evaluated yet{resume}")
    measured = [row["accuracy"] for row in rows if math.isfinite(row["accuracy"])]
    result = {**summary(lines), "best_accuracy": max(measured, default=math.nan)}
    result["entries_sent"] = sum(line["entries"] for line in lines)
    return Run(path, settings, clients, rows, result, _first_download(settings, clients, lines[0]))


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Read all runs in these folders or anywhere below them. Runs that cannot be read are left out, with a warning.

    Raises:
        InvalidInput: There is no run, or none that can be read.
    """
    folders = find_runs(paths)
    runs, problems = [], []
    for path in folders:
        try:
            runs.append(read_run(path))
        except InvalidInput as error:
            problems.append(str(error))
    if not runs:
        raise InvalidInput(problems[0] if len(problems) == 1 else f"no run can be reported: {'; '.join(problems)}")
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    return runs


def _below(folder: Path) -> Iterable[Path]:
    """The folders of runs here or below, in order; runs do not contain runs."""
    for where, inside, files in os.walk(folder):
        inside[:] = sorted(name for name in inside if name != TUNING)
        if "config.toml" in files:
            inside.clear()
            yield Path(where)


def _clients(path: Path) -> dict[str, Any]:
    try:
        clients: dict[str, Any] = json.loads((path / "clients.json").read_bytes())
        whole = min(clients["sizes"]) >= 0 and clients["parameters"] >= 1
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInput(f"{path} is not a complete run: its clients.json cannot be read ({error!r})") from error
    if not whole:
        raise InvalidInput(f"{path} is not a complete run: its clients.json has no sizes or no parameters")
    return clients


def _first_download(settings: dict[str, Any], clients: dict[str, Any], line: dict[str, Any]) -> int | None:
    """The bytes that the first round sent down, if that was the model for every client and nothing else.

    A Flower app may also send the model for evaluation by its nodes, which is not counted separately.
    """
    everybody = line["round"] == 1 and line.get("present") == len(clients["sizes"])
    if "engine" in settings or settings.get("first_model") == "drawn" or not everybody:
        return None
    return int(line["bytes_down"])


def _line(path: Path, number: int, line: dict[str, Any]) -> dict[str, Any]:
    """A line of the metrics, if its numbers can be those of a run. An accuracy beyond all bounds is as good as none."""
    for name in NUMBERS:
        value, least = line.get(name), 1 if name == "round" else 0
        right = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < LARGEST
        if not right or (name == "round" and not isinstance(value, int)):
            raise InvalidInput(
                f"line {number} of {path / 'metrics.jsonl'} has {shown(value)} as {name}, which is no number of a run"
            )
    accuracy = line.get("accuracy", 0.0)
    if not isinstance(accuracy, int | float):
        raise InvalidInput(f"line {number} of {path / 'metrics.jsonl'} has {shown(accuracy)} as accuracy")
    return line if abs(accuracy) < LARGEST else {**line, "accuracy": math.nan}
