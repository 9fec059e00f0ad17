"""Checkpoints of a run: the newest two are kept, each one file that is either complete or absent."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagc.errors import CheckpointError, Damaged
from dagc.files import failure, remove_partial
from dagc.state import load_state, save_state

VERSION = 1
KEPT = 2  # if the newest checkpoint is damaged, there is one before it


def save(folder: Path, state: dict[str, Any]) -> Path:
    """Write a checkpoint for `state["round"]`. A full disk or a crash does not harm the earlier ones."""
    remove_partial(folder)
    target = folder / f"round-{state['round']:08d}.safetensors"
    try:
        save_state(target, "run", VERSION, state, private=True)  # it holds the residuals
    except CheckpointError as error:
        left = checkpoints(folder)
        last = f"the last good one is {left[0].name}: resume from it" if left else "there is no earlier one"
        raise CheckpointError(f"the checkpoint {error}; {last}") from error
    present = checkpoints(folder)
    here = present.index(target)  # newer ones were damaged: the run went back past them
    _remove([*present[:here], *present[here + KEPT :]])
    return target


def load(folder: Path) -> dict[str, Any] | None:
    """The newest good checkpoint, or None if there is none at all. Damaged ones are removed, with a warning.

    Otherwise `save` would keep a damaged one in place of the good one. If none is good, all of them stay, as does one
    that cannot be read now or is of a newer version.
    """
    damaged: dict[Path, str] = {}
    for path in checkpoints(folder):
        try:
            state = load_state(path, "run", VERSION)
        except Damaged as error:
            damaged[path] = str(error)
            warnings.warn(f"the checkpoint {error}; using the one before", stacklevel=2)
        else:
            _remove(list(damaged))
            return state
    if damaged:
        why = "; ".join(damaged.values())
        raise CheckpointError(f"no checkpoint in {folder} can be used ({why}): start the run again in another folder")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, the newest first."""
    try:
        return sorted((path for path in folder.iterdir() if path.match("round-*.safetensors")), reverse=True)
    except FileNotFoundError:
        return []
    except OSError as error:  # `glob` would find nothing, and the run would begin again
        raise CheckpointError(f"{folder} cannot be read: {failure(error)}") from error


def _remove(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # a leftover checkpoint does no harm
            path.unlink()
