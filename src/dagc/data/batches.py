"""The mini-batches of a client: a pure function of seed, client and round, so a resumed run sees the same samples."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagc.data.dataset import Dataset, Inputs
from dagc.data.partition import Partition
from dagc.draws import scramble, splitmix64
from dagc.errors import InvalidInput

_PADDING = 4


class Batches:
    """Every client's mini-batches, by round.

    A client shuffles its samples again for each epoch and lays the epochs end to end; round t takes positions t·b to
    t·b + b − 1 of that line. So each sample is used once per epoch, and a batch that crosses the end of an epoch is
    still full. A client with no more than b = `batch_size` samples uses all of them in every round. The shuffle is a
    counter hashed (SplitMix64) with seed, client and epoch: there is no state to save, and threads do not matter.

    Example:
        >>> from dagc.data import load, make_partition
        >>> digits = load("digits")
        >>> batches = Batches(digits, make_partition("iid:clients=4", digits), batch_size=32)
        >>> x, y = batches.batch(client=0, round=7)
        >>> x.shape, x.dtype, y.shape
        (torch.Size([32, 1, 8, 8]), torch.float32, torch.Size([32]))
    """

    def __init__(self, dataset: Dataset, partition: Partition, batch_size: int = 32, seed: int = 0) -> None:
        if batch_size < 1:
            raise InvalidInput(f"batch_size is {batch_size}; it must be at least 1")
        for client, indices in enumerate(partition.indices):
            if indices.min() < 0 or indices.max() >= len(dataset):
                words = f"sample {indices.max()}, but {dataset.name} has {len(dataset)} training samples"
                advice = "make the partition from this data set"
                raise InvalidInput(f"the partition gives client {client} {words}; {advice}")
        self.dataset = dataset
        self.partition = partition
        self.batch_size = batch_size
        self.seed = seed
        self._epochs: dict[int, tuple[int, NDArray[np.int64]]] = {}

    def indices(self, client: int, round: int) -> NDArray[np.int64]:
        """Which training samples client `client` uses in round `round`."""
        clients, size = len(self.partition), self.batch_size
        if round < 0 or not 0 <= client < clients:
            raise InvalidInput(f"there is no batch for client {client} of {clients} in round {round}")
        samples = self.partition.indices[client]
        if len(samples) <= size:
            return samples
        epoch, start = divmod(round * size, len(samples))
        taken = self._shuffled(client, epoch)[start : start + size]
        if len(taken) < size:
            taken = np.concatenate([taken, self._shuffled(client, epoch + 1)[: size - len(taken)]])
        return taken

    def batch(self, client: int, round: int) -> tuple[Inputs, Tensor]:
        """The normalized samples and the labels of client `client` in round `round`."""
        return self.together([client], round)[0]

    def together(self, clients: Sequence[int], round: int) -> list[tuple[Inputs, Tensor]]:
        """The same for several clients at once: for small batches, fetching is mostly overhead."""
        chosen = [self.indices(client, round) for client in clients]
        counts = [len(indices) for indices in chosen]
        every = torch.from_numpy(chosen[0] if len(chosen) == 1 else np.concatenate(chosen))
        x, y = self.dataset.train_x.index_select(0, every), self.dataset.train_y.index_select(0, every)
        if self.dataset.augment and isinstance(x, Tensor):
            parts = zip(clients, torch.split(x, counts), strict=True)
            x = torch.cat([crop_and_flip(part, _hash(self.seed, client, round, 1)) for client, part in parts])
        inputs = self.dataset.normalize(x).split(counts)
        return list(zip(inputs, torch.split(y, counts), strict=True))

    def _shuffled(self, client: int, epoch: int) -> NDArray[np.int64]:
        """The client's samples in the order of this epoch. The last order is cached, since rounds go forward."""
        kept = self._epochs.get(client)
        if kept is None or kept[0] != epoch:
            samples = self.partition.indices[client]
            order = np.argsort(splitmix64(_hash(self.seed, client, epoch, 0), len(samples)), kind="stable")
            kept = self._epochs[client] = (epoch, samples[order])
        return kept[1]


def crop_and_flip(x: Tensor, key: int) -> Tensor:
    """Shift each image by up to four pixels, black beyond its edge, and mirror half of them; `key` decides how."""
    count, _, height, width = x.shape
    random = splitmix64(key, 3 * count).reshape(3, count)
    top, left = torch.from_numpy((random[:2] % np.uint64(2 * _PADDING + 1)).astype(np.int64))
    mirrored = torch.from_numpy((random[2] >> np.uint64(63)).astype(bool))
    windows = torch.nn.functional.pad(x, (_PADDING,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    shifted = windows[torch.arange(count), :, top, left]
    shifted[mirrored] = shifted[mirrored].flip(-1)
    return shifted


def _hash(*parts: int) -> int:
    """One 64-bit number from several: SplitMix64, chained."""
    return reduce(lambda state, part: scramble(state ^ int(part), 0), parts, 0)
