"""Where data sets live on disk: one folder for all of them, and files that appear in it whole or not at all."""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["DATA_VARIABLE", "data_folder", "write_atomically"]

DATA_VARIABLE = "DAGC_DATA"


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the one given, else `DAGC_DATA`, else `dagc/data` in the user's cache.

    The folder need not exist yet.

    Example:
        >>> data_folder("some/place").name
        'place'
    """
    chosen = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else _user_cache() / "dagc" / "data"


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@contextmanager
def write_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the name `path` only when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:  # readable for whom any new file is: folders of data are shared
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
