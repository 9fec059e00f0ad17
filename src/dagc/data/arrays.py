"""Data in Python: arrays, tensors, frames, torch data sets, Hugging Face data sets, batches of a tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from dagc.data.dataset import IGNORED
from dagc.data.samples import LABELS, USUAL, Column, Named, Samples, rows
from dagc.errors import InvalidInput, shown

__all__ = ["is_batch", "read_object"]

ADVICE = (
    "give a tuple (x, y) of tensors, arrays or frames, a torch or Hugging Face data set, a data frame, the path of a "
    "file or folder, or sequences of tokens"
)


def read_object(data: Any, whose: str = "data", named: Named = USUAL) -> Samples:
    """What one object holds."""
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
    if isinstance(data, list) and not all(isinstance(part, Tensor | np.ndarray) for part in parts):
        parts = []  # not (x, y), but nested lists of whatever
    if len(parts) not in (1, 2) or not all(_is_array(part) for part in parts):
        raise InvalidInput(f"{whose} is {shown(data, 60)}: {ADVICE}")
    return _pair(parts[0], parts[1], whose) if len(parts) == 2 else _tokens(parts[0], whose)


def is_batch(data: Any) -> bool:
    """Whether a mapping is columns by name, such as a tokenizer's batch, and not data by client."""
    return _are_columns(data) and not {*LABELS, "input_ids"}.isdisjoint(data)


def _are_columns(data: Any) -> bool:
    return isinstance(data, Mapping) and bool(data) and all(map(_is_column, data.values()))


def _is_column(value: Any) -> bool:
    plain = isinstance(value, list) and bool(value) and isinstance(value[0], str | int | float | list)
    return plain or isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")


def _is_array(part: Any) -> bool:
    return _are_columns(part) or (not isinstance(part, str | Mapping | tuple) and _is_column(part))


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
    if isinstance(value, list) and value and isinstance(value[0], list | str):
        if isinstance(value[0], list) and len(set(map(len, value))) == 1:
            return np.array(value)
        array = np.empty(len(value), dtype=object)
        array[:] = value
        return array
    return np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)


def _from_columns(columns: dict[str, Column], whose: str, named: Named, features: Mapping[str, Any]) -> Samples:
    """A table if every column has one value per row, else named inputs of a model."""
    if not columns or not len(next(iter(columns.values()))):
        raise InvalidInput(f"{whose} has no samples: leave it out")
    empty = Samples(whose, {}, np.empty(0))
    if all(column.ndim == 1 and not _nested(column) for column in columns.values()):
        return rows(columns, empty, named)
    label = named.label or next((name for name in LABELS if name in columns), None)
    for name in (label, named.client):
        if name is not None and name not in columns:
            raise InvalidInput(f"{whose} has no column {name!r}; its columns are {', '.join(columns)}")
    padded = {name: _padded(whose, name, column, "attention_mask" in columns) for name, column in columns.items()}
    tensors = {name: each for name, each in padded.items() if each.ndim > 1 and name not in (label, named.client)}
    unused = [name for name in columns if name not in (*tensors, label, named.client)]
    notes = (f"columns that are no tensors are not used: {', '.join(unused)}",) if unused else ()
    x = {name: _numbers(column, whose) for name, column in tensors.items()}
    y = _next_tokens(padded) if label is None else padded[label]
    if label is not None and y.ndim > 1 and "input_ids" in padded and _repeats(y, padded["input_ids"]):
        y = _shifted(y)
    if len(x) == 1 and "input_ids" not in x:
        (pixels,) = x.values()
        last = pixels.ndim == 4 and pixels.shape[1] not in (1, 3, 4) and pixels.shape[3] in (1, 3, 4)
        x = {"": pixels.transpose(0, 3, 1, 2) if last else pixels}  # images have channels first
    pictures = "" in x and x[""].dtype == np.uint8
    names = tuple(getattr(features.get(label), "names", None) or ())
    owner = None if named.client is None else columns[named.client]
    return replace(empty, x=x, y=y, owner=owner, classes=names, exact=True, normalize=pictures, notes=notes)


def _nested(column: Column) -> bool:
    return column.dtype == object and len(column) > 0 and isinstance(column[0], np.ndarray | list | Tensor)


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


def _repeats(y: Column, tokens: Column) -> bool:
    """Whether labels are the tokens themselves, as for a model that predicts each token from those before it."""
    return y.shape == tokens.shape and bool(np.all((y == tokens) | (y == IGNORED)))


def _shifted(y: Column) -> Column:
    """At every place the label of the next."""
    return np.concatenate([y[:, 1:], np.full_like(y[:, :1], IGNORED)], axis=1)


def _next_tokens(inputs: Mapping[str, Column]) -> Column:
    tokens = inputs.get("input_ids")
    if tokens is None or tokens.ndim != 2:
        raise InvalidInput(f"the columns {', '.join(inputs)} have no labels: name the column to predict with label=")
    return _shifted(np.where(inputs.get("attention_mask", np.ones_like(tokens)) == 0, IGNORED, tokens))


def _pair(x: Any, y: Any, whose: str) -> Samples:
    """Samples and what to predict for them."""
    target = _array(y)
    target = target[:, 0] if hasattr(y, "columns") and target.ndim == 2 and target.shape[1] == 1 else target
    if not isinstance(x, Mapping) and (columns := _columns(x, whose)) is not None:
        label = "y of (x, y)"
        return rows({**columns, label: target}, Samples(whose, {}, np.empty(0)), Named(label))
    inputs = {str(name): _numbers(part, whose) for name, part in (x if isinstance(x, Mapping) else {"": x}).items()}
    shape = next(iter(inputs.values())).shape
    if not shape or not target.ndim or shape[0] != len(target):
        raise InvalidInput(f"{whose} has x of shape {shape} and y of shape {target.shape}: give equally many")
    if not len(target):
        raise InvalidInput(f"{whose} has no samples: leave it out")
    return Samples(whose, inputs, target, exact=True, normalize=False)


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
    if not len(data):
        raise InvalidInput(f"{whose} has no samples: leave it out")
    try:
        collated = default_collate([data[place] for place in range(len(data))])
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
