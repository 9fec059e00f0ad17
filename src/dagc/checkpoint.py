"""Checkpoints of a run: the newest two are kept, each one file that is either complete or absent."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagc.errors import CheckpointError
from dagc.files import failure, remove_partial
from dagc.state import Damaged, load_state, save_state

__all__ = ["checkpoints", "load", "save"]

VERSION = 1
KEPT = 2
"""How many checkpoints are kept: if the newest is damaged, there is one before it."""


def save(folder: Path, state: dict[str, Any]) -> Path:
    """Write a checkpoint for `state["round"]`. A full disk or a crash does not harm the earlier ones.

    Only one process at a time may save to a folder.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     print(save(Path(folder), {"round": 100, "loss": 0.5}).name)
        ...     load(Path(folder))
        round-00000100.safetensors
        {'round': 100, 'loss': 0.5}
    """
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
    for old in (*present[:here], *present[here + KEPT :]):
        with suppress(OSError):  # a leftover checkpoint does no harm
            old.unlink()
    return target


def load(folder: Path) -> dict[str, Any] | None:
    """The newest good checkpoint, or None if there is none at all. Damaged ones are removed, with a warning.

    Otherwise `save` would keep a damaged one in place of the good one. If none is good, all of them stay.

    Raises:
        CheckpointError: None is good; or one cannot be read now or is of a newer version, though it may be intact.
    """
    damaged: dict[Path, str] = {}
    for path in checkpoints(folder):
        try:
            state = load_state(path, "run", VERSION)
        except Damaged as error:
            damaged[path] = str(error)
            warnings.warn(f"the checkpoint {error}; using the one before", stacklevel=2)
        else:
            for wrong in damaged:
                with suppress(OSError):
                    wrong.unlink()
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
