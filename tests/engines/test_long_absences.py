"""A client joins in round 50 of 100, another comes back after 60 rounds, and the server restarts in between."""

import numpy as np
import pytest
import torch

from dagc import Plan
from dagc.training import Federation
from tests.helpers.states import copied, same
from tests.protocol.runs import Run
from tests.training.runs import config

ROUNDS, JOINS, LEAVES, RETURNS, RESTARTS = 100, 50, 15, 75, 60
PLANS = [
    {"method": "dagc"},
    {"method": "dagc", "bytes": 60},
    {"method": "dagc", "bytes": 60, "down": "lossless", "step_ahead": 0.5},
    {"method": "thrifty", "bytes": 30},
    {"method": "dagc-r", "ratio": 0.05, "down": 40},
]


def present(t):
    """Client 2 joins late, client 1 is away for 60 rounds."""
    return [0] + [1] * (not LEAVES <= t < RETURNS) + [2] * (t >= JOINS)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "-".join(map(str, plan.values())))
def test_books_and_bits_of_the_protocol(plan):
    runs, delivered = [Run(Plan(**plan)) for _ in range(2)], {}
    for t in range(ROUNDS):
        for run in runs:
            uploads = run.round([str(name) for name in present(t)], lost="0" if t % 7 == 3 else "")
        for upload in uploads:
            delivered[upload.client] = delivered.get(upload.client, 0) + upload.update.dense().double()
        if t == RESTARTS:
            runs[1].restart_server()
            for name in list(runs[1].clients):
                runs[1].restart(name)
    first, second = runs
    assert same(copied(first.server), copied(second.server))
    for name, client in first.clients.items():
        assert same(copied(client.uplink), copied(second.clients[name].uplink))
        assert same(copied(client.replica), copied(second.clients[name].replica))
        client.uplink.settle(first.server.members[name].accepted_round)
        has = delivered[name] + client.uplink.feedback.residual.double()
        assert torch.allclose(has, first.computed[name], atol=1e-4), name
    if plan != {"method": "dagc"}:  # whose first uploads may take more
        assert first.sent <= (plan.get("bytes") or 400) * sum(len(present(t)) for t in range(ROUNDS))
    assert np.isfinite(first.server.downlink.model).all()


LOCAL = [*PLANS[:4], {"method": "dagc", "momentum": 0.9}, {"method": "thrifty"}]


@pytest.mark.parametrize("plan", LOCAL, ids=lambda plan: "-".join(map(str, plan.values())))
def test_bits_of_the_local_engine(plan):
    settings = config(clients=3, rounds=ROUNDS, **{"ratio": None, **plan})
    straight, restarted = Federation(settings), Federation(settings)
    for t in range(ROUNDS):
        straight.step(present(t))
        restarted.step(present(t))
        if t == RESTARTS:
            state, restarted = copied(restarted), Federation(settings)
            restarted.load_state_dict(state)
    assert same(copied(straight), copied(restarted))
    assert torch.equal(straight.vector, restarted.vector)
    assert set(straight.uplinks) == set(straight.names)


def test_who_returns_after_60_rounds_keeps_its_books_where_no_budget_is_given():
    """It catches up exactly, and nobody becomes a visitor because of it."""
    run = Run(Plan(method="dagc"))
    for t in range(ROUNDS):
        names = [str(name) for name in present(t)]
        run.round(names)
        assert all(run.clients[name].replica.version >= 0 for name in names), "a visitor has no version"
