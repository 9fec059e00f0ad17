"""Checkpoints: a folder of safetensors files and a JSON file, complete or not there at all."""

import errno
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dagc.errors import CheckpointError

__all__ = ["checkpoints", "load", "save"]

KEPT = 2
"""How many checkpoints stay: should the newest be damaged, there is one before it."""
PART = 1 << 26
"""So many bytes go to a file, so that saving needs little memory beside the state itself."""


def save(folder: Path, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> Path:
    """Write a checkpoint for `numbers["round"]`; a full disk or a crash leaves the earlier ones as they were."""
    target = folder / f"round-{numbers['round']:08d}"
    partial = folder / ".partial"  # of a run that was killed, too: one process at a time writes here
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        sums = {}
        for number, part in enumerate(_parts(tensors)):
            file = partial / f"part-{number}.safetensors"
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in part.items()}, file)
            sums[file.name] = _checksum(file)
        state = {"files": sums, "numbers": numbers}
        told = {"checksum": zlib.crc32(json.dumps(state).encode()), "state": state}
        (partial / "state.json").write_text(json.dumps(told))
        for file in [*partial.iterdir(), partial]:
            _sync(file)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        left = checkpoints(folder)
        last = f"the last good one is {left[0].name}" if left else "there is none yet"
        what = "the disk is full: make room" if full else f"{error}"
        raise CheckpointError(f"no checkpoint could be written to {folder}: {what}; {last}, resume from it") from error
    present = checkpoints(folder)
    here = present.index(target)  # what is newer was damaged and gone back from, and would take a good one's place
    for old in (*present[:here], *present[here + KEPT :]):
        shutil.rmtree(old, ignore_errors=True)
    return target


def load(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """The newest good checkpoint, or None if there is none at all; a damaged one is passed over with a warning."""
    damaged = []
    for path in checkpoints(folder):
        try:
            return _read(path)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            damaged.append(f"{path.name} is damaged ({error})")
            warnings.warn(f"checkpoint {damaged[-1]}; going back to the one before", stacklevel=2)
    if damaged:
        raise CheckpointError(f"no checkpoint in {folder} can be used: {'; '.join(damaged)}: start the run anew")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, the newest first."""
    return sorted(folder.glob("round-*"), reverse=True)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    told = json.loads((path / "state.json").read_bytes())
    state = told["state"]
    if zlib.crc32(json.dumps(state).encode()) != told["checksum"]:
        raise ValueError("the checksum of state.json does not match")
    tensors: dict[str, torch.Tensor] = {}
    for name, checksum in state["files"].items():
        if _checksum(path / name) != checksum:
            raise ValueError(f"the checksum of {name} does not match")
        tensors |= load_file(path / name)
    return tensors, state["numbers"]


def _parts(tensors: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        part[name] = tensor
        if sum(t.nbytes for t in part.values()) >= PART:
            yield part
            part = {}
    if part:
        yield part


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _sync(path: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
