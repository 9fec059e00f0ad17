"""The one form between every source and a `Dataset`: inputs by name, and what to predict; and the way to a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagc.data.dataset import Dataset, Fields, Inputs, hold_out, statistics
from dagc.data.limits import refuse_bomb
from dagc.errors import DagcError, DataError, InvalidInput, shown
from dagc.text import printable

Column = NDArray[Any]
LABELS = ("label", "labels")  # the column to predict, unless another is named
_MISSING = ("", "?")
_MOST_VALUES = 1000  # of a text column; more are probably names or identifiers
_MOST_CLIENTS = 100  # different values of a text column that may be the names of clients


@dataclass(frozen=True)
class Samples:
    """What a source holds."""

    name: str  # where it is from; begins the messages about it
    x: dict[str, Column]  # the inputs of a model by name; a single one has none: ""
    y: Column  # what to predict: text, whole numbers, numbers, or the next tokens
    owner: Column | None = None  # the client of each sample
    named: bool = False  # those clients were asked for, whatever its pieces are called
    clients: tuple[str, ...] = ()  # the clients in order, if not that of their names
    classes: tuple[str, ...] = ()  # the names of the labels 0, 1, …
    table: bool = False  # x are columns of numbers or text, to be made one vector per sample
    exact: bool = False  # y is used as it is: whole numbers are not numbered again, floats always numbers to predict
    normalize: bool = True  # center and scale batches by the mean and deviation of the training samples
    notes: tuple[str, ...] = ()
    file: Path | None = None  # whose size bounds the memory
    row: tuple[str, int] = ("row", 0)  # what rows are called in messages, and the number of the first

    def __post_init__(self) -> None:
        for column in self.x.values():
            if self.y.shape[:1] != column.shape[:1] or not column.ndim:
                count = len(column) if column.ndim else "no"
                raise self.error(f": y has shape {self.y.shape} for {count} samples; give one value per sample")
            if not len(column):
                raise self.error(" has no samples: leave it out")

    def error(self, message: str, row: int | None = None) -> DagcError:
        """An error about this source or one of its rows."""
        place = "" if row is None else f", {self.row[0]} {row + self.row[1]}"
        return (InvalidInput if self.file is None else DataError)(f"{self.name}{place}{message}")

    @property
    def kind(self) -> str:
        """The types and shapes of one sample, in words."""
        if self.table:
            return "a table"
        inputs = [f"{key} {part.dtype} of shape {part.shape[1:]}".strip() for key, part in self.x.items()]
        kind = {"f": "numbers", "U": "text", "S": "text", "O": "text"}.get(self.y.dtype.kind, "whole numbers")
        return f"{', '.join(inputs)} and {kind} of shape {self.y.shape[1:]} per sample"


class Named(NamedTuple):
    """The columns of what is to be predicted and of the owner of each row, if not those of the usual names."""

    label: str | None = None
    client: str | None = None
    optional: bool = False  # there may be no such client: in test samples


def rows(columns: Mapping[str, Column], named: Named, empty: Samples) -> Samples:
    """A table of columns of numbers, or text as objects; `empty` says where they are from."""
    label = named.label or next((name for name in LABELS if name in columns), LABELS[0])
    client = named.client or ("client" if "client" in columns else None)
    client = None if named.optional and client not in columns else client
    for name, option in ((label, "label"), (client, "client")):
        if name is not None and name not in columns:
            known = shown(", ".join(columns), 300).strip("'\"")
            advice = f"name yours with {option}= or --{option}"
            raise empty.error(f" has no column {name!r}; its columns are {known}: {advice}")
    features = {name: column for name, column in columns.items() if name not in (label, client)}
    if not features:
        raise empty.error(f" has no column besides {label!r} and {client!r}; there is nothing to learn from")
    y, owner = columns[label], None if client is None else columns[client]
    if y.dtype.kind not in "iubf" or (y.dtype.kind == "f" and not np.isfinite(y).all()):
        y = _texts(empty, label, y)
    if owner is not None and owner.dtype.kind not in "iu":  # whole numbers keep their order
        owner = _texts(empty, str(client), owner)
    return replace(empty, x=features, y=y, owner=owner, named=named.client is not None, table=True)


def _texts(table: Samples, name: str, column: Column) -> Column:
    """A column of labels or clients as text; none may be empty."""
    texts = ["" if _is_missing(value) else str(value) for value in column.tolist()]
    if "" in texts:
        raise table.error(f": the column {name!r} is empty", texts.index(""))
    return np.array(texts, dtype=object)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ == "NAType"  # pandas'


def joined(pieces: Sequence[Samples], names: Sequence[Any] | None = None, whose: str = "client ") -> Samples:
    """All pieces as one; with names, each piece is the data of a client."""
    first, known = pieces[0], list(names or range(len(pieces)))
    for name, piece in zip(known, pieces, strict=True):
        differing = ", ".join(sorted(piece.x.keys() ^ first.x.keys()))
        if piece.table and first.table and differing:
            raise piece.error(f" of {name!r} and {known[0]!r} differ in the columns {differing}: all need the same")
        if piece.kind != first.kind:
            kinds = f"{piece.kind}, but {whose}{known[0]!r} has {first.kind}"
            raise InvalidInput(f"{whose}{name!r} has {kinds}: all must be the same")
        if piece.classes != first.classes:  # they stand for the same numbers
            words = "have different labels, or characters: give each client one text, in one folder"
            raise InvalidInput(f"{whose}{name!r} and {known[0]!r} {words}")
    owners = [piece.owner for piece in pieces if piece.owner is not None]
    owner = np.concatenate(owners) if len(owners) == len(pieces) else None
    if names is not None and not first.named:
        owner = np.repeat(np.array([*map(str, names)], dtype=object), [len(piece.y) for piece in pieces])
    return replace(
        first,
        x={key: np.concatenate([piece.x[key] for piece in pieces]) for key in first.x},
        y=np.concatenate([piece.y for piece in pieces]),
        owner=owner,
        clients=() if names is None or first.table else tuple(map(str, names)),
        notes=tuple(dict.fromkeys(note for piece in pieces for note in piece.notes)),
    )


def _numbered(column: Column, order: Sequence[Any] = ()) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Values as 0, 1, … in this or their own order, and their names. Text is never padded: long labels cost nothing."""
    values = [*map(str, column)] if column.dtype == object else column.tolist()
    place = {value: number for number, value in enumerate(order or sorted(set(values)))}
    return np.array([place[value] for value in values], dtype=np.int64), tuple(map(str, place))


