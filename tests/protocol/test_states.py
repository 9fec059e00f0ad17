"""States of all halves: a copy continues to the same bits, and a damaged one is refused and changes nothing."""

import numpy as np
import pytest
import torch

from dagc import Plan
from dagc.protocol import ModelServer
from dagc.training import Federation, iterate
from tests.helpers.states import check_all_or_nothing, copied, same
from tests.protocol.runs import Client, Run
from tests.training.runs import config

PLANS = {
    "lossless": {"method": "dagc-r", "ratio": 0.05},
    "coded, both ways": {"method": "dagc-r", "bytes": 60, "values": "sign", "frames": "coded", "down": "same"},
    "waiting, bounded": {"method": "dagc-r", "bytes": 12, "overhead": 0.25, "norm_bound": 5, "values": "int8"},
    "norms": {"method": "accordion", "ratio": 0.05, "options": {"interval": 2}, "step_ahead": 0.5},
}
ANY_VALUE = ("name", "saved", "checksum")


@pytest.fixture(params=PLANS)
def run(request):
    """Five rounds with three clients; the last upload of one is pending."""
    run = Run(Plan(**PLANS[request.param]), size=40)
    for t in range(5):
        run.round("012", lost="2" if t == 4 else "")
    return run


def test_a_damaged_uplink_is_refused_and_changes_nothing(run):
    for client in run.clients.values():
        check_all_or_nothing(client.uplink)


def test_a_damaged_replica_is_refused_and_changes_nothing(run):
    check_all_or_nothing(run.clients["0"].replica)


def test_a_damaged_server_is_refused_and_changes_nothing(run):
    check_all_or_nothing(run.server)


@pytest.mark.parametrize(
    "fields", [{"values": "int8", "optimizer": "Adam"}, {"frames": "coded", "values": "sign", "down": "same"}]
)
def test_a_damaged_federation_is_refused_and_changes_nothing(fields):
    federation = Federation(config(clients=2, **fields))
    federation.step()
    vector = federation.vector.clone()
    check_all_or_nothing(federation)
    assert torch.equal(federation.vector, vector)


def test_damaged_buffers_are_refused_and_change_nothing():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    data = {name: (torch.randn(9, 4), torch.arange(9) % 2) for name in ("ann", "bob")}
    federation = iterate(method="top-k", ratio=0.5, model=model, data=data, rounds=2).federation
    federation.step()
    assert len(federation.buffers) == 3
    check_all_or_nothing(federation)


def test_a_copy_continues_to_the_same_bits_and_holds_on_to_nothing(run):
    server, clients = copied(run.server), {name: copied(client) for name, client in run.clients.items()}
    other = Run(run.plan, size=40)
    other.server.load_state_dict(server)
    other.computed = dict(run.computed)
    for name, state in clients.items():
        other.clients[name] = Client(other.server.plan, [40])
        other.clients[name].load_state_dict(state)
    for state in (server, *clients.values()):
        overwrite(state)
    for _ in range(3):
        run.round("012")
        other.round("012")
    assert same(copied(run.server), copied(other.server))
    for name, client in run.clients.items():
        assert same(copied(client.uplink), copied(other.clients[name].uplink)), name
        assert same(copied(client.replica), copied(other.clients[name].replica)), name


def overwrite(state):
    for value in state.values():
        if isinstance(value, dict):
            overwrite(value)
        elif isinstance(value, np.ndarray):
            value[...] = 77


def test_a_server_goes_back_to_a_snapshot(run):
    """As an engine does if a round fails halfway."""
    before = copied(run.server)
    snapshot = run.server.snapshot()
    run.server.join("9", 50)
    orders = run.server.orders(["0", "1", "9"])
    for name in ("0", "1"):
        client = run.clients[name]
        client.replica.receive(run.server.download(name))
        client.uplink.settle(orders[name].accepted)
        run.server.read(name, client.uplink.upload(torch.randn(40), orders[name]).frame)
    run.server.rollback(snapshot)
    assert same(copied(run.server), before)


def test_the_state_of_another_model_is_refused(run):
    other = ModelServer(run.plan, torch.zeros(41))
    before = copied(other)
    with pytest.raises(ValueError, match="does not fit"):
        other.load_state_dict(copied(run.server))
    assert same(copied(other), before)
