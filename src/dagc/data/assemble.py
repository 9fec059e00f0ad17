"""The last step for every source: number labels and clients, hold out a test set, normalize."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dagc.data.dataset import Dataset, hold_out, statistics
from dagc.data.fields import Fields, Inputs
from dagc.data.samples import Column, Samples, joined, numbered
from dagc.data.tables import encoded
from dagc.errors import InvalidInput
from dagc.text import printable

__all__ = ["assemble"]


def assemble(name: str, train: Samples, test: Samples | None = None, objective: str = "auto") -> Dataset:
    """Make a data set. Without test samples, a fifth is held out: of each client, else of each label."""
    count = len(train.y)
    if test is not None and test.table != train.table:
        words = ("test", "training") if test.table else ("training", "test")
        raise InvalidInput(
            f"{name}: the {words[0]} set has columns and the {words[1]} set has none: give both in one form"
        )
    if train.table:  # text has the same columns of 0 and 1 in both
        both = encoded(train if test is None else joined([train, test], ["train", "test"]), objective)
        part = replace(both, x={"": both.x[""][:count]}, y=both.y[:count], owner=train.owner, clients=train.clients)
        test = None if test is None else replace(both, x={"": both.x[""][count:]}, y=both.y[count:])
        train = part
    train_x, test_x = _inputs(name, train), None if test is None else _inputs(name, test)
    y = train.y if test is None else np.concatenate([train.y, test.y])
    targets, classes = _targets(
        name, y, train, [part for part in (train_x, test_x) if isinstance(part, Tensor)], objective
    )
    owner, clients, notes = None, train.clients, train.notes
    if train.owner is not None:
        names = train.owner.tolist()
        owner, clients = numbered([*map(str, names)] if train.owner.dtype == object else names, train.clients)
    if test_x is None:
        by_label = targets.ndim == 1 and targets.dtype == torch.int64
        groups = targets.numpy() if by_label else np.zeros(count, dtype=np.int64)
        kept, held = (torch.from_numpy(part) for part in hold_out(groups if owner is None else owner))
        train_x, test_x, train_y, test_y = train_x[kept], train_x[held], targets[kept], targets[held]
        if train.exact:
            whom = " of each client" if owner is not None else " of each label" if by_label else ""
            notes = (*notes, f"a fifth{whom} is the test set")
        owner = None if owner is None else owner[kept.numpy()]
    else:
        train_y, test_y = targets[:count], targets[count:]
    if targets.dtype == torch.float32 and not train.exact:
        train_y, test_y, note = _scaled(train_y, test_y)
        notes = (*notes, note)
    mean = std = None
    if train.normalize and isinstance(train_x, Tensor) and train_x.dtype != torch.int64:
        mean, std = statistics(train_x)
    client = None if owner is None else torch.from_numpy(owner)
    about = (name, train_x, train_y, test_x, test_y, tuple(map(printable, classes)), client)
    return Dataset(*about, tuple(map(printable, clients)), mean, std, notes=notes)


def _inputs(name: str, samples: Samples) -> Inputs:
    tensors = {key: torch.from_numpy(np.ascontiguousarray(column)) for key, column in samples.x.items()}
    x = tensors[""] if "" in tensors else Fields(tensors)
    if len(x) != len(samples.y):
        shape = samples.y.shape
        raise InvalidInput(f"{name}: y has shape {shape} for {len(x)} samples; give one value per sample")
    if not all(x.shape[1:]):
        raise InvalidInput(f"{name}: samples of shape {tuple(x.shape[1:])} are empty")
    return x


def _targets(
    name: str, y: Column, train: Samples, tokens: list[Tensor], objective: str
) -> tuple[Tensor, tuple[str, ...]]:
    """What to predict as a tensor, and the names of the classes."""
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
        targets = torch.from_numpy(y.astype(np.int64))
        highest = max(int(part.max()) for part in (targets, *(tokens if y.ndim > 1 else ())) if part.numel())
        return targets, train.classes or tuple(map(str, range(highest + 1)))
    if y.ndim != 1:
        raise InvalidInput(f"{name}: y has shape {y.shape} for {len(y)} samples; give one value per sample")
    if fractions:
        raise InvalidInput(f"{name}: y has fractions; classes are whole numbers or text")
    values = (y.astype(np.int64) if kind == "f" else y).tolist()
    numbers, classes = numbered([*map(str, values)] if kind == "O" else values)
    if len(classes) < 2:
        raise InvalidInput(f"{name}: all labels are {', '.join(classes)[:100]}; two classes or more are needed")
    return torch.from_numpy(numbers), classes


def _scaled(train_y: Tensor, test_y: Tensor) -> tuple[Tensor, Tensor, str]:
    """Numbers to predict in units of their deviation from the mean, and a note that says so."""
    middle, unit = (float(part) for part in statistics(train_y[:, None]))
    note = (
        f"numbers are predicted (regression), in units of their deviation {unit:g} from the mean {middle:g}: "
        "squared errors need small steps, such as learning rate 0.003"
    )
    return (train_y - middle) / unit, (test_y - middle) / unit, note