def _encoded(table: Samples, objective: str, alone: bool) -> Samples:
    """Numbers stay numbers, with missing ones set to the mean; text becomes a column of 0 and 1 per value.

    If the rows have no owner, they are `alone`, and text columns that may name one are noted.
    """
    codes: dict[str, tuple[Column, int]] = {}
    notes = table.notes
    for name, column in table.x.items():
        codes[name], note = _feature(table, name, column)
        notes += note
    texts = [name for name, (_, kinds) in codes.items() if 1 < kinds <= min(_MOST_CLIENTS, len(table.y) // 2)]
    if texts and alone:
        widths = ", ".join(f"{name!r} ({codes[name][1]} values)" for name in texts[:5]) + ", …" * (len(texts) > 5)
        notes += (
            f"text columns are inputs, one per value: {widths}; if one names the clients, give client= or --client",
        )
    for name, (_, kinds) in codes.items():
        if kinds > max(1, len(table.y) // 2):
            notes += (
                f"the text column {name!r} has {kinds:,} different values: tokenize the text first, or remove it",
            )
    width = sum(kinds or 1 for _, kinds in codes.values())
    if table.file is not None:
        try:
            refuse_bomb(table.file, 4 * len(table.y) * width)
        except DataError as error:
            widest = max(codes, key=lambda name: codes[name][1])
            raise DataError(f"{error}; or group the values of {widest!r}, or remove it") from None
    matrix, start = np.zeros((len(table.y), width), dtype=np.float32), 0
    for values, kinds in codes.values():
        if kinds:
            matrix[np.arange(len(values)), start + values] = 1
        else:
            matrix[:, start] = values
        start += kinds or 1
    return replace(table, x={"": matrix}, y=_labels(table.y, objective), notes=notes)


def _feature(table: Samples, name: str, column: Column) -> tuple[tuple[Column, int], tuple[str, ...]]:
    """A column as numbers, or as codes and how many there are; and a note if values are missing."""
    if column.ndim != 1 or column.dtype.kind not in "iufbOUS":
        raise table.error(f": the column {name!r} is {column.dtype}; make it numbers or text, or remove it")
    values = ["" if _is_missing(value) else value for value in column.tolist()]
    present = [place for place, value in enumerate(values) if value not in _MISSING]
    try:
        numbers = np.array([float(values[place]) for place in present])
    except (ValueError, TypeError, OverflowError):
        codes, kinds = _numbered(np.array(values, dtype=object))
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
    note = f"{len(values) - len(present):,} missing values of {name!r} are set to its mean, {numbers.mean():g}"
    return (filled, 0), (note,) if len(present) < len(values) else ()


def _labels(y: Column, objective: str) -> Column:
    """Text as numbers where all of it is numbers to be predicted as such."""
    try:
        numbers = np.array([float(text) for text in y.tolist()] if y.dtype.kind in "OUS" else [np.nan])
    except (ValueError, OverflowError):
        return y
    predicted = objective == "regression" or (objective == "auto" and not np.array_equal(numbers, np.floor(numbers)))
    return numbers if predicted and np.isfinite(numbers).all() else y


def assemble(name: str, train: Samples, test: Samples | None = None, objective: str = "auto") -> Dataset:
    """Make a data set. Without test samples, a fifth is held out: of each client, else of each label."""
    count = len(train.y)
    if test is not None and test.table != train.table:
        whose = ("test", "training") if test.table else ("training", "test")
        words = f"the {whose[0]} set has columns and the {whose[1]} set has none"
        raise InvalidInput(f"{name}: {words}: give both in one form")
    if train.table:  # text has the same columns of 0 and 1 in both
        both = train if test is None else joined([train, test], ["train", "test"])
        both = _encoded(both, objective, alone=train.owner is None)
        matrix, y = both.x[""], both.y
        test = None if test is None else replace(test, x={"": matrix[count:]}, y=y[count:])
        train = replace(train, x={"": matrix[:count]}, y=y[:count], notes=both.notes)
    train_x, test_x = _inputs(name, train), None if test is None else _inputs(name, test)
    targets, classes = _targets(name, train, test, objective)
    owner, clients, notes = None, train.clients, train.notes
    if train.owner is not None:
        owner, clients = _numbered(train.owner, clients)
    train_y, test_y = targets[:count], targets[count:]
    if test_x is None:
        by_label = targets.ndim == 1 and targets.dtype == torch.int64
        groups = targets.numpy() if by_label else np.zeros(count, dtype=np.int64)
        kept, held_out = map(torch.from_numpy, hold_out(groups if owner is None else owner))
        train_x, test_x, train_y, test_y = train_x[kept], train_x[held_out], targets[kept], targets[held_out]
        whom = " of each client" if owner is not None else " of each label" if by_label else ""
        notes += (f"a fifth{whom} is the test set",) if train.exact else ()
        owner = None if owner is None else owner[kept.numpy()]
    if targets.dtype == torch.float32 and not train.exact:
        middle, unit = (float(part) for part in statistics(train_y[:, None]))
        train_y, test_y = (train_y - middle) / unit, (test_y - middle) / unit
        scale = f"in units of their deviation {unit:g} from the mean {middle:g}"
        advice = "squared errors need small steps, such as learning rate 0.003"
        notes += (f"numbers are predicted (regression), {scale}: {advice}",)
    mean = std = None
    if train.normalize and isinstance(train_x, Tensor) and train_x.dtype != torch.int64:
        mean, std = statistics(train_x)
    client = None if owner is None else torch.from_numpy(owner)
    about = (name, train_x, train_y, test_x, test_y, tuple(map(printable, classes)), client)
    return Dataset(*about, tuple(map(printable, clients)), mean, std, notes=notes)


def _inputs(name: str, samples: Samples) -> Inputs:
    tensors = {key: torch.from_numpy(np.ascontiguousarray(column)) for key, column in samples.x.items()}
    x = tensors[""] if "" in tensors else Fields(tensors)
    if not all(x.shape[1:]):
        raise InvalidInput(f"{name}: samples of shape {tuple(x.shape[1:])} are empty")
    return x


def _targets(name: str, train: Samples, test: Samples | None, objective: str) -> tuple[Tensor, tuple[str, ...]]:
    """What to predict as a tensor, and the names of the classes."""
    y = train.y if test is None else np.concatenate([train.y, test.y])
    kind = y.dtype.kind
    if kind not in "iufbUSO":
        raise InvalidInput(f"{name}: y is of type {y.dtype}; whole numbers, numbers or text are needed")
    if kind == "f" and not np.isfinite(y).all():
        raise InvalidInput(f"{name}: y has NaN or infinity; clean the data first")
    fractions = kind == "f" and not np.array_equal(y, np.floor(y))
    if objective == "regression" or (objective == "auto" and (fractions or (kind == "f" and train.exact))):
        if kind in "USO" or (y.ndim != 1 and not train.exact):
            what = "text" if kind in "USO" else f"{y.dtype} of shape {y.shape}"
            raise InvalidInput(f"{name}: y is {what}; regression needs one number per sample")
        return torch.from_numpy(y.astype(np.float32)), ()
    if train.exact and kind in "iub":
        tokens = [part.x[""] for part in (train, test) if part is not None and y.ndim > 1 and "" in part.x]
        highest = max(int(part.max()) for part in (y, *tokens) if part.size)
        return torch.from_numpy(y.astype(np.int64)), train.classes or tuple(map(str, range(highest + 1)))
    if y.ndim != 1:
        raise InvalidInput(f"{name}: y has shape {y.shape} for {len(y)} samples; give one value per sample")
    if fractions:
        raise InvalidInput(f"{name}: y has fractions; classes are whole numbers or text")
    numbers, classes = _numbered(y.astype(np.int64) if kind == "f" else y)
    if len(classes) < 2:
        raise InvalidInput(f"{name}: all labels are {', '.join(classes)[:100]}; two classes or more are needed")
    return torch.from_numpy(numbers), classes
