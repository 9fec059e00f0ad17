"""How many bytes a federation will take: a few rounds of the real server, with random changes instead of training."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from dagc.draws import draw, scramble
from dagc.errors import InvalidInput
from dagc.network import make_network
from dagc.policies import Plan
from dagc.protocol import ModelServer, Order
from dagc.protocol.extras import FIRST_BROADCASTS, Extras
from dagc.training import Config

ROUNDS, VISITS = 30, 3
"""How many rounds are played, or visits of each client if that takes longer; further rounds are like these."""
LARGEST = 1 << 19
"""Larger models are played as one of this size with a budget in proportion, since frames then only grow with it."""
LONGER = 1.5
"""How many times its usual bytes a first broadcast takes on top. From 0.3 (an MLP) to 2.6 (a small logistic regression)
were seen; with random changes, which no few terms or entries hold, it would always be the most."""
HEADER = 8  # the bytes of an uncompressed frame besides its values


class Estimate(NamedTuple):
    """What a training takes, all clients together; `first_download` is the part of `bytes_down` for the first model."""

    plan: Plan
    bytes_up: float
    bytes_down: float
    first_download: float
    seconds: float


def estimate(config: Config, size: int, examples: Mapping[str, float]) -> Estimate:
    """Estimate what the rounds of a training take at most, each of which waits for its slowest client.

    The server's optimizer is plain SGD; momentum or Adam change every entry: lossless downloads would be larger. A
    method with thresholds is refused: how much its clients send depends on their gradients.
    """
    if isinstance(config.compute_seconds, str):
        raise InvalidInput(f"compute_seconds is {config.compute_seconds!r}: before training, give seconds")
    full, rounds, network = config.plan().for_size(size), config.rounds, make_network(config.network)
    scale = max(1.0, size / LARGEST) if full.rate is None else 1.0
    budgets = {name: getattr(full, name) for name in ("bytes", "down") if isinstance(getattr(full, name), int | float)}
    small = full.replaced(**{name: value / scale for name, value in budgets.items()})
    server = ModelServer(small, _random(0, round(size / scale)), rounds)
    first = len(server.introduction(-1).frame) * scale if full.first_model == "sent" else 0.0
    for name, count in examples.items():
        server.join(name, count)
    names, present = list(examples), max(1, math.ceil(config.participation * len(examples) - 1e-9))
    played: list[tuple[float, float, int, float]] = []
    clock = 0.0
    for number in range(min(rounds, max(ROUNDS, math.ceil(VISITS * len(names) / present)))):
        places = draw(scramble(full.seed, number), len(names), present).tolist()
        waited = 0.0 if server.budget.account is None else server.budget.account.wait(present, clock)
        start = clock + waited
        uploads, downloads, known = _play(server, [names[place] for place in places], number, start)
        ends = [start]
        for place, upload, download in zip(places, uploads, downloads, strict=True):
            trained = start + network.seconds(place, "down", scale * download, start) + config.compute_seconds
            ends.append(trained + network.seconds(place, "up", scale * upload, trained))
        played.append((scale * sum(uploads), scale * sum(downloads), known, max(ends) - clock))
        clock = max(ends)
    later = played[len(played) // 2 :]  # the first rounds are unlike those that follow
    _, received, visits, took = (sum(amounts) for amounts in zip(*later, strict=True))
    new = len(names) * (1 - (1 - present / len(names)) ** rounds) if first else 0.0
    repeated = (present * rounds - new) * received / max(1, visits)
    sent = rounds * sum(each[0] for each in played) / len(played)
    down = full.downward() if Extras(config.plan(), size).allowed else None
    if down is not None and down.bytes:
        repeated += LONGER * min(rounds, FIRST_BROADCASTS) * len(names) * down.bytes
    slowest = max(network.seconds(place, "down", first, 0.0) for place in range(len(names))) if first else 0.0
    return Estimate(full, sent, first * new + repeated, first * new, took * rounds / len(later) + slowest)


def _play(server: ModelServer, clients: list[str], number: int, clock: float) -> tuple[list[int], list[int], int]:
    """A round: the most bytes up of each client, the bytes down of those that had a model, and how many these are."""
    orders = server.orders(clients, clock)
    known = {name for name in clients if server.members[name].model_version >= 0}
    downloads = [len(server.download(name).frame) * (name in known) for name in orders]
    uploads = [_most_bytes(server, order) for order in orders.values()]
    for name, order in orders.items():
        server.out_of_sync(name) if order.visit else server.arrived(name)
    counts = [server.size if order.most_entries is None else order.most_entries for order in orders.values()]
    count = min(server.size, sum(counts))  # `dagc` may change every entry
    target = server.target.clone()
    target[torch.from_numpy(draw(number, server.size, count))] += _random(number, count)
    server.advance([], target)
    return uploads, downloads, len(known)


def _most_bytes(server: ModelServer, order: Order) -> int:
    if order.amount is None:
        return 4 * server.size + HEADER
    if isinstance(order.amount, float):
        raise InvalidInput(
            f"how many bytes the method {server.plan.method!r} sends depends on the gradients: give a ratio or bytes"
        )
    return server.budget.most_bytes(order)


def _random(seed: int, count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count, dtype=np.float32))
