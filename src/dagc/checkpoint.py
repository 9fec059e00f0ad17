"""Checkpoints of a run: the newest two are kept, each one file that is either complete or absent."""

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dagc.errors import CheckpointError
from dagc.files import remove_partial
from dagc.state import NewerVersion, load_state, save_state

__all__ = ["checkpoints", "load", "save"]

VERSION = 1
KEPT = 2
"""How many checkpoints are kept: if the newest is damaged, there is one before it."""


def save(folder: Path, arrays: dict[str, NDArray[Any]], numbers: dict[str, Any]) -> Path:
    """Write a checkpoint for `numbers["round"]`. A full disk or a crash does not harm the earlier ones.

    Only one process at a time may save to a folder.

    Example:
        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     print(save(Path(folder), {"model": np.zeros(3)}, {"round": 100}).name)
        ...     load(Path(folder))
        round-00000100.state
        ({'model': array([0., 0., 0.])}, {'round': 100})
    """
    remove_partial(folder)
    target = folder / f"round-{numbers['round']:08d}.state"
    try:
        save_state(target, "run", VERSION, numbers, arrays, private=True)  # it holds the residuals
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


def load(folder: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """The newest good checkpoint, or None if there is none at all. Damaged ones are removed, with a warning.

    Otherwise `save` would keep a damaged one in place of the good one. If none is good, all of them stay.
    """
    if any(path.is_dir() for path in folder.glob("round-*")):
        raise CheckpointError(
            f"{folder} was made by dagc 0.1, which this version cannot resume: start the run again in another folder"
        )
    damaged: dict[Path, str] = {}
    for path in checkpoints(folder):
        try:
            _, numbers, arrays = load_state(path, "run", VERSION)
        except NewerVersion:
            raise
        except CheckpointError as error:
            damaged[path] = str(error)
            warnings.warn(f"the checkpoint {error}; using the one before", stacklevel=2)
        else:
            for wrong in damaged:
                with suppress(OSError):
                    wrong.unlink()
            return arrays, numbers
    if damaged:
        why = "; ".join(damaged.values())
        raise CheckpointError(f"no checkpoint in {folder} can be used ({why}): start the run again in another folder")
    return None


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints of a run, the newest first."""
    return sorted(folder.glob("round-*.state"), reverse=True)
