"""A run's folder, in any engine: its settings, its clients, its metrics, its checkpoints, its result."""

import json
import math
import os
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from dagc import checkpoint, files
from dagc.errors import CheckpointError, InvalidInput, shown
from dagc.files import failure, read_bounded

VERSION = 1  # of `config.toml`, and with it of the whole folder
SCORE = "score"  # a round's score in the metrics; `metric` in `clients.json` says what it measures
FINAL, BEST = f"final_{SCORE}", f"best_{SCORE}"  # in a result
LAST, ENOUGH = 5, 20  # a single evaluation is noise: the final score is the mean of the last ones, if there are enough
FINAL_RULE = f"the mean of the last {LAST} evaluations in runs with at least {ENOUGH}, otherwise the last evaluation"
FIELDS = ("round", "entries", "bytes_up", "bytes_down", "seconds")  # in every line of the metrics
LARGEST = 2.0**53  # all numbers of a run are smaller
# The most bytes of settings and results, clients, metrics, and models: strangers write files as well.
SMALL, MEDIUM, LARGE, MODEL = 1 << 20, 1 << 26, 1 << 28, 1 << 36


class Saved(Protocol):
    """Anything with a state to save, which has a field `round`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Folder:
    """Everything of one run on disk. As a context manager, it lets only this process write there.

    It holds `config.toml` and `clients.json` (`describe`), `metrics.jsonl` (`record`, a line per round), `checkpoints/`
    (`save`) and, once the run is finished, its model and `result.json` (`conclude`). Entering it restores the newest
    checkpoint. It waits `patience` seconds for another process that is using it.
    """

    patience = 0.0

    def __init__(self, path: str | Path, saved: Saved) -> None:
        self.path = Path(path)
        self._saved = saved
        self._open = ExitStack()
        self._checksum = 0  # of the lines so far

    def __enter__(self) -> Self:
        try:
            self._open.enter_context(files.locked(self.path / "lock", self.patience))
            self._enter()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise CheckpointError(f"the run folder {self.path} cannot be used: {failure(error)}") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):  # the disk is full, and `record` has already failed
            self._open.close()

    @property
    def finished(self) -> bool:
        return finished(self.path)

    def record(self, fields: Mapping[str, Any]) -> None:
        """Write a round's line; fields that are None are left out."""
        line = json.dumps(_present(fields)).encode() + b"\n"
        with self.writing():
            self._metrics.write(line)
            self._metrics.flush()
        self._checksum = zlib.crc32(line, self._checksum)

    def save(self) -> None:
        with self.writing():
            os.fsync(self._metrics.fileno())
        metrics = {"bytes": self._metrics.tell(), "checksum": self._checksum}
        state = self._saved.state_dict()
        content = {"round": state["round"], "settings": self._key(), "metrics": metrics, "state": state}
        checkpoint.save(self.path / "checkpoints", content)

    def describe(self, settings: Mapping[str, Any], clients: Mapping[str, Any]) -> None:
        """Write the settings and the clients, for reports; settings that are None are left out."""
        self._write("clients.json", json.dumps(clients))
        self._write("config.toml", to_toml(settings))

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Write the result, which ends the run. Its field `model` names the model's file in this folder."""
        with self.writing():
            model = {"model_checksum": files.checksum_of(self.path, result["model"], MODEL)}
        self._write("result.json", json.dumps({**result, **model}, indent=1))

    @contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.path}: {failure(error)}; then resume the run") from error

    def _claim(self, settings: dict[str, Any] | None) -> None:
        """Refuse a folder whose `config.toml` is that of another run; subclasses may also `describe` a new one."""

    def _key(self) -> str:
        """A short name for the settings that a checkpoint belongs to; for subclasses."""
        return ""

    def _enter(self) -> None:
        files.remove_partial(self.path)
        self._claim(read_settings(self.path) if (self.path / "config.toml").exists() else None)
        files.make_folder(self.path / "checkpoints", private=True)  # checkpoints contain residuals
        loaded = checkpoint.load(self.path / "checkpoints")
        lines, kept = self.path / "metrics.jsonl", 0
        self._metrics = self._open.enter_context(lines.open("r+b" if lines.exists() else "x+b"))
        files.sync_folder(self.path)
        if loaded is not None:
            kept, known = loaded["metrics"]["bytes"], loaded["metrics"]["checksum"]
            content = self._metrics.read(kept)
            self._checksum = zlib.crc32(content)
            if len(content) < kept or known != self._checksum:
                what = "has lost lines" if len(content) < kept else "was changed or damaged"
                raise CheckpointError(
                    f"{lines} {what} since the last checkpoint: start the run again in another folder"
                )
            if loaded["settings"] != self._key():
                raise InvalidInput(
                    f"{self.path / 'config.toml'} was changed since the last checkpoint: change it back, or start "
                    "another run in another folder"
                )
            self._saved.load_state_dict(loaded["state"])
        self._metrics.seek(kept)
        if b"\n" in self._metrics.read():  # an older checkpoint than the last: the run has not ended here
            (self.path / "result.json").unlink(missing_ok=True)
        self._metrics.truncate(kept)
        self._metrics.seek(kept)

    def _write(self, name: str, text: str) -> None:
        try:
            content = text.encode()
        except UnicodeEncodeError as error:
            odd = text[max(0, error.start - 20) : error.end]
            raise InvalidInput(f"{self.path / name} cannot hold {odd!r}: use names that are valid UTF-8") from error
        with self.writing(), files.write_atomically(self.path / name) as file:
            file.write(content)


