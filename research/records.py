"""Records: what is kept of every run behind a figure, small enough to be stored with the source.

`results/EXPERIMENT/CELL.jsonl` begins with the settings that all its records share. Then it has a line for each variant
that was tuned and one for each run. A run is known again by its settings, not by its folder: on any machine, and by
later versions, which may have more settings. If a default has changed since, it is not the same run.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dagc.errors import InvalidInput
from dagc.files import failure, locked, write_atomically
from dagc.folder import LAST
from dagc.report import Run
from dagc.training import Config
from dagc.training.config import IRRELEVANT
from research.cells import Cell
from research.origin import origin
from research.parts import load
from research.tuning import Choice

__all__ = ["Record", "Store", "Tuned", "described", "identity", "plan_of", "record_of"]

KEPT = 20
"""About as many evaluations are kept for a curve, besides those that first reach a score."""
COLUMNS = ("round", "score", "bytes_up", "bytes_down", "seconds")
"""What is kept of an evaluation."""
PATIENCE = 60.0
"""Seconds to wait for another process that writes a record."""


@dataclass(frozen=True)
class Record:
    """A run.

    Attributes:
        variant: What people call it.
        seed: Its seed.
        commit: What it was made with; None if that is not known.
        version: The version of dagc; None if that is not known.
        stand_in: The substitute for the data that the settings name, if there was one.
        sizes: The clients' examples.
        parameters: Of the model.
        metric: What the score is called.
        first_download: As `Run` has it.
        result: Scores, bytes, entries sent, rounds and seconds at the end.
        settings: All of them, as the cell has them; `described` makes them.
        evaluations: A list for each of `COLUMNS`. Every evaluation that was better than all before it is there, so the
            first one at any score is.
        plan: What the plan's settings were for this model, defaults included; None in old records.
    """

    variant: str
    seed: int
    commit: str | None
    version: str | None
    stand_in: str | None
    sizes: list[int]
    parameters: int
    metric: str
    first_download: int | None
    result: dict[str, Any]
    settings: dict[str, Any]
    evaluations: dict[str, list[float]]
    plan: dict[str, Any] | None = None

    def called(self, variant: str) -> "Record":
        """The same under another name."""
        return replace(self, variant=variant)

    def run(self) -> Run:
        """As reports read it."""
        rows = [
            dict(zip(COLUMNS, values, strict=True))
            for values in zip(*(self.evaluations[name] for name in COLUMNS), strict=True)
        ]
        clients = {"sizes": self.sizes, "parameters": self.parameters, "metric": self.metric}
        return Run(Path(), self.settings, clients, rows, self.result, self.first_download)


@dataclass(frozen=True)
class Tuned:
    """What was chosen for a variant.

    Attributes:
        variant: What people call it.
        seeds: Those that it was chosen on.
        target: The score to be reached.
        commit: What the runs were made with.
        stand_in: The substitute for the data, if there was one.
        chosen: As `Choice` has it.
        by: As `Choice` has it.
        tried: As `Choice` has it.
        settings: Of the first candidate.
    """

    variant: str
    seeds: list[int]
    target: float | None
    commit: str | None
    stand_in: str | None
    chosen: dict[str, Any]
    by: str
    tried: list[dict[str, Any]]
    settings: dict[str, Any]

    @property
    def choice(self) -> Choice:
        """What was chosen, and of what."""
        return Choice(self.chosen, self.by, self.tried)

    def answers(self, candidates: Sequence[Mapping[str, Any]], seeds: Sequence[int], target: float | None) -> bool:
        """Whether it was chosen among exactly these, on these seeds, for this target."""
        asked = [identity({**fields, "seed": seeds[0]}) for fields in candidates]
        return (list(self.outcomes), self.seeds, self.target) == (asked, list(seeds), target)

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """What was tried, by the candidates' identities."""
        points = [{name: one[name] for name in self.chosen} for one in self.tried]
        return {identity({**self.settings, **point}): one for point, one in zip(points, self.tried, strict=True)}


