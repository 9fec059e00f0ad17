"""The data sets that have a name, and the folder where they are."""

import os
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path

from dagc.data.dataset import Dataset
from dagc.data.digits import load_digits

__all__ = ["CATALOGUE", "data_folder"]

CATALOGUE: dict[str, Callable[[Path], Dataset]] = {"digits": load_digits}
"""How each is loaded from the data folder; plugins add theirs. One that is not there raises `MissingData`."""


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the one given, or `DAGC_DATA`, or `dagc/data` in the user's cache.

    The folder need not exist yet.

    Example:
        >>> data_folder("some/place").name
        'place'
    """
    chosen = data_dir or os.environ.get("DAGC_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return user_cache_path("dagc", appauthor=False, opinion=False) / "data"
