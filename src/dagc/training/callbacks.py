"""Callbacks for every round: stop early, detect when a score is reached, and log to a file or to TensorBoard."""

import csv
import io
import math
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagc.errors import InvalidInput, MissingExtra
from dagc.files import failure, write_atomically

if TYPE_CHECKING:
    from dagc.training.federation import Federation
    from dagc.training.round import Round

__all__ = ["CsvLog", "EarlyStopping", "TensorBoard", "ToTarget"]

TO_TARGET = ("rounds_to_target", "bytes_to_target", "seconds_to_target")
COLUMNS = (
    *("round", "loss", "score", "test_loss", "present", "entries", "up", "down"),
    *("bytes_up", "bytes_down", "bytes_total", "seconds", "elapsed"),
    *TO_TARGET,
)
"""What is written: the fields of `Round`; total bytes; `elapsed`, the wall-clock seconds; and, once the target is
reached, what it took."""


class ToTarget:
    """Detects when a score is reached; the base class of the other callbacks.

    Args:
        target: The accuracy, or other score, to reach; None for none.

    Attributes:
        reached: The rounds, total bytes and seconds on the network's clock that it took; empty before.

    Example:
        >>> import dagc
        >>> goal = ToTarget(0.5)
        >>> config = dagc.Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=20)
        >>> result = dagc.train(config, callbacks=[goal])
        >>> goal.reached["rounds_to_target"] < 20
        True
    """

    def __init__(self, target: float | None = None) -> None:
        if target is not None and not target <= 1:
            raise InvalidInput(f"target is {target}: give a score of at most 1, e.g. 0.8 for 80 %")
        self.target = target
        self.reached: dict[str, float] = {}

    def __call__(self, federation: "Federation", result: "Round") -> None:
        """After a round."""
        there = result.score is not None and self.target is not None and result.score >= self.target
        if there and not self.reached:
            amounts = (result.round, result.bytes_up + result.bytes_down, result.seconds)
            self.reached = dict(zip(TO_TARGET, amounts, strict=True))


class EarlyStopping:
    """Stops a training whose score no longer rises.

    Args:
        patience: How many evaluations in a row may pass without a new best score.
        least: By how much a score must be above the best one to count.

    Example:
        >>> import dagc
        >>> config = dagc.Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=500, evaluate_every=1)
        >>> len(dagc.train(config, callbacks=[EarlyStopping(patience=5)]).rounds) < 500
        True
    """

    def __init__(self, patience: int, least: float = 0.0) -> None:
        if patience < 1:
            raise InvalidInput(f"patience is {patience}: give a number of evaluations, at least 1")
        self.patience, self.least = patience, least
        self.best, self.waited = -math.inf, 0

    def __call__(self, federation: "Federation", result: "Round") -> bool:
        """After a round; whether to stop."""
        if result.score is None:
            return False
        better = result.score > self.best + self.least
        self.best, self.waited = (result.score, 0) if better else (self.best, self.waited + 1)
        return self.waited >= self.patience


class _Log(ToTarget):
    """Writes a line for every round. A resumed run continues from its checkpoint."""

    def __init__(self, target: float | None = None) -> None:
        super().__init__(target)
        self._before = 0.0  # seconds that earlier parts of the run took
        self._began: float | None = None

    def __call__(self, federation: "Federation", result: "Round") -> None:
        if self._began is None:
            self._began = time.perf_counter()
            self._open(result.round)
        super().__call__(federation, result)
        elapsed = self._before + time.perf_counter() - self._began
        total = {"bytes_total": result.bytes_up + result.bytes_down, "elapsed": round(elapsed, 3)}
        self._write({**vars(result), **total, **self.reached})

    def _open(self, round: int) -> None:
        """Prepare for the first round that is written; for subclasses."""

    def _write(self, fields: Mapping[str, Any]) -> None:
        """Write a round; for subclasses."""


class CsvLog(_Log):
    """A callback that writes a CSV file with a line for every round.

    Args:
        path: The file. When a run is resumed, lines up to its checkpoint are kept.
        target: A score; the last columns are the rounds, bytes and seconds it took to reach it.

    Example:
        >>> import dagc, tempfile
        >>> config = dagc.Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = dagc.train(config, callbacks=[CsvLog(f"{folder}/log.csv", target=0.1)])
        ...     lines = Path(f"{folder}/log.csv").read_text().splitlines()
        >>> lines[0].split(",")[:3], len(lines)
        (['round', 'loss', 'score'], 4)
    """

    def __init__(self, path: str | Path, target: float | None = None) -> None:
        super().__init__(target)
        self.path = Path(path)

    def _open(self, round: int) -> None:
        kept = [row for row in self._rows() if int(row["round"]) < round]
        if kept:
            self._before = float(kept[-1]["elapsed"])
            amounts = {name: kept[-1][name] for name in TO_TARGET if kept[-1][name]}
            self.reached = {name: int(text) if text.isdigit() else float(text) for name, text in amounts.items()}
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
        try:
            with write_atomically(self.path) as file:
                file.write(text.getvalue().encode())
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be written to: {failure(error)}") from error

    def _rows(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        try:
            rows = list(csv.DictReader(io.StringIO(self.path.read_text(encoding="utf-8"))))
            whole = [row for row in rows if None not in row.values()]  # the last may be incomplete
            if any(set(row) != set(COLUMNS) or not row["round"].isdigit() for row in whole):
                raise ValueError("other columns")
        except (OSError, ValueError, csv.Error) as error:
            raise InvalidInput(f"{self.path} is not a log of dagc ({error}): choose another file") from error
        return whole

    def _write(self, fields: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
                writer.writerow(dict(fields))
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be written to: {failure(error)}") from error


class TensorBoard(_Log):
    """A callback that writes TensorBoard logs: a scalar for every number of a round. It needs the package tensorboard.

    Args:
        folder: Where to write. When a run is resumed, steps after its checkpoint are replaced.
        target: A score; `rounds_to_target`, `bytes_to_target` and `seconds_to_target` are written when it is reached.
    """

    def __init__(self, folder: str | Path, target: float | None = None) -> None:
        super().__init__(target)
        try:
            self._make = import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise MissingExtra("such logs need the package tensorboard: pip install tensorboard") from error
        self.folder = Path(folder)
        self._writer: Any = None
        self._written = False

    def _open(self, round: int) -> None:
        self._writer = self._make(str(self.folder), purge_step=round if round > 1 else None)

    def _write(self, fields: Mapping[str, Any]) -> None:
        for name in COLUMNS[1:]:
            if fields.get(name) is not None and not (self._written and name in TO_TARGET):
                self._writer.add_scalar(name, float(fields[name]), fields["round"])
        self._written = bool(self.reached)
        if fields["score"] is not None:
            self._writer.flush()
