"""Files of many samples, images, and folders of both. None costs more memory than its size allows."""

import csv
import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from dagc.data.limits import refuse_bomb
from dagc.data.samples import Column, Named, Samples, joined, rows
from dagc.errors import DataError, InvalidInput, MissingExtra, shown

try:
    from lzma import LZMAError
except ImportError:  # a Python without it cannot read such members either
    LZMAError = zipfile.BadZipFile  # type: ignore[assignment,misc]

Parts = tuple[Samples, Samples | None]  # what to train on, and what to test on if it is apart
TEST = ("test", "val", "valid", "validation")
"""The folders next to `train` that may hold the test set, the first that is there."""
ARRAYS = ("x", "y", "client", "x_test", "y_test")
"""The arrays of an .npz file that are read; others are not even opened."""
UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, OverflowError, MemoryError, TypeError,
    SyntaxError, RuntimeError, zlib.error, LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""The errors of reading arrays from a file that is damaged, or that claims more entries than it has."""
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""What an image may be, whatever its suffix says: Pillow would start Ghostscript for PostScript."""
LENGTH = 64  # characters per sequence of a text, not counting the one that follows its last
COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.IGNORECASE)  # a number with a decimal comma


def read_csv(path: Path, named: Named, names: list[str] | None = None) -> Samples:
    """Read fields separated by commas, semicolons or tabs; `names` are the columns, if no first line has them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            outside_quotes = "".join(file.readline().split('"')[::2])
            separator = max(",;\t", key=outside_quotes.count)
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
            lines = [[field.strip() for field in line] for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error})") from None
    lines = lines if names is None else [names, *lines]
    if len(lines) < 3:
        raise DataError(f"{path} has {len(lines)} lines; it needs a line of column names and at least two rows")
    header, *lines = lines
    if len(set(header)) != len(header):
        raise DataError(f"{path} names a column twice in its first line: {shown(', '.join(header), 200)}")
    for number, line in enumerate(lines, start=2):
        if line and len(line) != len(header):
            raise DataError(f"{path}, line {number} has {len(line)} fields where the first line has {len(header)}")
        if separator == ";":
            line[:] = [field.replace(",", ".") if COMMA.fullmatch(field) else field for field in line]
    columns = zip(*filter(None, lines), strict=True)
    texts = {name: np.array(column, dtype=object) for name, column in zip(header, columns, strict=True)}
    return rows(texts, named, Samples(str(path), {}, np.empty(0), file=path, row=("line", 2)))


def _read_parquet(path: Path, named: Named) -> Samples:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        advice = "pip install pyarrow, or save it as CSV"
        raise MissingExtra(f"{path} is a parquet file, which needs pyarrow: {advice}") from None
    try:
        with parquet.ParquetFile(path) as file:
            texts = _parquet_texts(path, file)
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read()
        columns = {name: _parquet_column(path, table.column(name)) for name in table.column_names}
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error!s:.300})") from None
    return rows(columns, named, Samples(str(path), {}, np.empty(0), file=path))


def _parquet_texts(path: Path, file: Any) -> list[str]:
    """The columns of text; refuses a file whose columns are too large, however few bytes repeated values take."""
    leaves = [file.schema.column(place) for place in range(file.metadata.num_columns)]
    for leaf in leaves:
        if leaf.max_repetition_level or leaf.max_definition_level > 1:
            raise DataError(f"{path}: the column {shown(leaf.path)} holds lists or records; make it numbers or text")
    size = 0
    for place in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(place)
        widths = [max(8, leaf.length) * group.column(at).num_values for at, leaf in enumerate(leaves)]
        size += max(group.total_byte_size, sum(widths))
    refuse_bomb(path, size)
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]


def _parquet_column(path: Path, column: Any) -> Column:
    """A column as an array; equal texts of a piece are one object, and bounded as if each were one of its own."""
    parts, size = [], 0
    for chunk in column.chunks:
        if not hasattr(chunk, "dictionary"):
            return np.asarray(column.to_numpy())
        values = chunk.dictionary.to_pylist()
        places = chunk.indices.fill_null(len(values)).to_numpy()
        lengths = np.array([*(len(value) if isinstance(value, str | bytes) else 8 for value in values), 0])
        size += int(lengths[places].sum())
        refuse_bomb(path, size)
        array = np.empty(len(values) + 1, dtype=object)
        array[: len(values)] = values
        parts.append(array[places])
    return np.concatenate(parts) if parts else np.asarray(column.to_numpy())


def read_npz(path: Path) -> Parts:
    """The samples of a file with `x`, `y` and, optionally, `client`, `x_test`, `y_test`."""
    try:
        arrays = _plain_arrays(path)
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as .npz of plain arrays ({error!s:.300})") from None
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{path} has no array {name!r}, only {', '.join(arrays) or 'others'}; save x and y")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path} has only one of x_test and y_test; give both or none")
    y, client = arrays["y"], arrays.get("client")
    train = Samples(str(path), {"": _numbers(path, "x", arrays["x"])}, y, client, file=path)
    if client is not None and (client.shape != y.shape or client.dtype.kind not in "iubU"):
        kind = f"{client.dtype} of shape {client.shape}"
        raise DataError(f"{path}: client is {kind}; give a whole number or a text for each of {len(y)} samples")
    if "x_test" not in arrays:
        return train, None
    return train, replace(train, x={"": _numbers(path, "x_test", arrays["x_test"])}, y=arrays["y_test"], owner=None)


def _plain_arrays(path: Path) -> dict[str, Column]:
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        wanted = {name: members[name] for name in ARRAYS if name in members}
        refuse_bomb(path, sum(member.file_size for member in wanted.values()))
        arrays = {}
        for name, member in wanted.items():
            with archive.open(member) as file:
                _check_header(file, member.file_size)
            with archive.open(member) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
        return arrays


def _check_header(file: IO[bytes], size: int) -> None:
    """Refuse an array of objects, and one that claims more bytes than its member has, before any is allocated."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of .npy is unknown")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    if kind.hasobject:
        raise ValueError("an array holds Python objects")
    if math.prod(shape) * kind.itemsize > size:
        raise ValueError(f"an array of shape {shape!s:.100} is announced in {size:,} bytes")


