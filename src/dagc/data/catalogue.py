"""The data sets by name, and their download. To add one, write its file and name its `ENTRY` here."""

import os
import shlex
from pathlib import Path

from dagc.data import cifar, digits, fashion_mnist, natural
from dagc.data.dataset import Dataset
from dagc.data.download import Report, fetch_all
from dagc.data.entry import Entry, data_folder
from dagc.errors import MissingData, unknown

__all__ = ["CATALOGUE", "get", "load_entry"]

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (digits.ENTRY, fashion_mnist.ENTRY, *cifar.ENTRIES, natural.ADULT, natural.SHAKESPEARE)
}
"""Every data set by name; other packages may add theirs."""


def get(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    mirror: str | None = None,
    force: bool = False,
    report: Report | None = None,
) -> bool:
    """Download a data set from its official address, unless it is here.

    Args:
        name: A name of `dagc data list`.
        data_dir: The data folder.
        mirror: The address of a mirror with the same files.
        force: Download even if it is here, and replace it.
        report: Called with the file's name, the bytes so far and the bytes in all, if known.

    Returns:
        Whether anything was downloaded.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise unknown("data set", name, CATALOGUE)
    root = data_folder(data_dir)
    if not entry.sources or (entry.locate(root) is not None and not force):
        return False
    fetch_all(entry.sources, root, mirror, report)
    return True


def load_entry(entry: Entry, root: Path) -> Dataset:
    """Load a data set from the data folder; the error says how to get it."""
    place = entry.locate(root)
    if place is None:
        raise MissingData(
            f"{entry.name} is not in {root}; get it: dagc data get {entry.name} --data-dir {shlex.quote(str(root))} "
            f"({entry.size}), or give its place with --data-dir or DAGC_DATA"
        )
    return entry.read(place, root)
