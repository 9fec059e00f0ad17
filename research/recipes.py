"""Rivals whose messages are no selections of entries, as federated methods: QSGD, PowerSGD, and SparseLoCo's recipe.

Clients train as everybody's do. A recipe makes of their changes what the server and all clients add to the model, and
says how many bytes that took. Sizes are those of the fields on the wire, without headers, which favors these rivals.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dagc.errors import NonFiniteGradient
from dagc.training import Config
from dagc.training.federation import Federation
from dagc.training.parallel import one_thread
from dagc.training.result import Round

__all__ = ["RECIPES", "Exchange", "PowerSGD", "Qsgd", "Recipe", "RecipeFederation", "SparseLoCo"]

FP32 = 4
BUCKET = 512
"""QSGD's entries with a scale of their own."""
CHUNK, KEPT, DECAY = 4096, 64, 0.95
"""SparseLoCo's: of 4096 entries 64 are sent, in 2 bits each, and what was not sent fades by a twentieth per round."""
INDEX_BITS, LEVEL_BITS = 12, 2
RANK = 2


class Exchange(NamedTuple):
    """A round: what everybody adds, and the bytes of all clients up, back within the round, and down after it."""

    mean: Tensor
    up: int
    back: int
    down: int


class Recipe(Protocol):
    """What a method does with the clients' changes; it may remember some of them."""

    def exchange(self, changes: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> Exchange:
        """One round, with the weight of each client's change."""
        ...


class Qsgd:
    """Every entry in a few bits, rounded at random so that the mean is right; FedPAQ is this after local steps.

    FedPAQ sends the model down in full. Here the mean is rounded likewise, which favors it.

    Example:
        >>> changes = [[torch.tensor([1.0, -0.5])], [torch.tensor([3.0, 0.5])]]
        >>> done = Qsgd(8, 0).exchange(changes, [0.5, 0.5])
        >>> bool((done.mean - torch.tensor([2.0, 0.0])).abs().max() < 0.05), done.up, done.down
        (True, 12, 12)
    """

    def __init__(self, bits: int, seed: int) -> None:
        self.bits, self.most = bits, 2 ** (bits - 1) - 1
        self.generator = torch.Generator().manual_seed(seed)

    def exchange(self, changes: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> Exchange:
        """As `Recipe.exchange`."""
        mean = sum_of([self.rounded(_vector(each)) for each in changes], weights)
        size = math.ceil(len(mean) * self.bits / 8) + FP32 * math.ceil(len(mean) / BUCKET)
        return Exchange(self.rounded(mean), size * len(changes), 0, size * len(changes))

    def rounded(self, vector: Tensor) -> Tensor:
        """What is read of a vector that was sent."""
        table = _table(vector, BUCKET)
        scales = table.abs().amax(1, keepdim=True).div_(self.most)
        steps = torch.where(scales > 0, table / scales, 0.0)
        steps = (steps + torch.rand(steps.shape, generator=self.generator)).floor_().clamp_(-self.most, self.most)
        return (steps * scales).reshape(-1)[: len(vector)]


class PowerSGD:
    """Two factors of every matrix, by a step of power iteration that all clients share, with error feedback.

    Clients send their first factors; the server orthogonalizes the mean and sends it back; clients send their second
    factors; the server sends the mean. Vectors, and matrices that factors would not shrink, are sent as they are.

    Example:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <...>
        >>> matrix = torch.outer(torch.randn(30), torch.randn(20))  # of rank one
        >>> done = PowerSGD(1, 0).exchange([[matrix]], [1.0])
        >>> bool((done.mean - matrix.reshape(-1)).abs().max() < 1e-5), done.up, done.back + done.down
        (True, 200, 200)
    """

    def __init__(self, rank: int, seed: int) -> None:
        self.rank, self.generator = rank, torch.Generator().manual_seed(seed)
        self.seconds: dict[int, Tensor] = {}  # of each matrix, where the next round's iteration starts
        self.kept: list[list[Tensor]] = []  # of each client and tensor, what was not sent

    def exchange(self, changes: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> Exchange:
        """As `Recipe.exchange`."""
        self.kept = self.kept or [[torch.zeros_like(part) for part in change] for change in changes]
        means, up, back, down = [], 0, 0, 0
        for place in range(len(changes[0])):
            parts = [change[place] + kept[place] for change, kept in zip(changes, self.kept, strict=True)]
            tables = [part.reshape(len(part), -1) for part in parts]
            rows, columns = tables[0].shape
            if parts[0].ndim < 2 or self.rank * (rows + columns) >= rows * columns:
                means.append(sum_of(parts, weights).reshape(-1))
                up, down = up + FP32 * rows * columns, down + FP32 * rows * columns
                continue
            if place not in self.seconds:
                self.seconds[place] = torch.randn(columns, self.rank, generator=self.generator)
            first = torch.linalg.qr(sum_of([table @ self.seconds[place] for table in tables], weights)).Q
            self.seconds[place] = sum_of([table.T @ first for table in tables], weights)
            mean = first @ self.seconds[place].T
            for kept, table in zip(self.kept, tables, strict=True):
                kept[place] = (table - mean).reshape(kept[place].shape)
            means.append(mean.reshape(-1))
            up += FP32 * self.rank * (rows + columns)
            back, down = back + FP32 * self.rank * rows, down + FP32 * self.rank * columns
        count = len(changes)
        return Exchange(torch.cat(means), up * count, back * count, down * count)


class SparseLoCo:
    """Of every chunk the largest entries, as a sign and one of two magnitudes, with error feedback that fades.

    Every client gets what every other one has sent, as there.

    Example:
        >>> loco = SparseLoCo()
        >>> done = loco.exchange([[torch.arange(4096.0)], [torch.zeros(4096)]], [0.5, 0.5])
        >>> int((done.mean > 0).sum()), done.up, done.down  # (64 * 14 / 8 + 8) bytes
        (64, 240, 240)
    """

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def exchange(self, changes: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> Exchange:
        """As `Recipe.exchange`."""
        vectors = [_vector(change) for change in changes]
        self.kept = self.kept or [torch.zeros_like(vector) for vector in vectors]
        sent = []
        for i, vector in enumerate(vectors):
            total = self.kept[i].mul_(DECAY).add_(vector)
            sent.append(self.coarse(total))
            self.kept[i] = total - sent[-1]
        full, rest = divmod(len(vectors[0]), CHUNK)
        counts = [KEPT] * full + [min(KEPT, rest)] * (rest > 0)
        size = sum(math.ceil(count * (INDEX_BITS + LEVEL_BITS) / 8) + 2 * FP32 for count in counts)
        up = size * len(changes)
        return Exchange(sum_of(sent, weights), up, 0, up * (len(changes) - 1))

    def coarse(self, vector: Tensor) -> Tensor:
        """What is read of a vector that was sent."""
        table = _table(vector, CHUNK)
        found = table.abs().topk(KEPT, dim=1)
        large = found.values > found.values.mean(1, keepdim=True)
        few, many = (_mean(found.values, each) for each in (large, ~large))
        sizes = torch.where(large, few, many)
        signs = table.gather(1, found.indices).sign()
        return torch.zeros_like(table).scatter_(1, found.indices, signs * sizes).reshape(-1)[: len(vector)]


RECIPES: dict[str, Callable[[int], Recipe]] = {
    "PowerSGD, rank 2": lambda seed: PowerSGD(RANK, seed),
    "SparseLoCo's recipe": lambda seed: SparseLoCo(),
    "QSGD both ways, 8 bits": lambda seed: Qsgd(8, seed),
    "QSGD both ways, 4 bits": lambda seed: Qsgd(4, seed),
}
"""Made from a seed."""


class RecipeFederation(Federation):
    """Clients and a server that exchange by a recipe; every client takes part in every round.

    Args:
        config: Of method `none`, with everything that is not about messages.
        recipe: What becomes of the clients' changes.
    """

    def __init__(self, config: Config, recipe: Recipe) -> None:
        super().__init__(config)
        self.recipe = recipe
        first = len(self.server.introduction().frame)
        self._done, self._waiting = 0, first * len(self.names)  # what clients download when the next round begins

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return getattr(self, "_done", 0)

    def step(self, asked: Sequence[int] | None = None) -> Round:
        """One round of all clients."""
        clients = list(range(len(self.names)))
        rate, server_rate = self._rates(self._done)
        with one_thread():
            computed = self.gradients(self._done, clients, rate)
            weights = (self.partition.sizes / self.partition.sizes.sum()).tolist()
            done = self.recipe.exchange([each.change for each in computed], weights)
        if not bool(torch.isfinite(done.mean).all()):
            raise NonFiniteGradient(f"round {self._done + 1}: the clients' mean is not finite")
        self.optimizer.step(done.mean, server_rate)
        self.vector.copy_(self.optimizer.vector.detach())
        self._done += 1
        down, self._waiting = self._waiting + done.back, done.down
        self.bytes_up, self.bytes_down = self.bytes_up + done.up, self.bytes_down + down
        counted = (done.up, down, self.bytes_up, self.bytes_down, self.seconds)
        return Round(self._done, None, len(clients), 0, *counted)


def sum_of(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted sum."""
    total = torch.zeros_like(parts[0])
    for part, weight in zip(parts, weights, strict=True):
        total.add_(part, alpha=weight)
    return total


def _vector(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _table(vector: Tensor, width: int) -> Tensor:
    """A row for each bucket, filled up with zeros."""
    return torch.nn.functional.pad(vector, (0, -len(vector) % width)).reshape(-1, width)


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """The mean of the chosen values of each row; 0 if there are none."""
    return (values * chosen).sum(1, keepdim=True) / chosen.sum(1, keepdim=True).clamp(min=1)
