"""Read a CSV file of mixed columns as numbers: features, labels and clients."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.errors import DataError

__all__ = ["Table", "read_table"]

_MISSING = ("", "?")
_MOST_VALUES = 1000  # of a text column; more are probably names or identifiers


class Table(NamedTuple):
    """The columns of a CSV file, by what they are for."""

    features: NDArray[np.float32]
    labels: NDArray[np.str_]
    clients: NDArray[np.str_] | None
    notes: tuple[str, ...]


def read_table(path: Path, label: str, client: str, names: list[str] | None = None) -> Table:
    """Read the file; text columns become one column of 0 and 1 per value, missing numbers the column's mean.

    Args:
        path: The file.
        label: The column to predict.
        client: The column with the owner of each row, if there is one.
        names: The columns, if the file has no first line of names.
    """
    names, rows = _rows(path, names)
    if label not in names:
        raise DataError(f"{path} has no column {label!r}; its columns are {', '.join(names)}")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    features: list[NDArray[np.float32]] = []
    notes: list[str] = []
    for name in names:
        if name not in (label, client):
            feature, note = _feature(path, name, columns[name])
            features.append(feature)
            notes += note
    if not features:
        raise DataError(f"{path} has no column besides {label!r} and {client!r}; there is nothing to learn from")
    for name in {label, client} & set(names):
        if "" in columns[name]:
            raise DataError(f"{path}, line {columns[name].index('') + 2}: the column {name!r} is empty")
    owners = np.array(columns[client]) if client in columns else None
    return Table(np.concatenate(features, axis=1), np.array(columns[label]), owners, tuple(notes))


def _rows(path: Path, given: list[str] | None) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[field.strip() for field in row] for row in csv.reader(file, skipinitialspace=True)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error})") from None
    lines = lines if given is None else [given, *lines]
    if len(lines) < 3:
        raise DataError(f"{path} has {len(lines)} lines; it needs a line of column names and at least two rows")
    names = lines[0]
    if len(set(names)) != len(names):
        raise DataError(f"{path} names a column twice in its first line: {', '.join(names)}")
    rows = []
    for number, row in enumerate(lines[1:], start=2):
        if row and len(row) != len(names):
            raise DataError(f"{path}, line {number} has {len(row)} fields where the first line has {len(names)}")
        if row:
            rows.append(row)
    return names, rows


def _feature(path: Path, name: str, values: list[str]) -> tuple[NDArray[np.float32], list[str]]:
    present = [value for value in values if value not in _MISSING]
    try:
        numbers = np.array([float(value) for value in present])
    except ValueError:
        return _one_hot(path, name, values), []
    if not np.isfinite(numbers).all():
        bad = present[int(np.flatnonzero(~np.isfinite(numbers))[0])]
        raise DataError(f"{path}, line {values.index(bad) + 2}: the column {name!r} is {bad}, not a finite number")
    if not len(numbers):
        raise DataError(f"{path}: the column {name!r} is empty in all rows; remove it")
    mean = float(numbers.mean())
    filled = np.array([mean if value in _MISSING else float(value) for value in values], dtype=np.float32)
    missing = len(values) - len(present)
    note = [f"{missing:,} missing values of {name!r} are set to its mean, {mean:g}"] if missing else []
    return filled[:, None], note


def _one_hot(path: Path, name: str, values: list[str]) -> NDArray[np.float32]:
    kinds, numbers = np.unique(np.array(values), return_inverse=True)
    if len(kinds) > _MOST_VALUES:
        raise DataError(f"{path}: the text column {name!r} has {len(kinds):,} different values; remove or group them")
    return np.eye(len(kinds), dtype=np.float32)[numbers]
