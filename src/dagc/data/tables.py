"""Columns of numbers and text: which is the label, which the client, and how the others become one vector per row."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dagc.data.limits import refuse_bomb
from dagc.data.samples import Column, Samples, numbered
from dagc.errors import DataError, shown

__all__ = ["LABELS", "USUAL", "Named", "encoded", "rows"]

LABELS = ("label", "labels")
"""The column to predict, unless another is named."""
_MISSING = ("", "?")
_MOST_VALUES = 1000  # of a text column; more are probably names or identifiers


class Named(NamedTuple):
    """The columns of what is to be predicted and of the owner of each row, if not those of the usual names."""

    label: str | None = None
    client: str | None = None
    optional: bool = False  # there may be no such client: in test samples


USUAL = Named()


def rows(columns: Mapping[str, Column], empty: Samples, named: Named = USUAL) -> Samples:
    """A table of columns of numbers, or text as objects; `empty` says where they are from."""
    label = named.label or next((name for name in LABELS if name in columns), LABELS[0])
    client = named.client or ("client" if "client" in columns else None)
    client = None if named.optional and client not in columns else client
    for name, option in ((label, "label"), (client, "client")):
        if name is not None and name not in columns:
            known = shown(", ".join(columns), 300).strip("'\"")
            words = f"its columns are {known}: name yours with {option}= or --{option}"
            raise empty.error(f" has no column {name!r}; {words}")
    features = {name: column for name, column in columns.items() if name not in (label, client)}
    if not features:
        raise empty.error(f" has no column besides {label!r} and {client!r}; there is nothing to learn from")
    y, owner = columns[label], None if client is None else columns[client]
    if y.dtype.kind not in "iubf" or (y.dtype.kind == "f" and not np.isfinite(y).all()):
        y = _texts(empty, label, y)
    if owner is not None and owner.dtype.kind not in "iu":  # whole numbers keep their order
        owner = _texts(empty, str(client), owner)
    if any(len(column) != len(y) for column in features.values()):
        raise empty.error(f" has {len(y)} labels for another number of rows: give equally many")
    return replace(empty, x=features, y=y, owner=owner, named=named.client is not None, table=True)


def encoded(table: Samples, objective: str) -> Samples:
    """Numbers stay numbers, with missing ones set to the mean; text becomes a column of 0 and 1 per value."""
    codes: dict[str, tuple[Column, int]] = {}
    notes = table.notes
    for name, column in table.x.items():
        codes[name], note = _feature(table, name, column)
        notes += note
    width = sum(kinds or 1 for _, kinds in codes.values())
    if table.file is not None:
        try:
            refuse_bomb(table.file, 4 * len(table.y) * width)
        except DataError as error:
            widest = max(codes, key=lambda name: codes[name][1])
            raise DataError(f"{error}; or group the values of {widest!r}, or remove it") from None
    matrix = np.zeros((len(table.y), width), dtype=np.float32)
    start = 0
    for values, kinds in codes.values():
        if kinds:
            matrix[np.arange(len(values)), start + values] = 1
        else:
            matrix[:, start] = values
        start += kinds or 1
    return replace(table, x={"": matrix}, y=_labels(table.y, objective), table=False, notes=notes)


def _feature(table: Samples, name: str, column: Column) -> tuple[tuple[Column, int], tuple[str, ...]]:
    """A column as numbers, or as codes and how many there are; and a note if values are missing."""
    if column.ndim != 1 or column.dtype.kind not in "iufbOUS":
        raise table.error(f": the column {name!r} is {column.dtype}; make it numbers or text, or remove it")
    values = ["" if _is_missing(value) else value for value in column.tolist()]
    present = [place for place, value in enumerate(values) if value not in _MISSING]
    try:
        numbers = np.array([float(values[place]) for place in present])
    except (ValueError, TypeError, OverflowError):
        codes, kinds = numbered([*map(str, values)])
        if len(kinds) > _MOST_VALUES:
            words = f"{len(kinds):,} different values; remove, group or tokenize them"
            raise table.error(f": the text column {name!r} has {words}") from None
        return (codes, len(kinds)), ()
    if not len(numbers):
        raise table.error(f": the column {name!r} is empty in all rows; remove it")
    if not np.isfinite(numbers).all():
        row = present[int(np.flatnonzero(~np.isfinite(numbers))[0])]
        raise table.error(f": the column {name!r} is {values[row]}, not a finite number", row)
    filled = np.full(len(values), numbers.mean(), dtype=np.float32)
    filled[present] = numbers
    missing = len(values) - len(present)
    note = f"{missing:,} missing values of {name!r} are set to its mean, {numbers.mean():g}"
    return (filled, 0), (note,) if missing else ()


def _labels(y: Column, objective: str) -> Column:
    """Text as numbers where all of it is numbers to be predicted as such."""
    if y.dtype.kind not in "OUS":
        return y
    try:
        numbers = np.array([float(text) for text in y.tolist()])
    except (ValueError, OverflowError):
        return y
    predicted = objective == "regression" or (objective == "auto" and not np.array_equal(numbers, np.floor(numbers)))
    return numbers if predicted and np.isfinite(numbers).all() else y


def _texts(table: Samples, name: str, column: Column) -> Column:
    """A column of labels or clients as text; none may be empty."""
    texts = ["" if _is_missing(value) else str(value) for value in column.tolist()]
    if "" in texts:
        raise table.error(f": the column {name!r} is empty", texts.index(""))
    return np.array(texts, dtype=object)


def _is_missing(value: Any) -> bool:
    nan = isinstance(value, float) and value != value
    return value is None or nan or type(value).__name__ == "NAType"  # of pandas
