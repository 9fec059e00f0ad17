"""What is known about a data set of the experiments: where it comes from, where it is on disk, how it is read."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dagc.data import Dataset
from dagc.errors import MissingData
from research.data.download import Source

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """A data set of the experiments.

    Attributes:
        name: Its name in tasks.
        about: One line about it.
        size: The size of the download.
        license: Its license.
        sources: The official files.
        locate: Finds it below a data folder; None if it is not there.
        read: Loads it from there; the second argument is the data folder.
    """

    name: str
    about: str
    size: str
    license: str
    sources: tuple[Source, ...]
    locate: Callable[[Path], Path | None]
    read: Callable[[Path, Path], Dataset]

    def load(self, root: Path) -> Dataset:
        """Load it from the data folder; the error says how to get it."""
        place = self.locate(root)
        if place is None:
            raise MissingData(
                f"{self.name} is not in {root}; get it: python -m research data get {self.name} --data-dir "
                f"{shlex.quote(str(root))} ({self.size}), or give its place with --data-dir or DAGC_DATA"
            )
        return self.read(place, root)
