"""Data in Python: arrays, tensors, frames, torch data sets, Hugging Face data sets, batches of a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from dagc.data.dataset import IGNORED
from dagc.data.samples import LABELS, Column, Named, Samples, rows
from dagc.errors import InvalidInput, shown

ADVICE = (
    "give a tuple (x, y) of tensors, arrays or frames, a torch or Hugging Face data set, a data frame, the path of a "
    "file or folder, or sequences of tokens"
)


def read_object(data: Any, whose: str, named: Named) -> Samples:
    """What one object holds."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, TensorDataset):
        data = data.tensors
    elif (columns := _columns(data, whose)) is not None:
        return _from_columns(columns, whose, named, getattr(data, "features", None) or {})
    elif hasattr(data, "to_numpy"):
        raise InvalidInput(f"{whose} is a {type(data).__name__} without labels: {ADVICE}")
    elif hasattr(data, "__getitem__") and not isinstance(data, Sequence | Tensor | np.ndarray):
        data = _collected(data, whose)
        if isinstance(data, Mapping):
            return _from_columns({str(name): _array(value) for name, value in data.items()}, whose, named, {})
    parts = list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    nested = isinstance(data, list) and not all(isinstance(part, Tensor | np.ndarray) for part in parts)
    if nested or len(parts) not in (1, 2) or not all(map(_is_array, parts)):
        raise InvalidInput(f"{whose} is {shown(data, 60)}: {ADVICE}")
    return _pair(parts[0], parts[1], whose) if len(parts) == 2 else _tokens(parts[0], whose)


def is_batch(data: Any) -> bool:
    """Whether a mapping is columns by name, such as a tokenizer's batch, and not data by client."""
    return isinstance(data, Mapping) and not {*LABELS, "input_ids"}.isdisjoint(data) and _is_array(data)


def _is_array(part: Any) -> bool:
    """Whether this is one array, or a mapping of arrays."""
    if isinstance(part, Mapping):
        return bool(part) and all(not isinstance(value, Mapping) and _is_array(value) for value in part.values())
    plain = isinstance(part, list) and bool(part) and isinstance(part[0], str | int | float | list)
    return plain or isinstance(part, Tensor | np.ndarray) or hasattr(part, "to_numpy")


def _columns(data: Any, whose: str) -> dict[str, Column] | None:
    """The columns of a frame, a Hugging Face data set or a mapping of arrays; None if it has none."""
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        arrays = data.with_format("numpy")[:]
        return {str(name): np.asarray(arrays[name]) for name in data.column_names}
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        names = list(data.columns)
        if len(set(names)) != len(names):
            raise InvalidInput(f"{whose} names a column twice: {shown(names)}")
        return {str(name): _array(data[name]) for name in names}
    return {str(name): _array(value) for name, value in data.items()} if is_batch(data) else None


def _array(value: Any) -> Column:
    """A tensor, a series, a list or an array as an array; lists of different lengths become one of objects."""
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    lists = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    if (lists and len({*map(len, value)}) > 1) or (isinstance(value, list) and value and isinstance(value[0], str)):
        array = np.empty(len(value), dtype=object)
        array[:] = value
        return array
    array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
    return array if array.flags.writeable else array.copy()  # pandas protects its own; torch warns about such


def _from_columns(columns: dict[str, Column], whose: str, named: Named, types: Mapping[str, Any] | None) -> Samples:
    """A table if every column has one value per row, else named inputs of a model; without types, as they are."""
    if "" not in columns and all(column.ndim == 1 and not _nested(column) for column in columns.values()):
        return rows(columns, named, Samples(whose, {}, np.empty(0)))
    label = named.label or next((name for name in LABELS if name in columns), None)
    for name in (label, named.client):
        if name is not None and name not in columns:
            raise InvalidInput(f"{whose} has no column {name!r}; its columns are {', '.join(columns)}")
    padded = {name: _padded(whose, name, column, "attention_mask" in columns) for name, column in columns.items()}
    features = {name: column for name, column in padded.items() if name not in (label, named.client)}
    x = {name: _numbers(column, whose) for name, column in features.items() if column.ndim > 1 or name == ""}
    unused = ", ".join(name for name in features if name not in x)
    notes = (f"columns that are no tensors are not used: {unused}",) if unused else ()
    y = _to_predict(padded, label)
    pictures = False
    if types is not None and len(x) == 1 and "input_ids" not in x:
        (pixels,) = x.values()
        last = pixels.ndim == 4 and pixels.shape[1] not in (1, 3, 4) and pixels.shape[3] in (1, 3, 4)
        x, pictures = {"": pixels.transpose(0, 3, 1, 2) if last else pixels}, pixels.dtype == np.uint8
    classes = tuple(getattr((types or {}).get(label or ""), "names", None) or ())
    owner = None if named.client is None else columns[named.client]
    return Samples(whose, x, y, owner, classes=classes, exact=True, normalize=pictures, notes=notes)


