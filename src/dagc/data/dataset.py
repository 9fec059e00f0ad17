"""A data set in memory: plain tensors, or several named ones, normalized batch by batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagc.errors import InvalidInput

Objective = Literal["classification", "regression", "next-token"]
"""What is learned: a label, numbers, or the next token at every place of a sequence."""
IGNORED = -100  # a next token that does not count, such as padding; torch's losses ignore it


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


Inputs = Tensor | Fields  # what a model takes for a batch


def tensors_of(x: Inputs) -> dict[str, Tensor]:
    """The tensors by name; a single one has no name."""
    return x.tensors if isinstance(x, Fields) else {"": x}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples with their labels, or whatever else is to be predicted.

    Images are kept as bytes, as on disk: a quarter of the memory of float32, which `normalize` makes of each batch.

    Attributes:
        train_x: Training samples, uint8 or float32, or int64 for tokens; or several named tensors.
        train_y: What to predict: labels (int64, 0 … classes − 1), numbers (float32, one or several per sample), or the
            next tokens (int64, of the shape of the samples; -100 is ignored).
        classes: The names of the labels or tokens; none for numbers.
        client: The owner of each training sample (int64), if the data has natural clients.
        clients: The names of the owners.
        mean: Subtracted by `normalize`, in the units of `train_x`.
        std: Divided by in `normalize`.
        augment: Whether training batches are randomly cropped and flipped.
        notes: What a reader should know: samples skipped, classes with fewer samples than asked for.

    Example:
        >>> data = Dataset("toy", torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.zeros(1, 2),
        ...                torch.tensor([1]), ("no", "yes"))
        >>> data.shape, len(data)
        ((2,), 4)
    """

    name: str
    train_x: Inputs
    train_y: Tensor
    test_x: Inputs
    test_y: Tensor
    classes: tuple[str, ...]
    client: Tensor | None = None
    clients: tuple[str, ...] = ()
    mean: Tensor | None = None
    std: Tensor | None = None
    augment: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise InvalidInput(f"{self.name}: {problem}")

    def _problems(self) -> Iterator[str]:
        """What is wrong; what follows may rely on what was right so far."""
        for part, x, y in (("training", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            tensors = tensors_of(x).values()
            for dtype in {each.dtype for each in tensors} - {torch.uint8, torch.float32, torch.int64}:
                yield f"{part} samples are {dtype}; use uint8 or float32, or int64 for tokens"
            if y.dtype not in (torch.int64, torch.float32):
                yield f"{part} labels are {y.dtype}; use int64, or float32 for numbers"
            shapes = f"{part} samples have shape {tuple(x.shape)} and labels {tuple(y.shape)}"
            if len(x.shape) < 2 or y.ndim < 1 or len(x) != len(y):
                yield f"{shapes}; the first axis must be the sample in both, with equal lengths"
            if len(x) == 0:
                yield f"there are no {part} samples"
            if y.ndim > 1 and y.dtype == torch.int64 and not any(y.shape == each.shape for each in tensors):
                yield f"{shapes}; give one label per sample, or a next token for every token"
            for what, values in (*(("sample", each) for each in tensors), ("label of sample", y)):
                if values.dtype == torch.float32 and not bool(torch.isfinite(values).all()):
                    row = int((~torch.isfinite(values.reshape(len(values), -1))).any(1).nonzero()[0])
                    yield f"{part} {what} {row} holds NaN or infinity; clean the data first"
            known = y[y != IGNORED] if y.ndim > 1 else y
            if y.dtype == torch.int64 and known.numel() and not 0 <= known.min() <= known.max() < len(self.classes):
                yield f"{part} labels run from {known.min()} to {known.max()} for {len(self.classes)} classes"
        train, test = (
            {key: tuple(part.shape[1:]) for key, part in tensors_of(x).items()} for x in (self.train_x, self.test_x)
        )
        if train != test:
            yield f"training and test samples have different shapes, {train.get('', train)} and {test.get('', test)}"
        if self.augment and len(self.shape) != 3:
            yield f"only images can be cropped and flipped, not samples of shape {self.shape}"
        if self.client is not None and self.client.shape != (len(self),):
            yield f"{len(self.client)} client entries for {len(self)} training samples; give one per sample"

    def __len__(self) -> int:
        return len(self.train_y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.train_x.shape[1:])

    @property
    def objective(self) -> Objective:
        """What is learned, which follows from the type and shape of the labels."""
        if self.train_y.dtype == torch.float32:
            return "regression"
        return "classification" if self.train_y.ndim == 1 else "next-token"

    @property
    def outputs(self) -> int:
        """How many numbers a model has to return for a sample, or for each of its tokens."""
        return len(self.classes) or int(np.prod(self.train_y.shape[1:]))

    @property
    def labels(self) -> Tensor:
        """The label of each training sample; all 0 if samples have none."""
        return self.train_y if self.objective == "classification" else torch.zeros(len(self), dtype=torch.int64)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of `labels`; none if samples have no label."""
        return self.classes if self.objective == "classification" else ()

    def normalize(self, x: Inputs) -> Inputs:
        """Samples as the model takes them: float32, centered and scaled; tokens and named tensors are not changed."""
        if isinstance(x, Fields) or x.dtype == torch.int64:
            return x
        if self.mean is None or self.std is None:
            return x.to(torch.float32)
        return (x.to(torch.float32, copy=True)).sub_(self.mean).div_(self.std)

    def test_batches(self, size: int = 1000) -> Iterator[tuple[Inputs, Tensor]]:
        """The whole test set in order, normalized, `size` samples at a time."""
        if size < 1:
            raise InvalidInput(f"size is {size}; a test batch holds at least one sample")
        for start in range(0, len(self.test_y), size):
            yield self.normalize(self.test_x[start : start + size]), self.test_y[start : start + size]


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation to normalize `x` with: per feature, per channel of an image, or one for all.

    A constant feature gets the deviation 1, so that it becomes zero and not NaN.
    """
    groups = x.shape[1] if x.ndim in (2, 4) else 1
    samples = x.reshape(len(x), groups, -1).numpy()  # numpy: torch's threads wait for each other on a busy machine
    chunks = np.array_split(samples, 1 + samples.size // 2**18)  # what the processor's cache holds
    count = samples.size / groups
    with np.errstate(all="ignore"):  # NaN and infinity are refused, with the sample's number, by Dataset
        mean = np.sum([chunk.sum((0, 2), dtype=np.float64) for chunk in chunks], axis=0) / count
        squares = [((chunk - mean[:, None]) ** 2).sum((0, 2)) for chunk in chunks]
        std = np.sqrt(np.sum(squares, axis=0) / count)
        std[std < 1e-6 * (1 + abs(mean))] = 1.0
    shape = (groups, 1, 1) if x.ndim == 4 else (groups,)
    mean, std = (torch.from_numpy(part.astype(np.float32)).reshape(shape) for part in (mean, std))
    return mean, std


def hold_out(groups: NDArray[np.int64], share: float = 0.2) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions to train on and to test on: the same share of every group (client or label), always the same ones."""
    rng = np.random.default_rng(20)
    test = np.zeros(len(groups), dtype=bool)
    order = np.argsort(groups, kind="stable")
    _, starts = np.unique(groups[order], return_index=True)
    for members in np.split(order, starts[1:]):
        test[rng.permutation(members)[: int(len(members) * share)]] = True
    if len(groups) and not test.any():
        test[rng.integers(len(groups))] = len(groups) > 1
    return np.flatnonzero(~test), np.flatnonzero(test)
