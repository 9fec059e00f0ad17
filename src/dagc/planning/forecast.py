"""What a federation would send and how long it would take: the server's half of the protocol, run without training."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.draws import draw, scramble
from dagc.errors import InvalidInput
from dagc.policies import Plan
from dagc.protocol import Order, Server
from dagc.wire import VALUE_CODECS, payload_size
from dagc.wire.frame import varint

__all__ = ["Fleet", "Forecast", "dense_bytes", "forecast"]

Array = NDArray[np.float64]
FEWEST, MOST, VISITS = 100, 1000, 1_000_000
"""How many rounds, and clients in them, are simulated one by one; later rounds are like the second half of these."""
SERVER = "server"


@dataclass(frozen=True)
class Fleet:
    """Who takes part, with which model and over which links.

    Attributes:
        parameters: Entries in the model.
        examples: How much data each client holds, by name.
        participation: Fraction of the clients asked in a round.
        up: Bits per second of each client's uplink.
        down: Bits per second of each client's downlink.
        compute_seconds: A client's time per round besides the transfers.
    """

    parameters: int
    examples: Mapping[str, float]
    participation: float = 1.0
    up: float = 8.4e6
    down: float = 8.4e6
    compute_seconds: float = 0.0

    @property
    def asked(self) -> int:
        """How many clients take part in a round."""
        return max(1, math.ceil(self.participation * len(self.examples) - 1e-9))


@dataclass(frozen=True, eq=False)
class Forecast:
    """What a training takes at most: every frame counts with the most bytes it can take.

    Attributes:
        plan: The plan, with every default resolved.
        rounds: The number of rounds.
        up: Bytes that each client uploads, in the order of the fleet.
        down: Bytes that each client downloads.
        first_download: How many of all those bytes are the first download of the model.
        seconds: The time of all rounds, one after the other.
        round_seconds: The time of a typical round.
        exchange_seconds: The part of it that the slowest client's transfers take.
        largest_upload: Bytes of the largest upload of a typical round.
        entries: How many entries a client uploads in a typical round in which it takes part.
    """

    plan: Plan
    rounds: int
    up: Array
    down: Array
    first_download: float
    seconds: float
    round_seconds: float
    exchange_seconds: float
    largest_upload: float
    entries: float

    @property
    def bytes_up(self) -> float:
        """All clients' uploads."""
        return float(self.up.sum())

    @property
    def bytes_down(self) -> float:
        """All clients' downloads."""
        return float(self.down.sum())

    @property
    def changes(self) -> float:
        """Total bytes, without the first download of the model."""
        return self.bytes_up + self.bytes_down - self.first_download


class _Round(NamedTuple):
    here: NDArray[np.int64]
    up: Array
    down: Array
    entries: int
    new: NDArray[np.bool_]  # the clients that download the model for the first time
    seconds: float
    usual: float | None  # the same without newcomers; None if there is nobody else
    wait: float