def _nested(column: Column) -> bool:
    return column.dtype == object and column.size > 0 and isinstance(column[0], np.ndarray | list | Tensor)


def _padded(whose: str, name: str, column: Column, masked: bool) -> Column:
    """Sequences of different lengths in one array, if a mask says where each ends."""
    if not _nested(column):
        return column
    sequences = [np.asarray(row) for row in column]
    if any(row.ndim != 1 for row in sequences) or (not masked and len({len(row) for row in sequences}) > 1):
        raise InvalidInput(f"{whose}: the column {name!r} has values of different shapes: pad or resize them")
    shape = len(sequences), max(map(len, sequences))
    padded = np.full(shape, IGNORED if name in LABELS else 0, dtype=sequences[0].dtype)
    for place, row in enumerate(sequences):
        padded[place, : len(row)] = row
    return padded


def _to_predict(columns: Mapping[str, Column], label: str | None) -> Column:
    """The labels; for those that repeat the tokens, or without labels, at every place the next token."""
    tokens = columns.get("input_ids", np.empty(0))
    if label is not None:
        y = columns[label]
        if y.shape != tokens.shape or y.ndim != 2 or not np.all((y == tokens) | (y == IGNORED)):
            return y
    elif tokens.ndim != 2:
        raise InvalidInput(f"the columns {', '.join(columns)} have no labels: name the column to predict with label=")
    else:
        y = np.where(columns.get("attention_mask", np.ones_like(tokens)) == 0, IGNORED, tokens)
    return np.concatenate([y[:, 1:], np.full_like(y[:, :1], IGNORED)], axis=1)


def _pair(x: Any, y: Any, whose: str) -> Samples:
    """Samples and what to predict for them."""
    target, label = _array(y), "y of (x, y)"
    target = target[:, 0] if hasattr(y, "columns") and target.ndim == 2 and target.shape[1] == 1 else target
    if hasattr(x, "to_frame") and not _nested(_array(x)):
        x = x.to_frame()  # a series is a single column
    columns = _columns(x, whose)
    if columns is None:
        columns = {str(name): _array(part) for name, part in (x if isinstance(x, Mapping) else {"": x}).items()}
    return _from_columns({**columns, label: target}, whose, Named(label), None)


def _tokens(x: Any, whose: str) -> Samples:
    """Sequences in which each token is predicted from those before it."""
    tokens = _numbers(x, whose)
    if tokens.dtype != np.int64 or tokens.ndim != 2 or tokens.shape[1] < 2:
        kind = f"{tokens.dtype} of shape {tokens.shape}"
        raise InvalidInput(f"{whose} has only samples, {kind}: give (x, y), or sequences of two tokens or more")
    return Samples(whose, {"": tokens[:, :-1]}, tokens[:, 1:], exact=True, normalize=False)


def _collected(data: Any, whose: str) -> Any:
    """Everything in a torch data set."""
    if not hasattr(data, "__len__"):
        raise InvalidInput(f"{whose} is a {type(data).__name__} without a length: give a data set that has one")
    try:
        samples = [data[place] for place in range(len(data))]
        if not samples:
            raise InvalidInput(f"{whose} has no samples: leave it out")
        collated = default_collate(samples)
    except (RuntimeError, TypeError, KeyError, IndexError) as error:
        raise InvalidInput(f"{whose}: its samples cannot be combined: {str(error).splitlines()[0]}") from error
    if not isinstance(collated, list | tuple):
        return collated
    return tuple(list(part) if isinstance(part, tuple) else part for part in collated)  # texts are not tensors


def _numbers(part: Any, whose: str) -> Column:
    """Inputs of a model: float32, bytes, or integers for tokens."""
    array = _array(part)
    if array.dtype.kind == "c":
        raise InvalidInput(f"{whose}: samples are {array.dtype}; give real numbers")
    if array.dtype.kind not in "iufb":
        raise InvalidInput(f"{whose} holds {getattr(part, 'dtype', type(part))}: give numbers as samples")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what does not fit becomes infinity, which Dataset refuses by sample
            return array.astype(np.float32, copy=False)
    return array.astype(np.uint8 if array.dtype in (bool, np.uint8) else np.int64, copy=False)
