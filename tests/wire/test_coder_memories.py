"""What a server remembers of coded uploads: bounded, and dropped for those away for longest."""

import numpy as np
import pytest
import torch

from dagc import MalformedPayload
from dagc.policies import Plan
from dagc.protocol import ModelServer
from dagc.protocol import memories as memories_module
from dagc.wire import Memory
from tests.helpers.states import copied
from tests.protocol.runs import Client
from tests.wire.histories import state
from tests.wire.lossy import PLANS, SHAPES, SIZE, gradient


def visit(server, name, client=None):
    """One client trains in a round of its own."""
    if client is None:
        client = Client(server.plan, SHAPES)
        server.out_of_sync(name)
    ((_, order),) = server.orders([name]).items()
    client.uplink.settle(order.accepted)
    client.replica.receive(server.download(name))
    change = gradient([server.round, len(name)]).astype(np.float32)
    upload = server.read(name, client.uplink.upload(torch.from_numpy(change), order).frame)
    server.advance([upload], server.model - server.total([upload]))
    return order


def crowd(monkeypatch, memories, clients=0):
    """A server with room for that many memories, and clients that it knows."""
    with_clocks, without = (Memory(SHAPES, clocks=clocks) for clocks in (True, False))
    monkeypatch.setattr(memories_module, "MEMORIES", memories * without.nbytes)
    monkeypatch.setattr(memories_module, "CLOCKS", 2 * 4 * SIZE)
    assert with_clocks.nbytes == without.nbytes + 4 * SIZE
    server = ModelServer(Plan(method="dagc-r", frames="coded", **PLANS["lossless"]), torch.zeros(SIZE), shapes=SHAPES)
    for number in range(clients):
        server.join(str(number), 100)
    return server


def test_clients_that_were_seen_once_do_not_fill_the_servers_memory(monkeypatch):
    server, clients = crowd(monkeypatch, memories=5, clients=40), {}
    regular = "39"
    clients[regular] = Client(server.plan, SHAPES)
    for number in range(39):
        visit(server, str(number))
        assert visit(server, regular, clients[regular]).counted == number, "who comes often is not forgotten"
        assert len(server.receiver.memories.by_name) <= 5
    assert list(server.receiver.memories.by_name) == ["35", "36", "37", "38", regular], (
        "those away for longest are gone"
    )
    again = ModelServer(server.plan, torch.zeros(SIZE), shapes=SHAPES)
    again.load_state_dict(copied(server))
    for one in (server, again):
        visit(one, "0")
        visit(one, "36")
        assert list(one.receiver.memories.by_name) == ["37", "38", regular, "0", "36"], "a restart changes nothing"


def test_a_client_that_was_forgotten_starts_again_and_nothing_is_lost(monkeypatch):
    server = crowd(monkeypatch, memories=2, clients=4)
    client, before = Client(server.plan, SHAPES), server.model.double()
    for _ in range(4):
        assert not visit(server, "0", client).silent
    for name in "123":
        visit(server, name)
    assert "0" not in server.receiver.memories.by_name
    assert client.uplink.memory.frames
    assert visit(server, "0", client).counted == 0
    assert visit(server, "0", client).counted == 1
    assert client.uplink.pending is not None
    client.uplink.settle(server.members["0"].accepted_round)
    assert state(client.uplink.memory) == state(server.receiver.memories.by_name["0"])
    assert server.model.double().sub(before).abs().sum() > 0


def test_with_more_clients_in_every_round_than_memories_some_have_one_and_no_upload_is_refused(monkeypatch):
    server = crowd(monkeypatch, memories=3, clients=8)
    clients = {name: Client(server.plan, SHAPES) for name in server.members}
    for t in range(6):
        orders, uploads = server.orders(clients), []
        assert sum(order.clocks for order in orders.values()) == 2, "also in the first round"
        for name, order in orders.items():
            clients[name].uplink.settle(order.accepted)
            clients[name].replica.receive(server.download(name))
            change = gradient([t, int(name)]).astype(np.float32)
            uploads.append(server.read(name, clients[name].uplink.upload(torch.from_numpy(change), order).frame))
            assert uploads[-1].update == clients[name].uplink.pending
        server.advance(uploads, server.model - server.total(uploads))
        assert list(server.receiver.memories.by_name) == ["0", "1", "2"]
        assert [order.counted for order in orders.values()] == [t, t, t, 0, 0, 0, 0, 0]


def test_100_000_clients_seen_once_cost_no_more_than_the_bound():
    """What they send is rubbish, so that reading it takes no time: a memory is made for it all the same."""
    shapes = [(10, 784), 10]
    server = ModelServer(
        Plan(method="dagc-r", bytes=20, values="sign", frames="coded"), torch.zeros(7850), shapes=shapes
    )
    for number in range(100_000):
        server.join(str(number), 1)
    for name in server.orders(server.members):
        with pytest.raises(MalformedPayload):
            server.read(name, b"?")
    most = memories_module.CLOCKS + memories_module.MEMORIES
    assert most / 2 < sum(memory.nbytes for memory in server.receiver.memories.by_name.values()) <= most < 400e6
    assert 100_000 * Memory(shapes).nbytes > 3e9, "what all of them would take"
