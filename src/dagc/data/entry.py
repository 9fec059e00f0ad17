"""What is known about a data set that has a name, and where data sets live on disk."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from dagc.data.dataset import Dataset
from dagc.data.download import Source

__all__ = ["DATA_VARIABLE", "Entry", "data_folder"]

DATA_VARIABLE = "DAGC_DATA"


@dataclass(frozen=True)
class Entry:
    """A data set that dagc knows.

    Attributes:
        name: Its name in tasks.
        about: One line about it.
        classes: The number of labels.
        size: The size of the download.
        licence: Its licence.
        sources: The official files; none if there is nothing to download.
        locate: Finds it below a data folder; None if it is not there.
        read: Loads it from there; the second argument is the data folder.
    """

    name: str
    about: str
    classes: int
    size: str
    licence: str
    sources: tuple[Source, ...]
    locate: Callable[[Path], Path | None]
    read: Callable[[Path, Path], Dataset]


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
