"""Runs as they lie on disk: what a report needs of each, read once and never changed."""

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagc.errors import InvalidInput
from dagc.training import Config, read_metrics, summary

__all__ = ["Run", "find_runs", "read_run"]


@dataclass(frozen=True, eq=False)
class Run:
    """One run.

    Attributes:
        path: Its folder.
        config: What was run.
        clients: Who took part, as `clients.json` has it.
        rows: The evaluated rounds, with `entries_sent`, the entries uploaded so far.
        result: Accuracies, bytes and seconds at its end, or as far as it came.
    """

    path: Path
    config: Config
    clients: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return bool(self.result["rounds"] == self.config.rounds)


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The folders of runs among these, or directly below them (as `dagc compare` lays them)."""
    found: list[Path] = []
    for given in map(Path, paths):
        if not given.exists():
            raise InvalidInput(f"there is no folder {given}: give the folder of a run, or one that holds runs")
        below = sorted(path.parent for path in given.glob("*/config.toml"))
        inside = [given] if (given / "config.toml").exists() else below
        if not inside:
            raise InvalidInput(f"{given} holds no run: give a folder that has a config.toml, or one above such folders")
        found += [path for path in inside if path not in found]
    return found


def read_run(path: Path) -> Run:
    """Read a run's folder."""
    try:
        # Not checked: what ran elsewhere may name a device or a data file that is not here.
        config = Config.model_construct(**tomllib.loads((path / "config.toml").read_text()))
        clients = json.loads((path / "clients.json").read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} is not a whole run's folder: {error}") from error
    lines = read_metrics(path)
    rows = _evaluated(lines)
    if not rows:
        raise InvalidInput(f"{path} has not been evaluated yet: let it go on with dagc resume {path}")
    return Run(path, config, clients, rows, summary(lines))


def _evaluated(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows, entries = [], 0
    for line in lines:
        entries += line["entries"]
        if "accuracy" in line:
            rows.append({**line, "entries_sent": entries})
    return rows
