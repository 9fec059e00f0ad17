"""The last step for every source: number labels and clients, hold out a test set, normalize."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagc.data.dataset import Dataset, hold_out, statistics
from dagc.data.fields import Fields, Inputs, tensors_of
from dagc.errors import InvalidInput
from dagc.text import printable

__all__ = ["Samples", "assemble", "joined", "numbered"]


class Samples(NamedTuple):
    """What a source holds, before it is a `Dataset`.

    Attributes:
        x: The inputs of a model.
        y: What to predict: text, whole numbers, numbers, or the next tokens.
        owner: The client of each sample, as a position in `clients`.
        clients: The clients' names.
        classes: The labels' names, if the source has names for 0, 1, …
        exact: Whether `y` is used as it is: whole numbers are not numbered again, floats always numbers to predict.
        normalize: Whether batches are centered and scaled by the mean and deviation of the training samples.
        notes: What a reader should know.
    """

    x: Inputs
    y: NDArray[Any]
    owner: NDArray[np.int64] | None = None
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    exact: bool = False
    normalize: bool = True
    notes: tuple[str, ...] = ()


def assemble(name: str, train: Samples, test: Samples | None = None, objective: str = "auto") -> Dataset:
    """Make a data set. Without test samples, a fifth is held out: of each client, else of each label."""
    count = len(train.y)
    if len(train.x) != count or (test is not None and len(test.x) != len(test.y)):
        part = train if test is None or len(train.x) != count else test
        raise InvalidInput(f"{name}: y has shape {part.y.shape} for {len(part.x)} samples; give one value per sample")
    if not all(train.x.shape[1:]):
        raise InvalidInput(f"{name}: samples of shape {tuple(train.x.shape[1:])} are empty")
    y = train.y if test is None else np.concatenate([train.y, test.y])
    targets, classes = _targets(name, y, train, test, objective)
    owner, notes = train.owner, train.notes
    if test is None:
        by_label = targets.ndim == 1 and targets.dtype == torch.int64
        groups = targets.numpy() if by_label else np.zeros(count, dtype=np.int64)
        kept, held = (torch.from_numpy(part) for part in hold_out(groups if owner is None else owner))
        train_x, test_x, train_y, test_y = train.x[kept], train.x[held], targets[kept], targets[held]
        owner = None if owner is None else owner[kept.numpy()]
        if train.exact:
            whom = " of each client" if owner is not None else " of each label" if by_label else ""
            notes = (*notes, f"a fifth{whom} is the test set")
    else:
        train_x, test_x, train_y, test_y = train.x, test.x, targets[:count], targets[count:]
    if targets.dtype == torch.float32 and not train.exact:
        train_y, test_y, note = _scaled(train_y, test_y)
        notes = (*notes, note)
    mean = std = None
    if train.normalize and isinstance(train_x, Tensor) and train_x.dtype != torch.int64:
        mean, std = statistics(train_x)
    client = None if owner is None else torch.from_numpy(owner)
    about = (name, train_x, train_y, test_x, test_y, tuple(map(printable, classes)), client)
    return Dataset(*about, tuple(map(printable, train.clients)), mean, std, notes=notes)


def joined(pieces: Sequence[Samples], names: Sequence[Any] | None, whose: str = "client ") -> Samples:
    """All pieces as one; with names, each piece is the data of a client."""
    first = pieces[0]
    known = list(names or range(len(pieces)))
    for name, piece in zip(known, pieces, strict=True):
        if _kind(piece) != _kind(first):
            raise InvalidInput(
                f"{whose}{name!r} has {_kind(piece)} per sample, but {whose}{known[0]!r} has {_kind(first)}: all must "
                "be the same"
            )
    parts = [tensors_of(piece.x) for piece in pieces]
    tensors = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    x = Fields(tensors) if isinstance(first.x, Fields) else tensors[""]
    owner, clients = first.owner, first.clients
    if names is not None:
        owner = np.repeat(np.arange(len(pieces)), [len(piece.y) for piece in pieces])
        clients = tuple(map(str, names))
    notes = tuple(dict.fromkeys(note for piece in pieces for note in piece.notes))
    return first._replace(
        x=x, y=np.concatenate([piece.y for piece in pieces]), owner=owner, clients=clients, notes=notes
    )


def numbered(values: Iterable[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Values as 0, 1, … in their order, and their names. Text is never padded: one long label costs nothing.

    Example:
        >>> numbered(["no", "yes", "no"])
        (array([0, 1, 0]), ('no', 'yes'))
    """
    known = list(values)
    place = {value: number for number, value in enumerate(sorted(set(known)))}
    return np.array([place[value] for value in known], dtype=np.int64), tuple(str(value) for value in place)


