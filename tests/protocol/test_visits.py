"""Who visits: a client that was away for long gets a rounded model, if catching up exactly would take more bytes."""

import pytest
import torch

from dagc import Plan
from dagc.protocol import ModelServer
from dagc.protocol.extras import VISIT_AFTER
from tests.protocol.runs import Client

SIZE = 1000


def played(rounds):
    """A server after so many rounds with ann and bob; cleo came to the first, dora never."""
    server = ModelServer(Plan(), torch.zeros(SIZE))
    clients = {name: Client(server.plan, [SIZE]) for name in ("ann", "bob", "cleo", "dora")}
    for name in clients:
        server.join(name, 10)
    generator = torch.Generator().manual_seed(1)
    for round in range(rounds):
        uploads = []
        for name, order in server.orders(["ann", "bob"] + ["cleo"] * (round == 0)).items():
            clients[name].replica.receive(server.download(name))
            upload = clients[name].uplink.upload(torch.randn(SIZE, generator=generator), order)
            uploads.append(server.read(name, upload.frame))
        server.advance(uploads, server.model - server.total(uploads))
    return server


@pytest.mark.parametrize(("away", "visits"), [(VISIT_AFTER, False), (VISIT_AFTER + 1, True)])
def test_a_client_that_was_away_for_longer_than_most_visits(away, visits):
    orders = played(away).orders(["ann", "cleo"])  # cleo's last round was the first
    assert (orders["ann"].visit, orders["cleo"].visit) == (False, visits)


def test_a_client_that_was_never_there_is_not_away():
    assert not played(VISIT_AFTER + 1).orders(["ann", "dora"])["dora"].visit
