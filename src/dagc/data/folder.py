"""Where data sets live on disk: one folder for all of them."""

import os
from pathlib import Path

from platformdirs import user_cache_path

__all__ = ["DATA_VARIABLE", "data_folder"]

DATA_VARIABLE = "DAGC_DATA"


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the one given, or `DAGC_DATA`, or `dagc/data` in the user's cache.

    The folder need not exist yet.

    Example:
        >>> data_folder("some/place").name
        'place'
    """
    chosen = data_dir or os.environ.get(DATA_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return user_cache_path("dagc", appauthor=False, opinion=False) / "data"
