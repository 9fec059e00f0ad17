"""Data in Python: arrays, tensors, frames, torch data sets, Hugging Face data sets, batches of a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dagc.data.assemble import Samples, numbered
from dagc.data.dataset import IGNORED
from dagc.data.fields import Fields, Inputs
from dagc.data.tables import LABELS, Table, samples_of_table
from dagc.errors import InvalidInput, shown

__all__ = ["columns_of", "is_batch", "read_object"]

ADVICE = (
    "give a tuple (x, y) of tensors, arrays or frames, a torch or Hugging Face data set, a data frame, the path of a "
    "file or folder, or sequences of tokens"
)


def read_object(
    data: Any, whose: str = "data", label: str | None = None, client: str | None = None, objective: str = "auto"
) -> Samples | Table:
    """What one object holds; columns become samples once those of all clients are known."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, TensorDataset):
        data = data.tensors
    elif (columns := columns_of(data, whose)) is not None:
        return _from_columns(columns, whose, label, client, getattr(data, "features", None))
    elif hasattr(data, "to_numpy"):
        raise InvalidInput(f"{whose} is a {type(data).__name__} without labels: {ADVICE}")
    elif hasattr(data, "__getitem__") and not isinstance(data, Sequence | Tensor | np.ndarray):
        data = _collected(data, whose)
        if isinstance(data, Mapping):
            return _from_columns({str(name): _array(value) for name, value in data.items()}, whose, label, client)
    parts = list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    if isinstance(data, list) and not all(isinstance(part, Tensor | np.ndarray) for part in parts):
        parts = []  # not (x, y), but nested lists of whatever
    if len(parts) not in (1, 2) or not all(_is_array(part) for part in parts):
        raise InvalidInput(f"{whose} is {shown(data, 60)}: {ADVICE}")
    return _pair(parts[0], parts[1], whose, objective) if len(parts) == 2 else _tokens(parts[0], whose)


def columns_of(data: Any, whose: str) -> dict[str, NDArray[Any]] | None:
    """The columns of a frame, a Hugging Face data set or a mapping of arrays; None if it has none."""
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        arrays = data.with_format("numpy")[:]
        return {str(name): np.asarray(arrays[name]) for name in data.column_names}
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        names = list(data.columns)
        if len(set(names)) != len(names):
            raise InvalidInput(f"{whose} names a column twice: {shown(names)}")
        return {str(name): np.asarray(data[name].to_numpy()) for name in names}
    return {str(name): _array(value) for name, value in data.items()} if is_batch(data) else None


def is_batch(data: Any) -> bool:
    """Whether a mapping is columns by name, such as a tokenizer's batch, and not data by client."""
    known = {*LABELS, "input_ids"}
    return isinstance(data, Mapping) and bool(known & set(data)) and all(_is_column(each) for each in data.values())


def _is_column(value: Any) -> bool:
    plain = isinstance(value, list) and bool(value) and isinstance(value[0], str | int | float | list)
    return plain or isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")


def _is_array(part: Any) -> bool:
    batch = isinstance(part, Mapping) and bool(part) and all(_is_column(each) for each in part.values())
    return batch or (not isinstance(part, str | Mapping | tuple) and _is_column(part))


def _array(value: Any) -> NDArray[Any]:
    """A tensor, a series, a list or an array as an array; lists of different lengths become one of objects."""
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    if isinstance(value, list) and value and isinstance(value[0], list | str):
        array = np.empty(len(value), dtype=object)
        array[:] = value
        same = isinstance(value[0], list) and len(set(map(len, value))) == 1
        return np.array(value) if same else array
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    return array if array.flags.writeable else array.copy()  # pandas protects its own; torch warns about such


def _from_columns(
    columns: dict[str, NDArray[Any]], whose: str, label: str | None, client: str | None, features: Any = None
) -> Samples | Table:
    """A table if every column has one value per row, else named inputs of a model."""
    if not columns or not len(next(iter(columns.values()))):
        raise InvalidInput(f"{whose} has no samples: leave it out")
    if all(column.ndim == 1 and not _nested(column) for column in columns.values()):
        return Table(whose, columns)
    inputs = {name: _padded(whose, name, column, columns) for name, column in columns.items()}
    label = label or next((name for name in LABELS if name in columns), None)
    for name in (label, client):
        if name is not None and name not in columns:
            raise InvalidInput(f"{whose} has no column {name!r}; its columns are {', '.join(columns)}")
    fields = {name: column for name, column in inputs.items() if column.ndim > 1 and name not in (label, client)}
    unused = [name for name in columns if name not in (*fields, label, client)]
    notes = (f"columns that are no tensors are not used: {', '.join(unused)}",) if unused else ()
    tensors = {name: _inputs(torch.from_numpy(column), whose) for name, column in fields.items()}
    y = _next_tokens(inputs) if label is None else inputs[label]
    if label is not None and y.ndim > 1 and "input_ids" in inputs and _repeats(y, inputs["input_ids"]):
        y = _shifted(y)
    x: Inputs = Fields(tensors)
    if len(tensors) == 1 and "input_ids" not in tensors:
        (x,) = tensors.values()
        if x.ndim == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
            x = x.permute(0, 3, 1, 2).contiguous()  # images with channels last
    names = tuple(getattr((features or {}).get(label), "names", None) or ())
    pictures = isinstance(x, Tensor) and x.dtype == torch.uint8
    samples = Samples(x, y, classes=names, exact=True, normalize=pictures, notes=notes)
    if client is None:
        return samples
    owner, clients = numbered(columns[client].tolist())
    return samples._replace(owner=owner, clients=clients)


