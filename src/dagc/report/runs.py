"""Runs on disk: what a report needs to know about each, read once and never changed."""

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagc.errors import InvalidInput
from dagc.folder import SCORE, read_clients, read_metrics, read_settings, summary

REQUIRED = {"task": str, "method": str, "rounds": int}  # the settings that every engine records


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
    """The folders of runs among these, and anywhere below them, in order; runs do not contain runs."""
    runs: dict[Path, None] = {}
    for folder in map(Path, paths):
        if not folder.exists():
            raise InvalidInput(f"there is no folder {folder}: give the folder of a run, or one that holds runs")
        below = []
        for where, inside, files in os.walk(folder):
            inside.sort()
            if "config.toml" in files:
                inside.clear()
                below.append(Path(where))
        if not below:
            raise InvalidInput(f"{folder} holds no run: give a folder with a config.toml, or one above such folders")
        runs |= dict.fromkeys(below)
    return list(runs)


def read_run(path: Path) -> Run:
    """Read a run's folder.

    Raises:
        InvalidInput: It is damaged, or there is nothing to report yet; the message names the folder.
    """
    settings = read_settings(path)
    missing = [name for name, kind in REQUIRED.items() if not isinstance(settings.get(name), kind)]
    if missing or not isinstance(settings.get("seed", 0), int):
        raise InvalidInput(f"{path} is not a run's folder: its config.toml has no {', '.join(missing) or 'valid seed'}")
    clients, lines = read_clients(path), read_metrics(path)
    rows = [line for line in lines if SCORE in line]
    if not rows:
        advice = f"continue it with dagc resume {path}"
        if settings.get("engine") == "flower":
            advice = "give start() an evaluate_fn, or the strategy a fraction_evaluate above 0"
        raise InvalidInput(f"{path} has not been evaluated yet: {advice}")
    result = {**summary(lines), "entries_sent": sum(line["entries"] for line in lines)}
    first, everybody = lines[0], len(clients["sizes"])
    # A Flower app may also send the model for evaluation by its nodes, which is not counted separately.
    known = "engine" not in settings and settings.get("first_model") != "drawn"
    known = known and (first["round"], first.get("present")) == (1, everybody)
    return Run(path, settings, clients, rows, result, int(first["bytes_down"]) if known else None)


def read_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Read all runs in these folders or anywhere below them. Runs that cannot be read are left out, with a warning.

    Raises:
        InvalidInput: There is no run, or none that can be read.
    """
    runs, problems = [], []
    for path in find_runs(paths):
        try:
            runs.append(read_run(path))
        except InvalidInput as error:
            problems.append(str(error))
    if not runs:
        raise InvalidInput(problems[0] if len(problems) == 1 else f"no run can be reported: {'; '.join(problems)}")
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    return runs
