"""Flickr-Mammal: photographs of mammals, each with the subcontinent where it was taken; those are the workers."""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dagc.data.dataset import Dataset, hold_out, statistics
from dagc.data.files import read_image
from dagc.errors import DataError
from research.data.cache import Arrays, cached, fingerprint
from research.data.download import Source
from research.data.entry import Entry

__all__ = ["ENTRY", "locate", "read"]

CLASSES = 10
COLUMNS = ("file", "label", "subcontinent")
_VERSION = 1  # increase it when the preprocessing changes


class Photo(NamedTuple):
    """A row of metadata.csv."""

    file: str
    label: str
    subcontinent: str


def locate(root: Path) -> Path | None:
    """The folder with metadata.csv."""
    folder = root / "flickr-mammal"
    return folder if (folder / "metadata.csv").is_file() else None


def read(folder: Path, root: Path) -> Dataset:
    """Load the photographs of the ten most frequent labels at 32 × 32; a fifth of each subcontinent is for testing."""
    rows = _metadata(folder / "metadata.csv")
    frequent = Counter(row.label for row in rows)
    classes = tuple(
        sorted(label for label, _ in sorted(frequent.items(), key=lambda item: (-item[1], item[0]))[:CLASSES])
    )
    rows = [row for row in rows if row.label in classes]
    paths = [_inside(folder, row.file) for row in rows]
    key = [str(_VERSION), *(fingerprint(path, folder) for path in paths)]
    arrays, notes = cached(root, "flickr-mammal", key, lambda: _pictures(paths))
    usable = np.flatnonzero(arrays["usable"])
    if len(usable) < 2:
        raise DataError(
            f"{folder}: {len(usable)} of the {len(rows)} images in metadata.csv can be read; put them there"
        )
    kept = [rows[index] for index in usable]
    regions = tuple(sorted({row.subcontinent for row in kept}))
    x = torch.from_numpy(arrays["pictures"])
    y = torch.tensor([classes.index(row.label) for row in kept])
    region = np.array([regions.index(row.subcontinent) for row in kept])
    train, test = hold_out(region)
    mean, std = statistics(x[train])
    missing = sum(not path.is_file() for path in paths)
    broken = len(rows) - len(usable) - missing
    if missing or broken:
        notes += (f"{missing:,} images are missing and {broken:,} are broken, of {len(rows):,}; they are left out",)
    return Dataset(
        "flickr-mammal",
        x[train],
        y[train],
        x[test],
        y[test],
        classes,
        client=torch.from_numpy(region[train]),
        clients=regions,
        mean=mean,
        std=std,
        notes=notes,
    )


def _metadata(path: Path) -> list[Photo]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            lacking = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if lacking:
                raise DataError(f"{path} has no column {lacking[0]!r}; its first line must name {', '.join(COLUMNS)}")
            rows = [Photo(*(row[column] or "" for column in COLUMNS)) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error})") from None
    for line, row in enumerate(rows, start=2):
        if not all(row):
            raise DataError(f"{path}, line {line}: file, label and subcontinent must all be given, not {tuple(row)}")
    return rows


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(f"{folder / 'metadata.csv'} names {name!r}, outside of the folder")
    return path


def _pictures(paths: list[Path]) -> Arrays:
    """The readable images, and which of the files they are."""
    pictures: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = []
    usable = np.zeros(len(paths), dtype=bool)
    for row, path in enumerate(paths):
        try:
            pictures.append(read_image(path))
            usable[row] = True
        except DataError:
            continue  # counted by the caller; the paper leaves them out, too
    stacked = np.stack(pictures) if pictures else np.zeros((0, 3, 32, 32), dtype=np.uint8)
    return {"pictures": stacked, "usable": usable}


_PHOTOS = Source("https://zenodo.org/records/3676081/files/geo_animal.tar.gz", None, "flickr-mammal-zenodo")
ENTRY = Entry(
    "flickr-mammal", "mammals by subcontinent, 32×32×3", "partly by hand", "per photo", (_PHOTOS,), locate, read
)
