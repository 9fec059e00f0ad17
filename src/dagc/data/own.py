"""Your own data: an `.npz` file, a CSV file, texts, or a folder with one folder per client."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.archives import UNREADABLE, refuse_bomb
from dagc.data.dataset import Dataset, hold_out, statistics
from dagc.data.images import SUFFIXES, read_image
from dagc.data.mel import log_mel, read_wav
from dagc.data.table import read_table
from dagc.data.texts import read_texts
from dagc.errors import DataError, InvalidInput

__all__ = ["read_csv", "read_npz", "read_path"]


def read_path(path: Path, objective: str = "auto") -> Dataset:
    """Load whatever is at `path`."""
    if path.is_file() and path.suffix.lower() == ".txt":
        return read_texts(path, [path])
    inside = sorted(path.iterdir()) if path.is_dir() else []
    if inside and all(each.suffix.lower() == ".txt" for each in inside):
        return read_texts(path, inside)
    if path.is_dir():
        return _read_clients(path)
    if not path.exists():
        raise InvalidInput(f"{path} does not exist; give a data set's name (dagc data list) or a file of your own")
    if path.suffix.lower() == ".npz":
        return read_npz(path, objective)
    if path.suffix.lower() == ".csv":
        return read_csv(path, objective=objective)
    raise InvalidInput(
        f"{path} is neither .npz nor .csv nor .txt nor a folder; docs/how-to/own-data.md shows how to convert data"
    )


def read_npz(path: Path, objective: str = "auto") -> Dataset:
    """Load an `.npz` file with `x`, `y` and, optionally, `client`, `x_test`, `y_test`.

    Labels with fractions are numbers to predict, and so are all labels if the objective is `regression`.
    """
    arrays = _open_npz(path)
    x, y = _samples(path, "x", arrays["x"]), arrays["y"]
    client = arrays.get("client")
    if "x_test" in arrays or "y_test" in arrays:
        if not {"x_test", "y_test"} <= arrays.keys():
            raise DataError(f"{path} has only one of x_test and y_test; give both or none")
        test = _samples(path, "x_test", arrays["x_test"]), arrays["y_test"]
        return _assemble(path, x, y, client, test, objective)
    return _assemble(path, x, y, client, objective=objective)


def read_csv(
    path: Path,
    label: str = "label",
    client: str = "client",
    objective: str = "auto",
    names: list[str] | None = None,
) -> Dataset:
    """Load a CSV file with a first line of column names.

    Args:
        path: The file.
        label: The column to predict.
        client: The column with the owner of each row; optional.
        objective: `regression` if the label is a number to predict. With `auto`, it is one if it has fractions.
        names: The columns, if the file has no such line.

    Every other column is a feature: numbers as they are (missing ones, empty or `?`, become the column's mean), text
    as one column of 0 and 1 per value.
    """
    table = read_table(path, label, client, names)
    labels = _as_numbers(table.labels)
    if objective == "regression" and labels is None:
        raise DataError(f"{path}: the column {label!r} is text, not numbers: leave regression out to predict a class")
    fractions = labels is not None and not np.array_equal(labels, np.floor(labels))
    regression = objective == "regression" or (objective == "auto" and fractions)
    chosen = labels if regression and labels is not None else table.labels
    data = _assemble(path, table.features, chosen, table.clients, objective=objective)
    return replace(data, notes=(*table.notes, *data.notes))


def _as_numbers(texts: NDArray[np.str_]) -> NDArray[np.float64] | None:
    """The texts as numbers; None unless all of them are numbers."""
    try:
        numbers = texts.astype(np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _open_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            refuse_bomb(path, sum(member.file_size for member in kept.zip.infolist()))
            arrays = {name: kept[name] for name in kept.files}
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as .npz of plain arrays ({error})") from None
    lacking = [name for name in ("x", "y") if name not in arrays]
    if lacking:
        raise DataError(f"{path} has no array {lacking[0]!r}, only {', '.join(arrays) or 'nothing'}; save x and y")
    return arrays


def _samples(path: Path, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Samples as uint8 or float32."""
    if x.dtype == np.uint8:
        return x
    if x.dtype == bool:
        return x.astype(np.uint8)
    if not (np.issubdtype(x.dtype, np.integer) or np.issubdtype(x.dtype, np.floating)):
        raise DataError(f"{path}: {name} is of type {x.dtype}; it must be numbers")
    with np.errstate(over="ignore"):  # what does not fit becomes infinity, which Dataset refuses by sample
        return x.astype(np.float32)


def _numbered(path: Path, name: str, values: NDArray[Any], known: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels or clients (integers or text) as 0, 1, …, and their names; there must be `known` of them."""
    if values.shape != (known,):
        raise DataError(f"{path}: {name} has shape {values.shape} for {known} samples; give one value per sample")
    if np.issubdtype(values.dtype, np.floating):
        if not (np.isfinite(values).all() and np.array_equal(values, np.floor(values))):
            raise DataError(f"{path}: {name} has fractions, NaN or infinity; classes are whole numbers or text")
        values = values.astype(np.int64)
    if not (np.issubdtype(values.dtype, np.integer) or values.dtype.kind in "Ub"):
        raise DataError(f"{path}: {name} is of type {values.dtype}; whole numbers or text are needed")
    names, numbers = np.unique(values, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(value) for value in names)


def _assemble(
    path: Path,
    x: NDArray[Any],
    labels: NDArray[Any],
    clients: NDArray[Any] | None,
    test: tuple[NDArray[Any], NDArray[Any]] | None = None,
    objective: str = "auto",
) -> Dataset:
    """Number labels and clients, hold out a test set if there is none, normalise by the training part."""
    if x.ndim < 2 or len(x) < 2:
        raise DataError(f"{path}: x has shape {x.shape}; samples × features are needed, two samples or more")
    count = len(x)
    both = np.concatenate([labels, test[1]]) if test is not None else labels
    known = count + (len(test[0]) if test is not None else 0)
    classes: tuple[str, ...] = ()
    targets: NDArray[Any]
    regression = _is_regression(path, both, known, objective)
    if regression:
        targets, groups = both.astype(np.float32), np.zeros(known, dtype=np.int64)
    else:
        targets, classes = _numbered(path, "y", both, known)
        groups = targets
        if len(classes) < 2:
            raise DataError(f"{path}: all labels are {classes[0]}; two classes or more are needed")
    y = torch.from_numpy(targets)
    owner, names = _numbered(path, "client", clients, count) if clients is not None else (None, ())
    everything = torch.from_numpy(x)
    if test is not None:
        train = torch.arange(count)
        test_x, test_y = torch.from_numpy(test[0]), y[count:]
    else:
        kept, held = hold_out(owner if owner is not None else groups)
        train = torch.from_numpy(kept)
        test_x, test_y = everything[torch.from_numpy(held)], y[torch.from_numpy(held)]
    train_x, train_y = everything[train] if test is None else everything, y[train]
    notes: tuple[str, ...] = ()
    if regression:
        middle, unit = (float(part) for part in statistics(train_y[:, None]))
        train_y, test_y = (train_y - middle) / unit, (test_y - middle) / unit
        notes = (
            f"numbers are predicted (regression), in units of their deviation {unit:g} from the mean {middle:g}: "
            "squared errors need small steps, such as learning rate 0.003",
        )
    mean, std = statistics(train_x)
    own = None if owner is None else torch.from_numpy(owner)[train]
    return Dataset(str(path), train_x, train_y, test_x, test_y, classes, own, names, mean, std, notes=notes)


def _is_regression(path: Path, y: NDArray[Any], known: int, objective: str) -> bool:
    """Whether the labels are numbers to predict."""
    if objective == "classification" or not (y.dtype.kind in "iuf" and y.shape == (known,)):
        if objective == "regression":
            raise DataError(f"{path}: y is {y.dtype} of shape {y.shape}; regression needs one number per sample")
        return False
    if not np.isfinite(y).all():
        raise DataError(f"{path}: y has NaN or infinity; clean the data first")
    return objective == "regression" or not np.array_equal(y, np.floor(y))


def _read_clients(folder: Path) -> Dataset:
    """A folder per client: in it folders per label with images or WAV files, or `.npz` files with x and y."""
    clients = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
    samples: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    owners: list[str] = []
    for client in clients:
        for x, y in _client_parts(client):
            samples.append(x)
            labels.append(y.astype(str))
            owners += [client.name] * len(x)
    shapes = {x.shape[1:] for x in samples}
    if len(shapes) != 1:
        found = (
            f"samples of shapes {sorted(shapes)}"
            if shapes
            else "no client/label/image, client/label/wav or client/*.npz"
        )
        raise DataError(f"{folder} holds {found}; all clients must have samples of one shape")
    return _assemble(folder, np.concatenate(samples), np.concatenate(labels), np.array(owners))


def _client_parts(client: Path) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    parts: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for path in sorted(client.iterdir()):
        if path.suffix.lower() == ".npz":
            arrays = _open_npz(path)
            x, y = _samples(path, "x", arrays["x"]), arrays["y"]
            if not x.ndim or y.shape != x.shape[:1]:
                raise DataError(f"{path}: y has shape {y.shape} for x of {x.shape}; give one value per sample")
            numbers, names = _numbered(path, "y", y, len(x))
            parts.append((x, np.array(names)[numbers]))
        elif path.is_dir():
            read = [_read_file(file) for file in sorted(path.iterdir()) if not file.name.startswith(".")]
            if read:
                parts.append((np.stack(read), np.full(len(read), path.name)))
    return parts


def _read_file(path: Path) -> NDArray[Any]:
    if path.suffix.lower() == ".wav":
        return log_mel(*read_wav(path))
    if path.suffix.lower() in SUFFIXES:
        return read_image(path)
    raise DataError(f"{path} is neither a WAV file nor an image ({', '.join(SUFFIXES)})")
