"""A tensor of which more and more is left unsent is named once, and honest clients are left alone."""

import logging

import pytest
import torch

from dagc import Plan
from dagc.protocol import Order, Uplink
from dagc.protocol.growth import EVERY
from tests.helpers.states import copied

SHAPES = [(8, 8), (16,)]
SIZE = 80
SETTINGS = [{"method": "dagc"}, {"method": "dagc-r", "ratio": 0.05}]


def order(plan, round):
    compressor, amount = ("best", 40) if plan.method_spec.encodes else ("top-k", 4)
    return Order(round, amount, compressor, accepted=round - 1)


def train(plan, rounds, change, restarted=False):
    """Upload what `change` says in each round; every upload is accepted."""
    uplink = Uplink(plan.for_clients(), SHAPES)
    for round in range(1, rounds + 1):
        uplink.settle(round - 1)
        uplink.upload(list(torch.split(change(round, uplink), [64, 16])), order(plan, round))
        if restarted:
            state, uplink = copied(uplink), Uplink(plan.for_clients(), SHAPES)
            uplink.load_state_dict(state)
    return uplink


def learned(round):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(round))


@pytest.mark.parametrize("scale", [1e-6, 1.0])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["method"])
def test_a_tensor_whose_residual_keeps_growing_is_named_once(caplog, settings, restarted, scale):
    """The client keeps its second tensor, and does not start from the model: its change holds all rounds so far."""

    def change(round, uplink):
        new = learned(round)
        new[64:] = 50.0 * round
        new[:64] *= 0.1
        uplink.excluded = [slice(64, 80)]
        return scale * new

    plan = Plan(**settings).for_size(SIZE)
    with caplog.at_level(logging.WARNING, "dagc.protocol"):
        train(plan, 25 * EVERY, change, restarted)
    (record,) = caplog.records
    assert record.name == "dagc.protocol"
    assert "tensor 1 of shape (16,)" in record.getMessage()
    assert "tensor 0" not in record.getMessage()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings["method"])
@pytest.mark.parametrize("scale", [lambda round: 1.0, lambda round: 1 / round, lambda round: 0.97**round])
def test_honest_clients_are_left_alone(caplog, settings, scale):
    """Their updates may be random, drift, and become tiny."""
    plan = Plan(**settings).for_size(SIZE)
    drift = torch.linspace(-1, 1, SIZE)
    with caplog.at_level(logging.WARNING, "dagc.protocol"):
        train(plan, 20 * EVERY, lambda round, _: scale(round) * (learned(round) + drift))
    assert not caplog.records


def test_a_client_that_never_sends_is_named_but_a_quiet_tensor_is_not(caplog):
    plan = Plan(method="dagc-r", ratio=0.05).for_size(SIZE)
    uplink = Uplink(plan.for_clients(), SHAPES)
    with caplog.at_level(logging.WARNING, "dagc.protocol"):
        for round in range(1, 20 * EVERY):
            change = torch.ones(SIZE) * 1.01**round
            change[64:] = 0
            uplink.upload(change, Order(round, 0, accepted=round - 1))
    assert not caplog.records, "what is left is a hundred updates, since these grow as fast"
