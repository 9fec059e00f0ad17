"""Data passed in Python: tensors, arrays or torch data sets, as a whole or by client."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from dagc.data.dataset import Dataset, hold_out
from dagc.errors import InvalidInput, shown

__all__ = ["as_dataset"]


def as_dataset(data: Any, test: Any = None, numbers: bool = False, name: str = "own") -> Dataset:
    """Make a data set from Python objects.

    One piece of data is a tuple `(x, y)` of tensors or arrays, a torch data set of such pairs, or sequences of tokens
    alone, in which each token is predicted from those before it. A torch data set is read once, into memory. Values
    are not changed; nothing is normalised.

    Args:
        data: One piece, or one for each client: a mapping from names to pieces, or a list of pieces. A `Dataset` is
            returned unchanged.
        test: The same for testing. If not given, a fifth is held out, of each client or else of each label.
        numbers: Whether integers in `y` are numbers to predict (regression), not labels.
        name: The name of the data set.

    Raises:
        InvalidInput: The data cannot be used; the message names the client.

    Example:
        >>> ann, bob = (torch.randn(10, 3), torch.randn(10)), (torch.randn(5, 3), torch.randn(5))
        >>> data = as_dataset({"ann": ann, "bob": bob})
        >>> data.objective, data.clients, len(data), len(data.test_y)
        ('regression', ('ann', 'bob'), 12, 3)
    """
    if isinstance(data, Dataset):
        if test is not None:
            raise InvalidInput("data is a dagc.data.Dataset, which holds its own test samples: leave test out")
        return data
    pieces = _pieces(data)
    names = list(pieces) if isinstance(data, Mapping | list) else []
    read = [_read(piece, numbers, f"client {who!r}" if names else "data") for who, piece in pieces.items()]
    x, y = _joined(read, [*pieces])
    owner = torch.repeat_interleave(torch.arange(len(read)), torch.tensor([len(x) for x, _ in read]))
    notes: tuple[str, ...] = ()
    if test is None:
        labels = y if y.ndim == 1 and y.dtype == torch.int64 else torch.zeros(len(y), dtype=torch.int64)
        kept, held = (torch.from_numpy(part) for part in hold_out((owner if names else labels).numpy()))
        test_x, test_y = x[held], y[held]
        x, y, owner = x[kept], y[kept], owner[kept]
        group = "client" if names else "label" if labels is y else "sample"
        notes = (f"a fifth of each {group} is the test set",) if group != "sample" else ("a fifth is the test set",)
    else:
        others = _pieces(test)
        test_x, test_y = _joined([_read(each, numbers, "test") for each in others.values()], [*others])
    classes = 0 if y.dtype == torch.float32 else 1 + max(int(part.max()) for part in _counted(x, y, test_x, test_y))
    client = owner if names else None
    named = tuple(map(str, names))
    return Dataset(name, x, y, test_x, test_y, tuple(map(str, range(classes))), client, named, notes=notes)


def _pieces(data: Any) -> dict[Any, Any]:
    """The pieces by client; a single piece has no name."""
    if isinstance(data, Mapping):
        found = dict(data)
    elif isinstance(data, list):
        found = {str(place): piece for place, piece in enumerate(data)}
    else:
        return {"": data}
    if not found:
        raise InvalidInput("data has no clients: give a piece of data for each")
    return found


def _read(piece: Any, numbers: bool, whose: str) -> tuple[Tensor, Tensor]:
    """The samples of one piece, and what is to be predicted for them."""
    if isinstance(piece, TensorDataset):
        piece = piece.tensors
    elif hasattr(piece, "__getitem__") and not isinstance(piece, Sequence | Tensor | np.ndarray):
        piece = _collected(piece, whose)
    parts = list(piece) if isinstance(piece, Sequence) and not isinstance(piece, str) else [piece]
    if len(parts) not in (1, 2) or not all(isinstance(part, Tensor | np.ndarray) for part in parts):
        raise InvalidInput(
            f"{whose} is {shown(piece, 60)}: give a tuple (x, y) of tensors or arrays, a torch data set of pairs, or "
            "sequences of tokens"
        )
    x, *rest = (_tensor(part, whose) for part in parts)
    x = _samples(x, whose)
    if not rest:
        if x.dtype != torch.int64 or x.ndim != 2 or x.shape[1] < 2:
            raise InvalidInput(
                f"{whose} has only samples, {x.dtype} of shape {tuple(x.shape)}: give (x, y), or sequences of two "
                "tokens or more"
            )
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()
    (y,) = rest
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise InvalidInput(
            f"{whose} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: give equally many"
        )
    if not len(x):
        raise InvalidInput(f"{whose} has no samples: leave it out")
    return x, y.to(torch.float32 if numbers or y.is_floating_point() else torch.int64)


def _collected(piece: Any, whose: str) -> Any:
    """Everything in a torch data set."""
    try:
        count = len(piece)
    except TypeError:
        raise InvalidInput(
            f"{whose} is a {type(piece).__name__} without a length: give a data set that has one"
        ) from None
    if not count:
        raise InvalidInput(f"{whose} has no samples: leave it out")
    try:
        return default_collate([piece[place] for place in range(count)])
    except (RuntimeError, TypeError, KeyError, IndexError) as error:
        raise InvalidInput(f"{whose}: its samples cannot be combined: {str(error).splitlines()[0]}") from error


def _tensor(part: Any, whose: str) -> Tensor:
    try:
        return torch.as_tensor(part).detach().cpu()
    except TypeError as error:
        raise InvalidInput(f"{whose} holds {part.dtype}: give numbers; labels are 0, 1, 2, …") from error


def _samples(x: Tensor, whose: str) -> Tensor:
    if x.is_floating_point():
        return x.to(torch.float32)
    if x.is_complex():
        raise InvalidInput(f"{whose}: samples are {x.dtype}; give real numbers")
    return x.to(torch.uint8) if x.dtype in (torch.bool, torch.uint8) else x.to(torch.int64)


def _joined(read: list[tuple[Tensor, Tensor]], names: list[Any]) -> tuple[Tensor, Tensor]:
    """All clients' samples, concatenated."""
    first = read[0]
    for who, (x, y) in zip(names, read, strict=True):
        for one, other in ((x, first[0]), (y, first[1])):
            if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
                raise InvalidInput(
                    f"client {who!r} has {one.dtype} of shape {tuple(one.shape[1:])} per sample, but client "
                    f"{names[0]!r} has {other.dtype} of shape {tuple(other.shape[1:])}: all must be the same"
                )
    return torch.cat([x for x, _ in read]), torch.cat([y for _, y in read])


def _counted(*parts: Tensor) -> list[Tensor]:
    """What labels and tokens are counted by."""
    x, y, test_x, test_y = parts
    return [y, test_y, *([x, test_x] if x.dtype == torch.int64 and y.ndim > 1 else [])]
