"""Tables: CSV, TSV and parquet files, data frames, and whatever else has named columns."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.assemble import Samples, numbered
from dagc.data.limits import refuse_bomb
from dagc.errors import DagcError, DataError, InvalidInput, MissingExtra, shown

__all__ = ["Table", "joined_tables", "read_csv", "read_parquet", "samples_of_table"]

LABELS = ("label", "labels")
"""The column to predict, unless another is named."""
_MISSING = ("", "?")
_MOST_VALUES = 1000  # of a text column; more are probably names or identifiers


class Table(NamedTuple):
    """Columns by name.

    Attributes:
        name: Where they are from.
        columns: Numbers, or text as objects, all of one length.
        rows: What rows are called in messages, and the number of the first.
        source: The file, whose size bounds the memory; None for what is in memory already.
        comma: Whether numbers may have a decimal comma.
    """

    name: str
    columns: dict[str, NDArray[Any]]
    rows: tuple[str, int] = ("row", 0)
    source: Path | None = None
    comma: bool = False

    def error(self, message: str) -> DagcError:
        """An error about this table, whose name it begins with."""
        return (InvalidInput if self.source is None else DataError)(f"{self.name}{message}")


class _Feature(NamedTuple):
    """A column as numbers, or as codes of its values."""

    values: NDArray[Any]
    kinds: int = 0


def read_csv(path: Path, names: list[str] | None = None) -> Table:
    """Read a file of values separated by commas, semicolons or tabs.

    Args:
        path: The file.
        names: The columns, if the file has no first line of names.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator = _separator(file.readline())
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
            lines = [[field.strip() for field in row] for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error})") from None
    lines = lines if names is None else [names, *lines]
    if len(lines) < 3:
        raise DataError(f"{path} has {len(lines)} lines; it needs a line of column names and at least two rows")
    header = lines[0]
    if len(set(header)) != len(header):
        raise DataError(f"{path} names a column twice in its first line: {shown(', '.join(header), 200)}")
    for number, row in enumerate(lines[1:], start=2):
        if row and len(row) != len(header):
            raise DataError(f"{path}, line {number} has {len(row)} fields where the first line has {len(header)}")
    columns = zip(*(row for row in lines[1:] if row), strict=True)
    texts = {name: np.array(column, dtype=object) for name, column in zip(header, columns, strict=True)}
    return Table(str(path), texts, ("line", 2), path, separator == ";")


def read_parquet(path: Path) -> Table:
    """Read a parquet file with pyarrow."""
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise MissingExtra(
            f"{path} is a parquet file, which needs pyarrow: pip install pyarrow, or save it as CSV"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            groups = range(file.metadata.num_row_groups)
            refuse_bomb(path, sum(file.metadata.row_group(group).total_byte_size for group in groups))
            table = file.read()
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
    except (ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error!s:.300})") from None
    return Table(str(path), columns, source=path)


def joined_tables(tables: Mapping[str, Table], owner: str | None = None) -> Table:
    """Tables with the same columns, one below the other, and a column with the name that each has here."""
    first_name, first = next(iter(tables.items()))
    for name, table in tables.items():
        if set(table.columns) != set(first.columns):
            differing = ", ".join(sorted(set(table.columns) ^ set(first.columns)))
            raise table.error(f" of {name!r} and {first_name!r} differ in the columns {differing}: all need the same")
    columns = {name: np.concatenate([table.columns[name] for table in tables.values()]) for name in first.columns}
    if owner is not None:
        counts = [len(next(iter(table.columns.values()))) for table in tables.values()]
        columns[owner] = np.repeat(np.array([*tables], dtype=object), counts)
    return first._replace(columns=columns)


def samples_of_table(
    table: Table, label: str | None = None, client: str | None = None, objective: str = "auto"
) -> Samples:
    """Numbers stay numbers, with missing ones set to the mean; text becomes a column of 0 and 1 per value.

    Args:
        table: The columns.
        label: The one to predict; by default `label`, or `labels`.
        client: The one with the owner of each row; by default `client`, if there is one.
        objective: `regression` if labels are numbers to predict; `auto` if they have fractions.
    """
    columns = table.columns
    label = label or next((each for each in LABELS if each in columns), LABELS[0])
    for named, option in ((label, "label"), (client, "client")):
        if named is not None and named not in columns:
            known = shown(", ".join(columns), 300).strip("'\"")
            raise table.error(
                f" has no column {named!r}; its columns are {known}: name yours with {option}= or --{option}"
            )
    client = client or ("client" if "client" in columns else None)
    features: dict[str, _Feature] = {}
    notes: list[str] = []
    for key, column in columns.items():
        if key not in (label, client):
            features[key], note = _feature(table, key, column)
            notes += note
    if not features:
        raise table.error(f" has no column besides {label!r} and {client!r}; there is nothing to learn from")
    y = _labels(table, label, objective)
    owner, clients = (None, ()) if client is None else numbered(_owners(table, client))
    return Samples(torch.from_numpy(_matrix(table, features)), y, owner, clients, notes=tuple(notes))


