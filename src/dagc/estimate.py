"""How many bytes a federation will take: a few rounds of the real protocol, with random uploads instead of training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from dagc.draws import draw, scramble
from dagc.errors import InvalidInput
from dagc.policies import Plan
from dagc.protocol import Order, Server, Upload
from dagc.sparse import Sparse
from dagc.wire import encode

__all__ = ["Estimate", "Links", "estimate"]

ROUNDS, VISITS = 60, 3
"""How many rounds are played, or visits of each client if that takes longer; further rounds are like these."""
WORK, MOST_WORK = 5e7, 5e8
"""About how many entries of models are in these rounds, at most."""
CARRIED = 2
"""How many times the model's entries are carried to the server in a round; further uploads are counted like those."""


@dataclass(frozen=True)
class Links:
    """How fast clients are: bits per second up and down, and seconds of computing per round."""

    up: float = 8.4e6
    down: float = 8.4e6
    compute_seconds: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """What a training takes, all clients together.

    Attributes:
        plan: The plan, with every default resolved.
        bytes_up: All uploads.
        bytes_down: All downloads.
        first_download: The part of them that is the first model.
        seconds: Of all rounds, each of which waits for its slowest client.
    """

    plan: Plan
    bytes_up: float
    bytes_down: float
    first_download: float
    seconds: float

    @property
    def bytes_total(self) -> float:
        """Both ways."""
        return self.bytes_up + self.bytes_down


def estimate(
    plan: Plan,
    parameters: int,
    examples: Mapping[str, float],
    rounds: int,
    participation: float = 1.0,
    links: Links | None = None,
) -> Estimate:
    """Estimate what some rounds take.

    The server's optimizer is plain SGD; momentum or Adam change every entry, so lossless downloads would be larger.
    Random entries recur less often than those of a training, so real coded frames are smaller.

    Args:
        plan: What clients and server agree on.
        parameters: Entries in the model.
        examples: How much data each client holds, by name.
        rounds: The number of rounds.
        participation: Fraction of the clients in a round.
        links: How fast the clients are.

    Raises:
        InvalidInput: How much clients send depends on their gradients: a method with thresholds.

    Example:
        >>> dense = estimate(Plan(method="none", first_model="drawn"), 7850, {"ann": 900, "bob": 100}, rounds=10)
        >>> dense.bytes_up / 20
        31414.0
    """
    server = Server(plan, torch.from_numpy(_values(0, parameters)), rounds)
    for name, size in examples.items():
        server.join(name, size)
    present = max(1, math.ceil(participation * len(examples) - 1e-9))
    played = max(VISITS * len(examples) / present, min(ROUNDS, WORK / parameters))
    played = math.ceil(min(rounds, played, max(VISITS, MOST_WORK / parameters)))
    journal = _play(server, list(examples), present, played, links or Links())
    usual = journal[played // 2 :]
    new = len(examples) * (1 - (1 - present / len(examples)) ** rounds) if plan.first_model == "sent" else 0.0
    first = new * len(server.download(None, full=True).frame)
    visits = present * rounds - new
    seconds = float(np.mean([each.typical or each.seconds for each in usual]))
    return Estimate(
        server.plan,
        rounds * float(np.mean([each.up for each in usual])),
        first + visits * sum(each.down for each in usual) / max(1, sum(each.visits for each in usual)),
        first,
        rounds * seconds + sum(each.seconds - (each.typical or seconds) for each in journal),
    )


@dataclass
class _Played:
    """A round.

    Attributes:
        up: Bytes of all uploads.
        down: Bytes of the downloads by clients that had a model.
        visits: The number of those clients.
        seconds: Of the round.
        typical: The same without first downloads; 0 if there are no others.
    """

    up: float = 0.0
    down: float = 0.0
    visits: int = 0
    seconds: float = 0.0
    typical: float = 0.0


def _play(server: Server, names: list[str], present: int, rounds: int, links: Links) -> list[_Played]:
    journal: list[_Played] = []
    clock, target = 0.0, server.model.clone()
    for number in range(rounds):
        here = [names[place] for place in draw(scramble(server.plan.seed, number), len(names), present)]
        wait = 0.0 if server.account is None else server.account.wait(present, clock)
        orders, result, uploads = server.orders(here, clock + wait), _Played(), []
        entries, carried, slowest, typical = 0, 0.0, 0.0, 0.0
        for name, order in orders.items():
            download = server.download(name)
            known = download.since >= 0
            count = _entries(server, order)
            if entries and entries + count > CARRIED * server.size:
                server.arrived(name)
                sent = carried / entries * count
            else:
                uploads.append(_upload(server, name, order, count, number))
                sent = float(len(uploads[-1].frame))
                entries, carried = entries + count, carried + sent
            result.up += sent
            result.down += known * len(download.frame)
            result.visits += known
            took = 8 * sent / links.up + 8 * len(download.frame) / links.down
            slowest, typical = max(slowest, took), max(typical, known * took)
        target -= server.total(uploads)
        server.close(uploads, target)
        result.seconds = wait + links.compute_seconds + slowest
        result.typical = result.seconds - slowest + typical if result.visits else 0.0
        clock += result.seconds
        journal.append(result)
    return journal


def _entries(server: Server, order: Order) -> int:
    if order.most is None and order.compressor != "none":
        raise InvalidInput(
            f"how many bytes the method {server.plan.method!r} sends depends on the gradients: give a ratio or bytes"
        )
    return server.size if order.most is None else order.most


def _upload(server: Server, name: str, order: Order, count: int, number: int) -> Upload:
    """An answer to an order, with random entries."""
    seed = scramble(order.seed, number)
    frame = b""
    if count:
        sparse = Sparse(server.size, draw(seed, server.size, count), _values(seed, count))
        memory = None if server.memories is None else server.memories.of(name, order)
        frame = encode(sparse, order.values, round=order.stamp, memory=memory, most=order.most)
    return server.read(name, frame, norm=1.0 if order.norm else None)


def _values(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
