"""Who visits: a client that was away for long gets a rounded model, if catching up exactly would take more bytes."""

import pytest
import torch

from dagc import Plan
from dagc.protocol import ModelServer
from dagc.protocol.extras import VISIT_AFTER
from tests.protocol.runs import Client

SIZE = 1000


def played(rounds, came=(0,)):
    """A server after so many rounds with ann and bob; cleo came to the first or to these, dora never."""
    server = ModelServer(Plan(), torch.zeros(SIZE))
    clients = {name: Client(server.plan, [SIZE]) for name in ("ann", "bob", "cleo", "dora")}
    for name in clients:
        server.join(name, 10)
    generator = torch.Generator().manual_seed(1)
    for round in range(rounds):
        uploads = []
        for name, order in server.orders(["ann", "bob"] + ["cleo"] * (round in came)).items():
            clients[name].replica.receive(server.download(name))
            upload = clients[name].uplink.upload(torch.randn(SIZE, generator=generator), order)
            uploads.append(server.read(name, upload.frame))
        server.advance(uploads, server.model - server.total(uploads))
    return server


@pytest.mark.parametrize(("away", "visits"), [(VISIT_AFTER, False), (VISIT_AFTER + 1, True)])
@pytest.mark.parametrize(("before", "often"), [(VISIT_AFTER, False), (VISIT_AFTER + 1, True)])
def test_a_client_that_was_away_for_longer_than_most_twice_visits(before, often, away, visits):
    orders = played(before + away, came=(0, before)).orders(["ann", "cleo"])
    assert (orders["ann"].visit, orders["cleo"].visit) == (False, often and visits)


def test_a_long_absence_alone_is_chance():
    """A visitor keeps nothing: one that came every round from now on would download the whole model twice."""
    server = played(10 * VISIT_AFTER)
    order = server.orders(["ann", "cleo"])["cleo"]
    assert not order.visit
    assert server.download("cleo").version == server.downlink.version


def test_a_client_that_was_never_there_is_not_away():
    assert not played(VISIT_AFTER + 1).orders(["ann", "dora"])["dora"].visit
