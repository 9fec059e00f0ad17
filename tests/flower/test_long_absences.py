"""Flower: a node joins in round 50 of 100, another comes back after 60, and the server restarts in between."""

import pytest
import torch

pytest.importorskip("flwr")

from flwr.serverapp.strategy import FedAvg, FedAvgM

from dagc.flower import DataAware
from dagc.folder import read_metrics
from dagc.protocol import Server
from tests.flower.apps import books_balance_of, client_app, computed_by, flat, kept_by, start, states, taken_of
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

ROUNDS, JOINS, LEAVES, RETURNS, RESTARTS = 100, 50, 15, 75, 60
FEW = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
CASES = {
    "dagc": (lambda: FedAvg(**FEW), {}),
    "with momentum": (lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9, **FEW), {}),
    "thrifty": (lambda: FedAvg(**FEW), {"method": "thrifty"}),
}


class Present(LocalGrid):
    """Node 3 joins late, node 2 is away for 60 rounds."""

    done = 0

    def get_node_ids(self):
        return [1] + [2] * (not LEAVES <= self.done < RETURNS) + [3] * (self.done >= JOINS)

    def note(self, done, arrays):
        self.done = done


@pytest.mark.parametrize("case", CASES)
def test_books_and_bits(states, monkeypatch, case):
    inner, settings = CASES[case]
    delivered, seen, read = {}, [], Server.read

    def noted(server, name, frame, norm=None):
        upload = read(server, name, frame, norm)
        delivered[name] = delivered.get(name, 0.0) + upload.update.dense().double()
        return upload

    def run(name, rounds):
        grid, strategy = Present(client_app(seen=seen, steps=1), 3), DataAware(inner(), run=name, **settings)
        return flat(start(strategy, grid, rounds, evaluate_fn=grid.note).arrays), taken_of(strategy)

    monkeypatch.setattr(Server, "read", noted)
    run("restarted", RESTARTS)
    model, taken = run("restarted", ROUNDS)
    for part in range(3):
        name = f"partition-{part}"
        books_balance_of(kept_by(states, "restarted", part), computed_by(seen, part), delivered[name], taken[name])
    straight, _ = run("straight", ROUNDS)
    assert torch.equal(model, straight)
    for part in range(3):
        one, other = (kept_by(states, name, part).uplink.feedback.residual for name in ("restarted", "straight"))
        assert torch.equal(one, other)
    one, other = (read_metrics(states / "runs" / name) for name in ("restarted", "straight"))
    present = [1 + (not LEAVES <= t < RETURNS) + (t >= JOINS) for t in range(ROUNDS)]
    assert [line["present"] for line in one] == present
    assert [(line["up"], line["down"]) for line in one] == [(line["up"], line["down"]) for line in other]
