"""The one way in: whatever a person has becomes a `Dataset`."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dagc.data.arrays import is_batch, read_object
from dagc.data.assemble import Samples, assemble
from dagc.data.catalogue import CATALOGUE, data_folder
from dagc.data.dataset import Dataset
from dagc.data.folders import TEST, Parts, read_path, together
from dagc.data.tables import Table, joined_tables, samples_of_table
from dagc.errors import DataError, InvalidInput, unknown

__all__ = ["load"]


def load(
    data: Any,
    data_dir: str | os.PathLike[str] | None = None,
    augment: bool = False,
    objective: str = "auto",
    *,
    test: Any = None,
    label: str | None = None,
    client: str | None = None,
    name: str | None = None,
) -> Dataset:
    """Make a data set from whatever holds the data.

    One piece of data is a path, a data frame, a Hugging Face or torch data set, a tuple `(x, y)` of tensors, arrays or
    frames, a mapping of columns such as a tokenizer's batch, or sequences of tokens, in which each token is predicted
    from those before it. Columns are normalized; tensors and arrays are used as they are. Everything is read once,
    into memory.

    Args:
        data: A name in `CATALOGUE`, such as `digits`; or one piece of data; or one for each client: a mapping from
            names to pieces, or a list. Pieces called `train` and `test` are what to train and to test on.
        data_dir: The data folder, for data sets with a name; by default `DAGC_DATA`, or the user's cache.
        augment: Crop and flip training images at random (the paper does not say whether it did).
        objective: `regression` if whole numbers are to be predicted as numbers; with `auto`, only those with fractions
            or of a floating-point type are.
        test: Data to test on, in the same form. If not given, a fifth is held out, of each client or each label.
        label: The column to predict, if not `label`.
        client: The column with the owner of each row, if not `client`.
        name: The name of the data set; by default its path, or `own`.

    Raises:
        MissingData: The set is not in the data folder; the message says how to get it.
        DataError: A file is damaged or of the wrong shape; the message names it.
        InvalidInput: The data cannot be used; the message names the client.

    Example:
        >>> import torch
        >>> digits = load("digits")
        >>> len(digits), digits.shape, len(digits.classes)
        (1442, (1, 8, 8), 10)
        >>> ann, bob = (torch.randn(10, 3), torch.randn(10)), (torch.randn(5, 3), torch.randn(5))
        >>> clinics = load({"ann": ann, "bob": bob})
        >>> clinics.objective, clinics.clients, len(clinics), len(clinics.test_y)
        ('regression', ('ann', 'bob'), 12, 3)
    """
    dataset = _dataset(data, data_dir, objective, test, label, client, name)
    if augment and len(dataset.shape) != 3:
        shape = dataset.shape
        raise InvalidInput(f"{dataset.name}: only images can be cropped and flipped, not samples of shape {shape}")
    if objective not in ("auto", dataset.objective):
        raise InvalidInput(f"{dataset.name} is for {dataset.objective}, not for {objective}: leave the objective out")
    return replace(dataset, augment=True) if augment else dataset


def _dataset(
    data: Any, data_dir: Any, objective: str, test: Any, label: str | None, client: str | None, name: str | None
) -> Dataset:
    path = _as_path(data) if isinstance(data, str | os.PathLike) else None
    load_named = None if path is None else CATALOGUE.get(os.fspath(data))
    if isinstance(data, Dataset) or load_named is not None:
        if test is not None:
            raise InvalidInput(f"{name or 'data'} is a data set with test samples of its own: leave test out")
        if load_named is None:
            return data  # type: ignore[no-any-return]
        try:
            return load_named(data_folder(data_dir))
        except OSError as error:
            raise DataError(f"{data} cannot be read ({error})") from None
    columns = (label, client, objective)
    train, held = _read(data, "data", columns)
    if test is not None:
        held = _read(test, "test", columns)[0]
    title = name or (str(path) if path is not None else "own")
    if isinstance(train, Table) and isinstance(held, Table):
        train, held = _samples_of_both(train, held, columns)
    elif isinstance(train, Table):
        train = samples_of_table(train, *columns)
    if isinstance(held, Table) or isinstance(train, Table):
        raise InvalidInput(f"{title}: the test set has columns and the training set has none: give both in one form")
    return assemble(title, train, held, objective)


def _read(data: Any, whose: str, columns: tuple[str | None, str | None, str]) -> Parts:
    """One piece, or the pieces of all clients, or what is called train and test."""
    if isinstance(data, str | os.PathLike):
        try:
            return read_path(_as_path(data))
        except OSError as error:
            raise DataError(f"{data} cannot be read ({error})") from None
    by_name = isinstance(data, Mapping) and not is_batch(data)
    if not by_name and not isinstance(data, list):
        return read_object(data, whose, *columns), None
    pieces = dict(data) if by_name else dict(enumerate(data))
    if not pieces:
        raise InvalidInput(f"{whose} has no clients: give a piece of data for each")
    test = next((key for key in TEST if key in pieces), None)
    if test is not None and "train" in pieces and set(pieces) <= {"train", *TEST, "unsupervised"}:
        return _read(pieces["train"], "train", columns)[0], _read(pieces[test], "test", columns)[0]
    parts = {}
    for key, piece in pieces.items():
        if isinstance(piece, Mapping) and not is_batch(piece):
            words = "give one piece of data, such as a tuple (x, y), or rows as a data frame"
            raise InvalidInput(f"client {key!r} has a mapping: {words}")
        whom = f"client {key!r}"
        parts[key] = _read(piece, whom, columns)[0] if not isinstance(piece, list) else read_object(piece, whom)
    return together(parts), None


def _samples_of_both(train: Table, test: Table, columns: tuple[str | None, str | None, str]) -> tuple[Samples, Samples]:
    """Two tables with the same features: text has the same columns of 0 and 1 in both."""
    count = len(next(iter(train.columns.values())))
    named = columns[1] or "client"
    if named in train.columns and named not in test.columns:  # whose rows are tested does not matter
        filler = np.full(len(next(iter(test.columns.values()))), train.columns[named][0], dtype=object)
        test = test._replace(columns={**test.columns, named: filler})
    elif named not in train.columns:
        test = test._replace(columns={key: column for key, column in test.columns.items() if key != named})
    both = samples_of_table(joined_tables({"train": train, "test": test}), *columns)
    owner = None if both.owner is None else both.owner[:count]
    return both._replace(x=both.x[:count], y=both.y[:count], owner=owner), both._replace(
        x=both.x[count:], y=both.y[count:], owner=None, notes=()
    )


def _as_path(data: str | os.PathLike[str]) -> Path:
    text = os.fspath(data)
    if text in CATALOGUE:
        return Path(text)
    path = Path(text).expanduser()
    if not text or (not os.path.exists(path) and not path.suffix and len(path.parts) < 2):
        raise unknown("data set", text, (*CATALOGUE, "the path of your own data"))
    return path
