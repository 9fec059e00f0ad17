"""A run's folder: its configuration, who its clients are, its metrics, its checkpoints, its model, its result."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from dagc.data.folder import write_atomically
from dagc.errors import CheckpointError, InvalidInput
from dagc.training import checkpoint
from dagc.training.config import Config
from dagc.training.federation import Federation, Round

__all__ = ["Folder", "RunFolder", "read_metrics", "summary"]

LAST = 5
"""The final accuracy is the mean of so many last evaluations: a single one is noise."""


class Saved(Protocol):
    """Whatever has a state to keep."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """All arrays of the state."""
        ...

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, as JSON can hold it; `round` among it."""
        ...

    def restore(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Go on from `tensors` and `numbers`."""
        ...


class Folder:
    """What the folder of a run holds in any engine.

    `metrics.jsonl` (a line per round), `checkpoints/`, and, once it is finished, `model.safetensors` and `result.json`.
    Only one process may write to it at a time; another one waits `patience` seconds for it to end.
    """

    patience = 0.0

    def __init__(self, path: str | Path, federation: Saved) -> None:
        """The folder for a federation, which is brought to where the last run was when the folder is entered."""
        self.path = Path(path)
        self._saved = federation
        self._lock: IO[str] | None = None
        self._metrics: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Make or find the folder, lock it, go back to the newest checkpoint."""
        try:
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.path / "lock", self.patience)
            self._claim()
            saved = checkpoint.load(self.path / "checkpoints")
            lines = self.path / "metrics.jsonl"
            self._metrics = lines.open("r+b" if lines.exists() else "w+b")
            kept = 0
            if saved is not None:
                tensors, numbers = saved
                kept = int(numbers.pop("metrics_bytes"))
                if lines.stat().st_size < kept:
                    raise CheckpointError(f"{lines} has lost lines since the checkpoint: start the run anew elsewhere")
                self._saved.restore(tensors, numbers)
            self._metrics.truncate(kept)
            self._metrics.seek(kept)
        except OSError as error:
            self.close()
            raise CheckpointError(f"the run folder {self.path} cannot be used: {error}") from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the folder."""
        self.close()

    def close(self) -> None:
        """Let go of the folder."""
        for file in (self._metrics, self._lock):
            if file is not None:
                with suppress(OSError):  # what a full disk does not take: lines since the last checkpoint, told already
                    file.close()

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return (self.path / "result.json").exists()

    def record(self, result: Round) -> None:
        """Write a round's line."""
        assert self._metrics is not None
        told = {name: value for name, value in asdict(result).items() if value is not None}
        with self._told():
            self._metrics.write(json.dumps(told).encode() + b"\n")
            self._metrics.flush()

    def save(self) -> None:
        """Write a checkpoint of where the federation is."""
        assert self._metrics is not None
        with self._told():
            os.fsync(self._metrics.fileno())
        numbers = {**self._saved.numbers(), "metrics_bytes": self._metrics.tell()}
        checkpoint.save(self.path / "checkpoints", self._saved.tensors(), numbers)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An error of the disk in the words of ours."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.path} cannot be written to: {error}; resume once there is room") from error

    def conclude(self, model: dict[str, torch.Tensor], key: str) -> None:
        """Write the model by its parameters' names, and the result."""
        partial = self.path / ".model.partial"
        try:
            with self._told():
                save_file({name: value.contiguous().clone() for name, value in model.items()}, partial)
                partial.replace(self.path / "model.safetensors")
                result = {**summary(read_metrics(self.path)), "config": key}
                _write(self.path / "result.json", json.dumps(result, indent=1))
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def describe(self, config: Config, clients: dict[str, Any]) -> None:
        """Write what is run, and who takes part, for tables and pictures."""
        _write(self.path / "clients.json", json.dumps(clients))
        _write(self.path / "config.toml", config.toml())

    def _claim(self) -> None:
        """Refuse a folder that holds another run."""


class RunFolder(Folder):
    """Everything of one run of the local engine on disk.

    Beside what any engine's folder holds: `config.toml` and `clients.json` (sizes, labels and first parameters).
    """

    def __init__(self, path: str | Path, federation: Federation) -> None:
        """Open the folder for a federation and bring that to where the last run was."""
        super().__init__(path, federation)
        self.federation = federation

    def finish(self) -> None:
        """Write the model by its parameters' names, and the result."""
        self.conclude(self.federation.model.state_dict(), self.federation.config.key())

    def _claim(self) -> None:
        """Refuse a folder with another run's configuration; write ours to a new one."""
        config, known = self.federation.config, self.path / "config.toml"
        if known.exists():
            there = Config.read(known)
            if there.key() != config.key():
                ours, theirs = config.model_dump(), there.model_dump()
                other = [
                    f"{name} is {theirs[name]!r} there, {ours[name]!r} here"
                    for name in ours
                    if ours[name] != theirs[name]
                ]
                raise InvalidInput(f"{self.path} holds another run ({'; '.join(other)}): choose another --output")
            return
        self.describe(config, _clients(self.federation))


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without a last one that is half written."""
    rows = []
    try:
        lines = (Path(path) / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InvalidInput(f"{path} is not a run folder: it has no metrics.jsonl") from error
    for line in lines:
        if line.endswith(b"\n"):
            rows.append(json.loads(line))
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What came of a run: accuracies (the final one is the mean of the last five evaluations), bytes, seconds."""
    accuracies = [row["accuracy"] for row in rows if "accuracy" in row]
    last = rows[-1]
    return {
        "rounds": last["round"],
        "final_accuracy": sum(accuracies[-LAST:]) / len(accuracies[-LAST:]),
        "best_accuracy": max(accuracies),
        "bytes_up": last["bytes_up"],
        "bytes_down": last["bytes_down"],
        "seconds": last["seconds"],
    }


def _write(path: Path, text: str) -> None:
    with write_atomically(path) as file:
        file.write(text.encode())


def _clients(federation: Federation) -> dict[str, Any]:
    """Who takes part: for tables and pictures."""
    partition, data = federation.partition, federation.data
    n = partition.workers
    holding = [i for i in range(n) if federation.weights[i] > 0]
    parameters = dict(zip(holding, federation.policy.parameters(0, holding, ()), strict=True))
    return {
        "data": data.name,
        "classes": list(data.classes),
        "notes": list(data.notes),
        "parameters": len(federation.server.vector),
        "sizes": [int(size) for size in partition.sizes],
        "labels": partition.label_counts(data.train_y.numpy(), len(data.classes)).tolist(),
        "first_parameters": [parameters.get(i) for i in range(n)],
    }


def _locked(path: Path, patience: float) -> IO[str]:
    """An open file that no other process can open so until it is closed."""
    file = path.open("w")
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return file
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() < end:
                time.sleep(0.2)
                continue
            file.close()
            raise CheckpointError(
                f"another process is working in {path.parent}: wait for it, or choose another --output"
            ) from None