def _nested(column: NDArray[Any]) -> bool:
    return column.dtype == object and len(column) > 0 and isinstance(column[0], np.ndarray | list | Tensor)


def _padded(whose: str, name: str, column: NDArray[Any], columns: Mapping[str, Any]) -> NDArray[Any]:
    """Sequences of different lengths in one array, if a mask says where each ends."""
    if not _nested(column):
        return column
    rows = [np.asarray(row) for row in column]
    if any(row.ndim != 1 for row in rows) or ("attention_mask" not in columns and len({len(row) for row in rows}) > 1):
        raise InvalidInput(f"{whose}: the column {name!r} has values of different shapes: pad or resize them")
    padded = np.full((len(rows), max(map(len, rows))), IGNORED if name in LABELS else 0, dtype=rows[0].dtype)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return padded


def _repeats(y: NDArray[Any], tokens: NDArray[Any]) -> bool:
    """Whether labels are the tokens themselves, as for a model that predicts each token from those before it."""
    return y.shape == tokens.shape and bool(np.all((y == tokens) | (y == IGNORED)))


def _shifted(y: NDArray[Any]) -> NDArray[Any]:
    """At every place the label of the next."""
    return np.concatenate([y[:, 1:], np.full_like(y[:, :1], IGNORED)], axis=1)


def _next_tokens(inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    tokens = inputs.get("input_ids")
    if tokens is None or tokens.ndim != 2:
        raise InvalidInput(f"the columns {', '.join(inputs)} have no labels: name the column to predict with label=")
    mask = inputs.get("attention_mask", np.ones_like(tokens))
    return _shifted(np.where(mask == 0, IGNORED, tokens))


def _pair(x: Any, y: Any, whose: str, objective: str) -> Samples:
    """Samples and what to predict for them."""
    target = _array(y)
    target = target[:, 0] if hasattr(y, "columns") and target.ndim == 2 and target.shape[1] == 1 else target
    if hasattr(x, "to_frame") and not _nested(_array(x)):
        x = x.to_frame()  # a series is a single column
    if (columns := columns_of(x, whose)) is not None and not is_batch(x):
        if len(target) != len(next(iter(columns.values()), ())):
            raise InvalidInput(f"{whose} has {len(target)} labels for another number of rows: give equally many")
        return samples_of_table(Table(whose, {**columns, "y of (x, y)": target}), "y of (x, y)", objective=objective)
    inputs: Inputs
    if isinstance(x, Mapping):
        inputs = Fields({str(name): _inputs(torch.as_tensor(_array(part)), whose) for name, part in x.items()})
    else:
        inputs = _inputs(_tensor(x, whose), whose)
    if not inputs.shape or not target.ndim or len(inputs) != len(target):
        shapes = f"x of shape {tuple(inputs.shape)} and y of shape {target.shape}"
        raise InvalidInput(f"{whose} has {shapes}: give equally many")
    if not len(target):
        raise InvalidInput(f"{whose} has no samples: leave it out")
    return Samples(inputs, target, exact=True, normalize=False)


def _tokens(x: Any, whose: str) -> Samples:
    """Sequences in which each token is predicted from those before it."""
    tokens = _inputs(_tensor(x, whose), whose)
    if tokens.dtype != torch.int64 or tokens.ndim != 2 or tokens.shape[1] < 2:
        kind = f"{tokens.dtype} of shape {tuple(tokens.shape)}"
        raise InvalidInput(f"{whose} has only samples, {kind}: give (x, y), or sequences of two tokens or more")
    return Samples(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous().numpy(), exact=True, normalize=False)


def _collected(data: Any, whose: str) -> Any:
    """Everything in a torch data set."""
    try:
        count = len(data)
    except TypeError:
        raise InvalidInput(
            f"{whose} is a {type(data).__name__} without a length: give a data set that has one"
        ) from None
    if not count:
        raise InvalidInput(f"{whose} has no samples: leave it out")
    try:
        collated = default_collate([data[place] for place in range(count)])
    except (RuntimeError, TypeError, KeyError, IndexError) as error:
        raise InvalidInput(f"{whose}: its samples cannot be combined: {str(error).splitlines()[0]}") from error
    if not isinstance(collated, list | tuple):
        return collated
    return tuple(list(part) if isinstance(part, tuple) else part for part in collated)  # texts are not tensors


def _tensor(part: Any, whose: str) -> Tensor:
    try:
        return torch.as_tensor(part if isinstance(part, Tensor) else _array(part)).detach().cpu()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{whose} holds {getattr(part, 'dtype', type(part))}: give numbers as samples") from error


def _inputs(x: Tensor, whose: str) -> Tensor:
    if x.is_floating_point():
        return x.to(torch.float32)
    if x.is_complex():
        raise InvalidInput(f"{whose}: samples are {x.dtype}; give real numbers")
    return x.to(torch.uint8) if x.dtype in (torch.bool, torch.uint8) else x.to(torch.int64)