def finished(path: str | Path) -> bool:
    """Whether a run's folder holds its result, and the model that the result names, undamaged."""
    try:
        result = json.loads(read_bounded(Path(path) / "result.json", SMALL))
        checksum = files.checksum_of(Path(path), result["model"], MODEL)
        return checksum is not None and bool(checksum == result["model_checksum"])
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False  # not there, or not as `conclude` wrote it
    except OSError as error:
        raise CheckpointError(f"the result of {path} cannot be read: {failure(error)}") from error


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without an incomplete last one. A score beyond all bounds becomes NaN."""
    file = Path(path) / "metrics.jsonl"
    try:
        *lines, _ = read_bounded(file, LARGE).split(b"\n")
    except OSError as error:
        raise InvalidInput(f"{path} is not a run folder: it has no metrics.jsonl that can be read") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"line {number} of {file} is not JSON: {line[:100]!r} ({error})") from error
        missing = [name for name in FIELDS if name not in row] if isinstance(row, dict) else FIELDS
        if missing:
            raise InvalidInput(f"line {number} of {file} has no {', '.join(missing)}: {line[:100]!r}")
        for name in (*FIELDS, SCORE):
            if name in row and not _is_possible(name, row[name]):
                what = f"{shown(row[name])} as {name}, which is no number of a run"
                raise InvalidInput(f"line {number} of {file} has {what}")
        if SCORE in row and not abs(row[SCORE]) < LARGEST:
            row[SCORE] = math.nan
        rows.append(row)
    return rows


def _is_possible(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if name == "round" else int | float):
        return False
    return name == SCORE or (1 if name == "round" else 0) <= value < LARGEST


def read_clients(path: str | Path) -> dict[str, Any]:
    """What a run's folder says about its clients: at least their `sizes` and the number of `parameters`."""
    try:
        clients: dict[str, Any] = json.loads(read_bounded(Path(path) / "clients.json", MEDIUM))
        sizes, parameters = clients["sizes"], clients["parameters"]
        whole = bool(sizes) and parameters >= 1 and all(0 <= number < LARGEST for number in (*sizes, parameters))
        for name in ("names", "first_parameters", "classes", "notes"):
            known = clients.get(name) or []
            any_length = name in ("classes", "notes") or not known
            whole = whole and isinstance(known, list) and (any_length or len(known) == len(sizes))
        if not whole:
            raise ValueError("it has no sizes or no parameters, or they do not fit")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidInput(f"{path} is not a complete run: its clients.json cannot be read ({error!r})") from error
    return clients


def final_score(scores: Sequence[float]) -> float:
    """The score at the end of a run: the mean of the last five of 20 or more evaluations, otherwise the last one."""
    last = scores[-LAST:] if len(scores) >= ENOUGH else scores[-1:]
    return sum(last) / len(last)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a run: bytes, seconds and, if it was evaluated, scores: `final_score`, and the best number.

    Example:
        >>> sent = {"bytes_up": 20, "bytes_down": 50, "seconds": 1.5}
        >>> summary([{"round": 1, "score": 0.5, **sent}, {"round": 2, "score": 0.25, **sent}])
        {'rounds': 2, 'final_score': 0.25, 'best_score': 0.5, 'bytes_up': 20, 'bytes_down': 50, 'seconds': 1.5}
    """
    if not rows:
        raise InvalidInput("a run without a single round has no summary: let it train first")
    scores = [row[SCORE] for row in rows if SCORE in row]
    best = max(filter(math.isfinite, scores), default=math.nan)
    result = {FINAL: final_score(scores), BEST: best} if scores else {}
    return {"rounds": rows[-1]["round"], **result, **{name: rows[-1][name] for name in FIELDS[2:]}}


def to_toml(settings: Mapping[str, Any]) -> str:
    """The text of a `config.toml`; settings that are None are left out."""
    import tomli_w  # not at the top: Flower nodes do not need it

    return tomli_w.dumps({"version": VERSION, **_present(settings)})


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a run's folder, or in a hand-written TOML file, which need not have a version."""
    written_by_us = Path(path).is_dir()
    file = Path(path) / "config.toml" if written_by_us else Path(path)
    try:
        settings = tomllib.loads(read_bounded(file, SMALL, regular=written_by_us).decode())
    except OSError as error:
        raise InvalidInput(f"the settings {file} cannot be read: {error}") from error
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the settings {file} are not valid TOML: {error}") from error
    version = settings.pop("version", None if written_by_us else VERSION)
    if version is None:
        raise InvalidInput(f"{file} has no version: start the run again in another folder")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidInput(f"{file} has version {shown(version)}: write version = {VERSION}")
    if version > VERSION:
        raise InvalidInput(f"{file} was written by a newer version of dagc: update dagc to read it")
    return settings
