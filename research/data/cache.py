"""A cache in the data folder for what is costly to compute from data files, valid until the files change."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.data.files import UNREADABLE
from dagc.files import write_atomically

__all__ = ["Arrays", "cached", "fingerprint"]

Arrays = dict[str, NDArray[Any]]


def fingerprint(path: Path, base: Path) -> str:
    """A file's name below `base`, its size and its modification time; or that it is missing."""
    try:
        status = path.stat()
    except OSError:
        return f"{path.relative_to(base)} missing"
    return f"{path.relative_to(base)} {status.st_size} {status.st_mtime_ns}"


def cached(root: Path, kind: str, key: Iterable[str], compute: Callable[[], Arrays]) -> tuple[Arrays, tuple[str, ...]]:
    """The arrays that `compute` returns, from `root`/cache if they were computed before for the same `key`.

    Returns:
        The arrays, and a note if they could not be stored (a read-only folder, a full disk).
    """
    digest = hashlib.sha256("\n".join(key).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = root / "cache" / f"{kind}-{digest}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}, ()
    except UNREADABLE:
        pass  # not there, or damaged: compute it and write it again
    arrays = compute()
    try:
        with write_atomically(path) as fresh:
            np.savez(fresh, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        return arrays, (f"{path} could not be written ({error}); the same work is done again next time",)
    return arrays, ()
