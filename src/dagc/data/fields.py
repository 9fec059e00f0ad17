"""Samples of several named tensors, such as a tokenizer's `input_ids` and `attention_mask`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dagc.errors import InvalidInput


class Fields:
    """Named tensors whose first axis is the sample. It is indexed and moved like one tensor.

    A model gets them by name, `model(**fields.tensors)`, or as one mapping if its `forward` has no such names.

    Example:
        >>> batch = Fields({"ids": torch.ones(4, 7, dtype=torch.int64), "mask": torch.ones(4, 7)})
        >>> len(batch), batch.shape, batch[:2].tensors["mask"].shape
        (4, (4, 7), torch.Size([2, 7]))
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)
        lengths = {name: len(tensor) if tensor.ndim else 0 for name, tensor in self.tensors.items()}
        if len(set(lengths.values())) != 1:
            raise InvalidInput(f"the inputs of a model have different numbers of samples: {lengths}")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "Fields":
        return Fields({name: tensor[rows] for name, tensor in self.tensors.items()})

    def index_select(self, axis: int, rows: Tensor) -> "Fields":
        """The samples at these positions."""
        return Fields({name: tensor.index_select(axis, rows) for name, tensor in self.tensors.items()})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first tensor."""
        return tuple(next(iter(self.tensors.values())).shape)

    def split(self, counts: list[int]) -> list["Fields"]:
        """Consecutive parts with these numbers of samples."""
        return [self[rows] for rows in torch.split(torch.arange(len(self)), counts)]

    def to(self, device: torch.device | str) -> "Fields":
        """The same on a device."""
        return Fields({name: tensor.to(device) for name, tensor in self.tensors.items()})


Inputs = Tensor | Fields
"""What a model takes for a batch."""


def tensors_of(x: Inputs) -> dict[str, Tensor]:
    """The tensors by name; a single one has no name."""
    return x.tensors if isinstance(x, Fields) else {"": x}
