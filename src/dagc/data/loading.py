"""The one way in: a data set with a name, or whatever a person has, becomes a `Dataset`."""

import gzip
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

from dagc.data.arrays import is_batch, read_object
from dagc.data.dataset import Dataset
from dagc.data.files import TEST, Parts, read_path
from dagc.data.samples import Named, Samples, assemble, joined
from dagc.errors import DataError, InvalidInput, unknown


def _load_digits(root: Path) -> Dataset:
    """The 1,797 handwritten digits of scikit-learn, 8 × 8 pixels of 0 … 16; a fifth of each is held out for tests."""
    package = find_spec("sklearn")  # importing it would take a second
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return assemble("digits", Samples("digits", {"": rows[:, :-1].reshape(-1, 1, 8, 8)}, rows[:, -1]))


CATALOGUE: dict[str, Callable[[Path], Dataset]] = {"digits": _load_digits}
"""How each is loaded from the data folder; plugins add theirs. One that is not there raises `MissingData`."""


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: the one given, or `DAGC_DATA`, or `dagc/data` in the user's cache. It need not exist yet.

    Example:
        >>> data_folder("some/place").name
        'place'
    """
    chosen = data_dir or os.environ.get("DAGC_DATA")
    if chosen:
        return Path(chosen).expanduser()
    return user_cache_path("dagc", appauthor=False, opinion=False) / "data"


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
    is_path = isinstance(data, str | os.PathLike)
    if isinstance(data, Dataset) or (is_path and os.fspath(data) in CATALOGUE):
        if test is not None:
            raise InvalidInput(f"{name or 'data'} is a data set with test samples of its own: leave test out")
        dataset: Dataset = _reading(data, CATALOGUE[os.fspath(data)], data_folder(data_dir)) if is_path else data
    else:
        train, held_out = _read(data, "data", Named(label, client))
        if test is not None:
            held_out = _read(test, "test", Named(label, client, optional=True))[0]
        dataset = assemble(name or (str(_as_path(data)) if is_path else "own"), train, held_out, objective)
    if objective not in ("auto", dataset.objective):
        raise InvalidInput(f"{dataset.name} is for {dataset.objective}, not for {objective}: leave the objective out")
    return replace(dataset, augment=True) if augment else dataset


def _reading(source: Any, read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except OSError as error:
        raise DataError(f"{source} cannot be read ({error})") from None


def _read(data: Any, whose: str, named: Named) -> Parts:
    """One piece, or the pieces of all clients, or what is called train and test."""
    if isinstance(data, str | os.PathLike):
        return _reading(data, read_path, _as_path(data), named)  # type: ignore[no-any-return]
    by_name = isinstance(data, Mapping) and not is_batch(data)
    if not by_name and not isinstance(data, list):
        return read_object(data, whose, named), None
    pieces = dict(data) if by_name else dict(enumerate(data))
    if not pieces:
        raise InvalidInput(f"{whose} has no clients: give a piece of data for each")
    test = next((key for key in TEST if key in pieces), None)
    if test is not None and "train" in pieces and set(pieces) <= {"train", *TEST, "unsupervised"}:
        held_out = _read(pieces[test], "test", named._replace(optional=True))[0]
        return _read(pieces["train"], "train", named)[0], held_out
    parts = {}
    for key, piece in pieces.items():
        if isinstance(piece, Mapping) and not is_batch(piece):
            words = "give one piece of data, such as a tuple (x, y), or rows as a data frame"
            raise InvalidInput(f"client {key!r} has a mapping: {words}")
        whom = f"client {key!r}"
        parts[key] = read_object(piece, whom, named) if isinstance(piece, list) else _read(piece, whom, named)[0]
    return joined([*parts.values()], [*parts]), None


def _as_path(data: str | os.PathLike[str]) -> Path:
    text, path = os.fspath(data), Path(data).expanduser()
    is_name = text not in CATALOGUE and not os.path.exists(path) and not path.suffix and len(path.parts) < 2
    if not text or is_name:
        raise unknown("data set", text, (*CATALOGUE, "the path of your own data"))
    return path