def _targets(
    name: str, y: NDArray[Any], train: Samples, test: Samples | None, objective: str
) -> tuple[Tensor, tuple[str, ...]]:
    """What to predict as a tensor, and the names of the classes."""
    numeric, whole = y.dtype.kind in "iufb", y.dtype.kind in "iub"
    if y.dtype.kind not in "iufbUSO":
        raise InvalidInput(f"{name}: y is of type {y.dtype}; whole numbers, numbers or text are needed")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise InvalidInput(f"{name}: y has NaN or infinity; clean the data first")
    if objective == "regression" or (numeric and objective == "auto" and _fractions(y, train.exact)):
        if not numeric or (y.ndim != 1 and not train.exact):
            raise InvalidInput(f"{name}: y is {y.dtype} of shape {y.shape}; regression needs one number per sample")
        return torch.from_numpy(y.astype(np.float32)), ()
    if train.exact and whole:
        targets = torch.from_numpy(y.astype(np.int64))
        tokens = [part.x for part in (train, test) if part is not None and y.ndim > 1 and isinstance(part.x, Tensor)]
        highest = max(int(part.max()) for part in (targets, *tokens) if part.numel())
        return targets, train.classes or tuple(map(str, range(highest + 1)))
    if y.ndim != 1:
        raise InvalidInput(f"{name}: y has shape {y.shape} for {len(y)} samples; give one value per sample")
    if y.dtype.kind == "f":
        if _fractions(y, False):
            raise InvalidInput(f"{name}: y has fractions; classes are whole numbers or text")
        y = y.astype(np.int64)
    if y.dtype.kind == "O":
        y = np.array([str(value) for value in y.tolist()], dtype=object)
    numbers, classes = numbered(y.tolist())
    if len(classes) < 2:
        raise InvalidInput(f"{name}: all labels are {', '.join(classes)[:100]}; two classes or more are needed")
    return torch.from_numpy(numbers), classes


def _fractions(y: NDArray[Any], exact: bool) -> bool:
    """Whether numbers are no classes: they have fractions or, used as they are, are floats."""
    return y.dtype.kind == "f" and (exact or not np.array_equal(y, np.floor(y)))


def _scaled(train_y: Tensor, test_y: Tensor) -> tuple[Tensor, Tensor, str]:
    """Numbers to predict in units of their deviation from the mean, and a note that says so."""
    middle, unit = (float(part) for part in statistics(train_y[:, None]))
    note = (
        f"numbers are predicted (regression), in units of their deviation {unit:g} from the mean {middle:g}: "
        "squared errors need small steps, such as learning rate 0.003"
    )
    return (train_y - middle) / unit, (test_y - middle) / unit, note


def _kind(piece: Samples) -> str:
    """The type and shape of one sample, in words."""
    tensors = tensors_of(piece.x)
    inputs = [f"{key} {part.dtype} of shape {tuple(part.shape[1:])}".strip() for key, part in tensors.items()]
    kind = {"f": "numbers", "U": "text", "S": "text", "O": "text"}.get(piece.y.dtype.kind, "whole numbers")
    return f"{', '.join(inputs)} and {kind} of shape {piece.y.shape[1:]}"
