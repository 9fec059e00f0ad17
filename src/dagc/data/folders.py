"""Files and folders: a table, arrays or texts, images by label, and all of those by client."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dagc.data.files import FILES, IMAGES, Parts, read_image, read_texts
from dagc.data.samples import USUAL, Column, Named, Samples, joined
from dagc.errors import DataError, InvalidInput

TEST = ("test", "val", "valid", "validation")
"""The folders next to `train` that may hold the test set, the first that is there."""


def read_path(path: Path, named: Named = USUAL) -> Parts:
    """Read whatever is at a path."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; give a file or folder of your own")
    if not path.is_dir() and suffix not in FILES:
        raise InvalidInput(
            f"{path} is neither {', '.join(FILES)} nor a folder; docs/how-to/own-data.md shows how to convert data"
        )
    return _read_folder(path, named) if path.is_dir() else FILES[suffix](path, named)


def _read_folder(folder: Path, named: Named) -> Parts:
    folders, files = _inside(folder)
    test = next((name for name in TEST if name in folders), None)
    if "train" in folders and test is not None and set(folders) <= {"train", *TEST}:
        apart = named._replace(optional=True)
        return _read_folder(folders["train"], named)[0], _read_folder(folders[test], apart)[0]
    many = {file.stem: file for file in files if file.suffix.lower() in FILES}
    if many and not folders:
        if all(file.suffix.lower() == ".txt" for file in many.values()):
            return read_texts(str(folder), many), None
        return joined([read_path(file, named)[0] for file in many.values()], [*many]), None
    if any(file.suffix.lower() in IMAGES for each in folders.values() for file in _inside(each)[1]):
        return joined([_of_label(each) for each in folders.values() if any(_inside(each))], None, "a label "), None
    clients = {name: _read_client(each, named) for name, each in folders.items()}
    parts_of = {name: part for name, part in clients.items() if part is not None}
    if not parts_of:
        raise DataError(
            f"{folder} holds no client/label/image, no label/image, no client/*.npz and no tables or texts by client"
        )
    return joined([*parts_of.values()], [*parts_of]), None


def _inside(folder: Path) -> tuple[dict[str, Path], list[Path]]:
    """The folders and the files in a folder, without what is hidden."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    return {entry.name: entry for entry in entries if entry.is_dir()}, [e for e in entries if not e.is_dir()]


def _read_client(folder: Path, named: Named) -> Samples | None:
    """A client has files of many samples, and folders of samples by label."""
    folders, files = _inside(folder)
    pieces = [read_path(file, named)[0] for file in files if file.suffix.lower() in FILES]
    pieces += [_of_label(each) for each in folders.values() if any(_inside(each))]
    pieces = [piece if piece.table else replace(piece, y=_label_texts(piece.y)) for piece in pieces]
    return joined(pieces, None, f"{folder}, file ") if pieces else None


def _label_texts(y: Column) -> Column:
    """Labels as text: 1 and 1.0 are one label. Numbers with fractions stay numbers."""
    if y.dtype.kind == "f":
        if not np.array_equal(y, np.floor(y)):
            return y
        y = y.astype(np.int64)
    return np.array([str(value) for value in y.tolist()], dtype=object) if y.ndim == 1 else y


def _of_label(folder: Path) -> Samples:
    """The images in the folder of a label."""
    folders, files = _inside(folder)
    for path in (*folders.values(), *files):
        if path.suffix.lower() not in IMAGES or not path.is_file():
            raise DataError(f"{path} is not a sample, one of {', '.join(IMAGES)}")
    y = np.full(len(files), folder.name, dtype=object)
    return Samples(str(folder), {"": np.stack([read_image(file) for file in files])}, y)