def _numbers(path: Path, name: str, x: Column) -> Column:
    """Samples as uint8 or float32."""
    if x.dtype.kind not in "iufb":
        raise DataError(f"{path}: {name} is of type {x.dtype}; it must be numbers")
    if x.ndim < 2 or len(x) < (2 if name == "x" else 1):
        raise DataError(f"{path}: {name} has shape {x.shape}; samples × features are needed, two samples or more")
    with np.errstate(over="ignore"):  # what does not fit becomes infinity, which Dataset refuses by sample
        return x.astype(np.uint8 if x.dtype in (bool, np.uint8) else np.float32)


def read_texts(name: str, files: Mapping[str, Path]) -> Samples:
    """Files in UTF-8, by client."""
    texts = {}
    for client, file in files.items():
        _refuse_special(file)
        try:
            texts[client] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file} cannot be read as UTF-8 text ({error})") from None
    return samples_of_texts(name, texts)


def samples_of_texts(name: str, texts: Mapping[str, str]) -> Samples:
    """Cut the text of every client into sequences that do not overlap. Texts with fewer than two are left out."""
    characters = sorted(set().union(*texts.values()))
    place = {character: number for number, character in enumerate(characters)}
    pieces: dict[str, Samples] = {}
    for client, text in texts.items():
        count = (len(text) - 1) // LENGTH
        if count >= 2:
            tokens = np.array([place[character] for character in text[: count * LENGTH + 1]], dtype=np.int64)
            x, y = tokens[:-1].reshape(count, LENGTH), tokens[1:].reshape(count, LENGTH)
            pieces[client] = Samples(name, {"": x}, y, classes=tuple(characters), exact=True, normalize=False)
    if not pieces:
        raise DataError(f"{name}: no text has {2 * LENGTH + 1} characters; two sequences of {LENGTH} are needed")
    left_out = len(texts) - len(pieces)
    note = f"{left_out} of {len(texts)} texts are shorter than {2 * LENGTH + 1} characters and left out"
    return replace(joined([*pieces.values()], [*pieces]), notes=(note,) if left_out else ())


def read_image(path: Path, side: int = 32) -> Column:
    """The middle square of an image, shrunk to (3, side, side) bytes, unless it has too many pixels for its size."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about odd metadata do not matter here
            with Image.open(path, formats=FORMATS) as image:
                refuse_bomb(path, 3 * image.width * image.height)
                small = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a readable image ({error})") from None
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


FILES: dict[str, Callable[[Path, Named], Parts]] = {
    ".csv": lambda path, named: (read_csv(path, named), None),
    ".tsv": lambda path, named: (read_csv(path, named), None),
    ".parquet": lambda path, named: (_read_parquet(path, named), None),
    ".npz": lambda path, named: read_npz(path),
    ".txt": lambda path, named: (read_texts(str(path), {path.stem: path}), None),
}
"""How a file of many samples is read, by its suffix."""


def read_path(path: Path, named: Named) -> Parts:
    """Read whatever is at a path."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; give a file or folder of your own")
    if not path.is_dir():
        _refuse_special(path)
    if not path.is_dir() and suffix not in FILES:
        advice = "docs/how-to/own-data.md shows how to convert data"
        raise InvalidInput(f"{path} is neither {', '.join(FILES)} nor a folder; {advice}")
    return _read_folder(path, named) if path.is_dir() else FILES[suffix](path, named)


def _refuse_special(path: Path) -> None:
    """Refuse devices and pipes: they have no end, or wait for ever."""
    if not path.is_file():
        raise DataError(f"{path} is not a regular file")


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
        layouts = "no client/label/image, no label/image, no client/*.npz and no tables or texts by client"
        raise DataError(f"{folder} holds {layouts}")
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