def described(fields: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run of which some are given, without what cannot change its result.

    The data need not be on this machine.
    """
    config = _anywhere(fields)
    settings = {name: value for name, value in config.as_dict().items() if value is not None}
    return {**{name: settings[name] for name in settings if name not in IRRELEVANT}, "task": fields["task"]}


def identity(fields: Mapping[str, Any]) -> str:
    """What two runs with the same result have in common, as text; the data need not be on this machine.

    Example:
        >>> one, other = {"task": "mlp@digits"}, {"task": "mlp@digits", "rounds": 1000, "threads": 2}
        >>> identity(one) == identity(other) == identity(described(one)), identity({**one, "seed": 1}) == identity(one)
        (True, False)
    """
    return f"{fields['task']} {_anywhere(fields).key()}"


def plan_of(fields: Mapping[str, Any], parameters: int) -> dict[str, Any]:
    """The plan of a run, with what its defaults are for a model of that many entries.

    Example:
        >>> plan = plan_of({"task": "logistic@fashion-mnist", "method": "thrifty"}, 7850)
        >>> plan["bytes"], plan["values"]
        (44, 'sign')
    """
    plan = _anywhere(fields).plan().for_size(parameters)
    return {name: value for name, value in plan.as_dict().items() if value not in (None, {})}


def _anywhere(fields: Mapping[str, Any]) -> Config:
    """The configuration with data that is always there."""
    model = str(fields["task"]).partition("@")[0]
    return Config(**{**fields, "task": f"{model}@digits"})


def record_of(run: Run, variant: str, fields: Mapping[str, Any], stand_in: str | None, commit: str | None) -> Record:
    """The record of a run that is finished.

    Args:
        run: As it was read from its folder.
        variant: What people call it.
        fields: Its settings as the cell has them, which may name other data than the run had.
        stand_in: What was used instead of that data.
        commit: What it was made with, if its folder does not say.
    """
    rows = [row for _, row in sorted(_kept(run.rows).items())]
    made = origin(run.path)
    return Record(
        variant,
        run.seed,
        made.get("commit") or commit,
        made.get("version"),
        stand_in,
        list(run.clients["sizes"]),
        run.clients["parameters"],
        str(run.clients.get("metric") or "accuracy"),
        run.first_download,
        {name: _short(name, run.result[name]) for name in RESULT},
        described({**fields, "seed": run.seed}),
        {name: [_short(name, row[name]) for row in rows] for name in COLUMNS},
        plan_of(fields, run.clients["parameters"]),
    )


def _short(name: str, value: Any) -> Any:
    """Seconds with seven digits; anything else unchanged."""
    return float(f"{value:.7g}") if name == "seconds" else value


RESULT = ("rounds", "final_score", "best_score", "bytes_up", "bytes_down", "seconds", "entries_sent")


def _kept(rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Those that were better than all before, the last ones, and some between them, by their place."""
    found, best = {}, -math.inf
    every = -(-len(rows) // KEPT)
    for place, row in enumerate(rows):
        if row["score"] > best or place >= len(rows) - LAST or (place + 1) % every == 0:
            found[place] = row
        best = max(best, row["score"]) if math.isfinite(row["score"]) else best
    return found


class Store:
    """The records in a folder.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     Store(Path(folder)).runs({"task": "mlp@digits"})
        []
    """

    def __init__(self, folder: Path) -> None:
        """The records in a folder, which need not exist. Loads the parts that their settings name."""
        load()
        self.folder = folder
        self._lines: dict[Path, list[Record | Tuned]] = {}
        self._known: dict[str, list[Record]] = {}
        for path in sorted(folder.glob("*/**/*.jsonl")):
            self._lines[path] = _read(path)
            for line in self._lines[path]:
                self._learn(line)

    def path(self, experiment: str, cell: Cell) -> Path:
        """Where a cell's records are."""
        return self.folder / experiment / f"{cell.name}.jsonl"

    def lines(self) -> dict[Path, list[Record | Tuned]]:
        """Everything, by file."""
        return self._lines

    def runs(self, fields: Mapping[str, Any]) -> list[Record]:
        """The records of runs with exactly these settings, of whatever cell: with the data itself first.

        Those that were made when a default was another one are left out.
        """
        known = self._known.get(identity(fields), [])
        found = [one for one in known if one.plan in (None, plan_of(fields, one.parameters))]
        return sorted(found, key=lambda one: one.stand_in is not None)

    def tuned(self, experiment: str, cell: Cell, variant: str) -> list[Tuned]:
        """What was chosen for a variant."""
        lines = self._lines.get(self.path(experiment, cell), [])
        return [one for one in lines if isinstance(one, Tuned) and one.variant == variant]

    def has(self, experiment: str, cell: Cell, record: Record, variant: str) -> bool:
        """Whether a record is among those of a cell, under this name."""
        return record.called(variant) in self._lines.get(self.path(experiment, cell), [])

    def add(self, experiment: str, cell: Cell, *new: Record | Tuned) -> None:
        """Keep records; those that they take the place of are gone."""
        path = self.path(experiment, cell)
        place = {variant.label: number for number, variant in enumerate(cell.variants)}
        try:
            with locked(self.folder / ".lock", PATIENCE):
                lines = {_place(one, place): one for one in [*(_read(path) if path.exists() else ()), *new]}
                self._lines[path] = [lines[key] for key in sorted(lines)]
                with write_atomically(path) as file:
                    for fields in _written(self._lines[path]):
                        file.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise InvalidInput(f"records cannot be written to {path}: {failure(error)}") from error
        for one in new:
            self._learn(one)

    def _learn(self, line: Record | Tuned) -> None:
        if isinstance(line, Record):
            try:
                known = self._known.setdefault(identity(line.settings), [])
            except InvalidInput:  # a setting that this version does not have: no run of this version is the same
                return
            known[:] = [*(one for one in known if one.stand_in != line.stand_in), line]


def _place(line: Record | Tuned, order: Mapping[str, int]) -> tuple[Any, ...]:
    """Where a line stands in its file: what was tuned before the runs, then by length, variant and seed."""
    where = order.get(line.variant, len(order)), line.variant, line.stand_in or ""
    if isinstance(line, Tuned):
        return (0, line.settings["rounds"], *where, 0)
    return (1, line.settings["rounds"], *where, line.seed)


def _written(lines: Sequence[Record | Tuned]) -> list[dict[str, Any]]:
    """The lines of a file: first the settings that all records share, then each record with the others."""
    first, *rest = [one.settings for one in lines]
    shared = {name: value for name, value in first.items() if all(name in one and one[name] == value for one in rest)}
    own = [{name: value for name, value in one.settings.items() if name not in shared} for one in lines]
    return [{"shared": shared}, *({**asdict(one), "settings": some} for one, some in zip(lines, own, strict=True))]


def _read(path: Path) -> list[Record | Tuned]:
    found: list[Record | Tuned] = []
    shared: dict[str, Any] = {}  # files of before have none
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(text)
            if number == 1 and list(fields) == ["shared"]:
                shared = dict(fields["shared"])
                continue
            fields = {**fields, "settings": {**shared, **fields["settings"]}}
            found.append(Tuned(**fields) if "tried" in fields else Record(**fields))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidInput(f"line {number} of {path} is not a record: {error}") from error
    return found