def forecast(plan: Plan, fleet: Fleet, rounds: int) -> Forecast:
    """Forecast bytes and time of these rounds.

    The orders are those that the server would give. A lossless download is at most what all clients have sent since
    the client's last visit, if the server's optimiser moves nothing else (SGD without momentum). With bytes as budget,
    real frames hold more entries than the bound assumes, so a lossless download may be larger by about a quarter.

    Args:
        plan: What clients and server agree on.
        fleet: The clients, their model and their links.
        rounds: The number of rounds.

    Raises:
        InvalidInput: How much clients send depends on their gradients: a method with thresholds.

    Example:
        >>> fleet = Fleet(parameters=7850, examples={"ann": 900, "bob": 100})
        >>> found = forecast(Plan(method="none"), fleet, rounds=10)
        >>> found.up / 10
        array([31419., 31419.])
        >>> found = forecast(Plan(method="dagc", bytes=64), fleet, rounds=1000)
        >>> found.bytes_up / 2000 <= 64 and found.changes / 2000 <= 128
        True
    """
    count, asked = len(fleet.examples), fleet.asked
    gone = min(rounds, MOST, max(FEWEST, math.ceil(10 * count / asked)), max(10, VISITS // asked))
    up, down, first, seconds = np.zeros(count), np.zeros(count), np.zeros(count), 0.0
    seen = np.zeros(count, dtype=bool)
    later: list[_Round] = []
    for number, one in enumerate(_rounds(plan, fleet, rounds, gone)):
        up[one.here] += one.up
        down[one.here] += one.down
        first[one.here] += one.down * one.new
        seen[one.here] = True
        seconds += one.seconds
        if 2 * number >= gone - 1:
            later.append(one)
    usual = _mean([one.seconds if one.usual is None else one.usual for one in later])
    exchange = usual - fleet.compute_seconds - _mean([one.wait for one in later])
    sent_first, more = float(first.sum()), rounds - gone
    if more:
        each = sum((one.down * ~one.new).sum() for one in later) / max(1, sum((~one.new).sum() for one in later))
        coming = (count - int(seen.sum())) * (1 - (1 - asked / count) ** more)  # clients that have not taken part yet
        model = dense_bytes(fleet.parameters) if plan.first_model == "sent" else each
        sent_first += coming * model if plan.first_model == "sent" else 0.0
        up *= 1 + more * _mean([one.up.sum() for one in later]) / max(1.0, up.sum())
        down *= 1 + (coming * model + (asked * more - coming) * each) / max(1.0, down.sum())
        seconds += more * usual + min(more, coming) * 8 * model / fleet.down
    return Forecast(
        plan.for_size(fleet.parameters),
        rounds,
        up,
        down,
        sent_first,
        seconds,
        usual,
        max(0.0, exchange),
        _mean([one.up.max() for one in later]),
        _mean([one.entries / len(one.here) for one in later]),
    )


def _mean(numbers: list[Any]) -> float:
    return float(sum(numbers)) / len(numbers)


def dense_bytes(size: int, values: str = "fp32") -> int:
    """Approximately the bytes of a frame with the whole model: its values, and the header of a frame of one entry.

    `payload_size` also allows for an entry that is left out, which makes indices necessary.

    Example:
        >>> dense_bytes(7850) - 4 * 7850
        19
    """
    size_of = VALUE_CODECS[values].size
    return int(payload_size(size, 1, values)[0]) - size_of(1) + size_of(size)


def _rounds(plan: Plan, fleet: Fleet, rounds: int, gone: int) -> Iterator[_Round]:
    """The first rounds, one by one."""
    size, names = fleet.parameters, list(fleet.examples)
    server = Server(plan, size, rounds)
    plan = server.plan
    for name, examples in fleet.examples.items():
        server.join(name, examples)
    broadcasts = _Broadcasts(plan, size, rounds)
    has = np.full(len(names), -1 if plan.first_model == "sent" else 0)
    clock = 0.0
    for number in range(gone):
        here = draw(scramble(plan.seed, number), len(names), fleet.asked)
        wait = 0.0 if server.account is None else server.account.wait(len(here), clock)
        orders = server.orders([names[i] for i in here], clock + wait)
        server.close([])
        entries = np.array([_entries(orders[names[i]], plan, size) for i in here])
        up = _frames(size, entries, plan)
        down = broadcasts.missed(has[here])
        new, transfer = has[here] < 0, 8 * up / fleet.up + 8 * down / fleet.down
        before = wait + fleet.compute_seconds
        took = before + float(transfer.max())
        clock += took
        yield _Round(
            here,
            up,
            down,
            int(entries.sum()),
            new,
            took,
            None if new.all() else before + float(transfer[~new].max()),
            wait,
        )
        has[here] = number
        broadcasts.advance(int(entries.sum()), plan.down_share(len(here) / len(names)), clock)


def _entries(order: Order, plan: Plan, size: int) -> int:
    if order.most is None and order.compressor != "none":
        raise InvalidInput(
            f"how many bytes the method {plan.method!r} sends depends on the gradients: give a ratio or bytes, "
            "or use measured figures with --runs"
        )
    return size if order.most is None else order.most


def _frames(size: int, entries: NDArray[Any], plan: Plan) -> Array:
    """The most bytes of each frame; without entries there is no frame."""
    most = payload_size(size, entries, plan.values, frames=plan.frames)
    most = np.where(entries == size, np.minimum(most, dense_bytes(size, plan.values)), most)
    return np.where(entries > 0, most, 0).astype(np.float64)


class _Broadcasts:
    """What the server sends after each round: within its own budget, or losslessly everything that changed.

    Attributes:
        totals: After each round, what was sent so far: entries if lossless, else bytes of frames.
    """

    def __init__(self, plan: Plan, size: int, rounds: int) -> None:
        self.plan, self.size = plan, size
        self.totals = [0]
        self._numbers, self._lengths = [0], [0]
        self._turns = 0.0
        downward = plan.downward()
        self._server = None if downward is None else Server(downward, size, rounds)
        if self._server is not None:
            self._server.join(SERVER, 1.0)

    def advance(self, entries: int, share: float, seconds: float) -> None:
        """Finish a round in which clients sent these entries, and which has this part of the downlink's budget."""
        sent = entries if self._server is None else 0
        self._turns += share
        if self._server is not None and self._turns >= 1 - 1e-9:
            self._turns -= 1
            (order,) = self._server.orders([SERVER], seconds).values()
            self._server.close([])
            sent = int(_frames(self.size, np.array([order.parameter]), self._server.plan)[0])
        self.totals.append(self.totals[-1] + sent)
        self._numbers.append(self._numbers[-1] + (sent > 0))
        self._lengths.append(self._lengths[-1] + (len(varint(sent)) if sent else 0))

    def missed(self, has: NDArray[np.int64]) -> Array:
        """The bytes of a download for clients with these versions; -1 for a client that has none."""
        dense = dense_bytes(self.size)
        missed = self.totals[-1] - np.array(self.totals)[has]
        if self._server is None:
            entries = np.minimum(missed, self.size)
            found = np.where(entries > 0, payload_size(self.size, entries, indices=self.plan.indices), 0)
        else:  # several are sent with their lengths
            several = self._numbers[-1] - np.array(self._numbers)[has] > 1
            found = missed + several * (self._lengths[-1] - np.array(self._lengths)[has])
        return np.where(has < 0, dense, np.minimum(found, dense)).astype(np.float64)
