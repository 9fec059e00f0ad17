"""Files and folders: a table, arrays or texts, images by label, and all of those by client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.assemble import Samples, joined
from dagc.data.images import SUFFIXES, read_image
from dagc.data.npz import read_npz
from dagc.data.tables import Table, joined_tables, read_csv, read_parquet
from dagc.data.texts import read_text, samples_of_texts
from dagc.errors import DataError, InvalidInput

__all__ = ["FILES", "Parts", "read_path"]

Parts = tuple[Samples | Table, Samples | Table | None]
"""What to train on, and what to test on if it is apart."""
TEST = ("test", "val", "valid", "validation")
"""The folders next to `train` that may hold the test set, the first that is there."""


FILES: dict[str, Callable[[Path], Parts]] = {
    ".csv": lambda path: (read_csv(path), None),
    ".tsv": lambda path: (read_csv(path), None),
    ".parquet": lambda path: (read_parquet(path), None),
    ".npz": read_npz,
    ".txt": lambda path: (samples_of_texts(str(path), {path.stem: read_text(path)}), None),
}
"""How a file of many samples is read, by its suffix."""


def read_path(path: Path) -> Parts:
    """Read whatever is at a path."""
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; give a file or folder of your own")
    if path.suffix.lower() not in FILES:
        raise InvalidInput(
            f"{path} is neither {', '.join(FILES)} nor a folder; docs/how-to/own-data.md shows how to convert data"
        )
    return FILES[path.suffix.lower()](path)


def _read_folder(folder: Path) -> Parts:
    inside = _entries(folder)
    folders = {entry.name: entry for entry in inside if entry.is_dir()}
    files = {entry.stem: entry for entry in inside if entry.is_file() and entry.suffix.lower() in FILES}
    test = next((folders[name] for name in TEST if name in folders), None)
    if "train" in folders and test is not None and set(folders) <= {"train", *TEST}:
        return _read_folder(folders["train"])[0], _read_folder(test)[0]
    if files and not folders:
        if all(file.suffix.lower() == ".txt" for file in files.values()):
            return samples_of_texts(str(folder), {name: read_text(file) for name, file in files.items()}), None
        return together({name: read_path(file)[0] for name, file in files.items()}), None
    below = [entry for each in folders.values() for entry in _entries(each)]
    if any(entry.is_file() and entry.suffix.lower() in SUFFIXES for entry in below):
        return joined([_of_label(each) for each in folders.values() if _entries(each)], None, "a label "), None
    clients = {name: _read_client(each) for name, each in folders.items()}
    parts = {name: part for name, part in clients.items() if part is not None}
    if not parts:
        raise DataError(
            f"{folder} holds no client/label/image, no label/image, no client/*.npz and no tables or texts by client"
        )
    return together(parts), None


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, without what is hidden."""
    return [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]


def _read_client(folder: Path) -> Samples | Table | None:
    """A client has files of many samples, and folders of samples by label."""
    entries = _entries(folder)
    files = [entry for entry in entries if entry.is_file() and entry.suffix.lower() in FILES]
    pieces = [read_path(file)[0] for file in files]
    pieces += [_of_label(entry) for entry in entries if entry.is_dir() and _entries(entry)]
    tables = [piece for piece in pieces if isinstance(piece, Table)]
    samples = [piece._replace(y=_label_texts(piece.y)) for piece in pieces if isinstance(piece, Samples)]
    if tables and samples:
        raise DataError(f"{folder} has tables and other files: put them into folders of their own")
    if tables:
        return joined_tables({table.name: table for table in tables})
    return joined(samples, None, f"{folder}, file ") if samples else None


def together(parts: dict[Any, Samples | Table]) -> Samples | Table:
    """The data of all clients, by name."""
    tables = {str(name): part for name, part in parts.items() if isinstance(part, Table)}
    if len(tables) == len(parts):
        return joined_tables(tables, "client")
    if tables:
        raise InvalidInput(f"client {next(iter(tables))!r} has a table and others have arrays: all must be the same")
    return joined([part for part in parts.values() if isinstance(part, Samples)], [*parts])


def _label_texts(y: NDArray[Any]) -> NDArray[Any]:
    """Labels as text: 1 and 1.0 are one label. Numbers with fractions stay numbers."""
    if y.dtype.kind == "f":
        if not np.array_equal(y, np.floor(y)):
            return y
        y = y.astype(np.int64)
    return np.array([str(value) for value in y.tolist()], dtype=object) if y.ndim == 1 else y


def _of_label(folder: Path) -> Samples:
    """The samples in the folder of a label."""
    samples = [_read_sample(file) for file in _entries(folder)]
    y = np.empty(len(samples), dtype=object)
    y[:] = folder.name
    return Samples(torch.from_numpy(np.stack(samples)), y)


def _read_sample(path: Path) -> NDArray[Any]:
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        raise DataError(f"{path} is not a sample, one of {', '.join(SUFFIXES)}")
    return read_image(path)
