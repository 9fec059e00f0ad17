"""The one form between every source and a `Dataset`: inputs by name, and what to predict."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.errors import DagcError, DataError, InvalidInput

__all__ = ["Column", "Samples", "joined", "numbered"]

Column = NDArray[Any]


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

    def error(self, message: str, row: int | None = None) -> DagcError:
        """An error about this source or one of its rows."""
        place = "" if row is None else f", {self.row[0]} {row + self.row[1]}"
        return (InvalidInput if self.file is None else DataError)(f"{self.name}{place}{message}")


def joined(pieces: Sequence[Samples], names: Sequence[Any] | None = None, whose: str = "client ") -> Samples:
    """All pieces as one; with names, each piece is the data of a client."""
    first, known = pieces[0], list(names or range(len(pieces)))
    for name, piece in zip(known, pieces, strict=True):
        differing = ", ".join(sorted(piece.x.keys() ^ first.x.keys()))
        if piece.table and first.table and differing:
            raise piece.error(f" of {name!r} and {known[0]!r} differ in the columns {differing}: all need the same")
        if _kind(piece) != _kind(first):
            kinds = f"{_kind(piece)}, but {whose}{known[0]!r} has {_kind(first)}"
            raise InvalidInput(f"{whose}{name!r} has {kinds}: all must be the same")
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


def _kind(piece: Samples) -> str:
    """The types and shapes of one sample, in words."""
    if piece.table:
        return "a table"
    inputs = [f"{key} {part.dtype} of shape {part.shape[1:]}".strip() for key, part in piece.x.items()]
    kind = {"f": "numbers", "U": "text", "S": "text", "O": "text"}.get(piece.y.dtype.kind, "whole numbers")
    return f"{', '.join(inputs)} and {kind} of shape {piece.y.shape[1:]} per sample"


def numbered(values: Sequence[Any], order: Sequence[Any] = ()) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Values as 0, 1, … in this or their own order, and their names. Text is never padded: a long label costs nothing.

    Example:
        >>> numbered(["no", "yes", "no"])
        (array([0, 1, 0]), ('no', 'yes'))
    """
    place = {value: number for number, value in enumerate(order or sorted(set(values)))}
    return np.array([place[value] for value in values], dtype=np.int64), tuple(map(str, place))