def _separator(line: str) -> str:
    """What separates the names of the first line."""
    outside = "".join(line.split('"')[::2])
    return max(",;\t", key=outside.count)


def _texts(table: Table, key: str) -> list[str]:
    """A column of labels or clients as text; none may be empty."""
    texts = ["" if _is_missing(value) else str(value) for value in table.columns[key].tolist()]
    if "" in texts:
        raise table.error(f"{_place(table, texts.index(''))}: the column {key!r} is empty")
    return texts


def _owners(table: Table, key: str) -> list[Any]:
    """Whole numbers keep their order; everything else is text."""
    column = table.columns[key]
    return column.tolist() if column.dtype.kind in "iu" else _texts(table, key)


def _labels(table: Table, key: str, objective: str) -> NDArray[Any]:
    """Numbers if they are to be predicted as such, else text or whole numbers."""
    column = table.columns[key]
    if column.dtype.kind in "iub" or (column.dtype.kind == "f" and np.isfinite(column).all()):
        return column
    texts = _texts(table, key)
    numbers = _as_numbers(texts, table.comma)
    if objective == "regression" and numbers is None:
        raise table.error(f": the column {key!r} is text, not numbers: leave regression out")
    fractions = numbers is not None and not np.array_equal(numbers, np.floor(numbers))
    if numbers is not None and (objective == "regression" or (objective == "auto" and fractions)):
        return numbers
    return np.array(texts, dtype=object)


def _as_numbers(texts: list[str], comma: bool) -> NDArray[np.float64] | None:
    """The texts as finite numbers; None unless all of them are."""
    try:
        numbers = np.array([_number(text, comma) for text in texts])
    except (ValueError, OverflowError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _number(value: Any, comma: bool) -> float:
    return float(value.replace(",", ".") if comma and isinstance(value, str) else value)


def _is_missing(value: Any) -> bool:
    nan = isinstance(value, float) and value != value
    return value is None or nan or type(value).__name__ == "NAType"  # of pandas


def _feature(table: Table, key: str, column: NDArray[Any]) -> tuple[_Feature, list[str]]:
    """A column to learn from, and a note if values are missing."""
    if column.ndim != 1 or column.dtype.kind not in "iufbOUS":
        raise table.error(f": the column {key!r} is {column.dtype}; make it numbers or text, or remove it")
    values = ["" if _is_missing(value) else value for value in column.tolist()]
    present = [value for value in values if value not in _MISSING]
    try:
        numbers = np.array([_number(value, table.comma) for value in present])
    except (ValueError, TypeError, OverflowError):
        codes, kinds = numbered(str(value) for value in values)
        if len(kinds) > _MOST_VALUES:
            raise table.error(
                f": the text column {key!r} has {len(kinds):,} different values; remove, group or tokenize them"
            ) from None
        return _Feature(codes, len(kinds)), []
    if not len(numbers):
        raise table.error(f": the column {key!r} is empty in all rows; remove it")
    if not np.isfinite(numbers).all():
        bad = present[int(np.flatnonzero(~np.isfinite(numbers))[0])]
        raise table.error(f"{_place(table, values.index(bad))}: the column {key!r} is {bad}, not a finite number")
    mean = float(numbers.mean())
    filled = [mean if value in _MISSING else _number(value, table.comma) for value in values]
    missing = len(values) - len(present)
    note = [f"{missing:,} missing values of {key!r} are set to its mean, {mean:g}"] if missing else []
    return _Feature(np.array(filled, dtype=np.float32)), note


def _matrix(table: Table, features: dict[str, _Feature]) -> NDArray[np.float32]:
    """All features next to each other, after a look at how much memory that takes."""
    rows = len(next(iter(features.values())).values)
    width = sum(feature.kinds or 1 for feature in features.values())
    if table.source is not None:
        try:
            refuse_bomb(table.source, 4 * rows * width)
        except DataError as error:
            widest = max(features, key=lambda key: features[key].kinds)
            raise DataError(f"{error}; or group the values of {widest!r}, or remove it") from None
    matrix = np.zeros((rows, width), dtype=np.float32)
    start = 0
    for values, kinds in features.values():
        if kinds:
            matrix[np.arange(rows), start + values] = 1
        else:
            matrix[:, start] = values
        start += kinds or 1
    return matrix


def _place(table: Table, row: int) -> str:
    kind, first = table.rows
    return f", {kind} {row + first}"
