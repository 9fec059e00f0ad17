"""Server momentum: broadcasts carry enough of what the model has moved, whichever engine trains."""

import warnings

import pytest
import torch

pytest.importorskip("flwr")

from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Clipped
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from dagc import BudgetWarning
from dagc.flower import DataAware
from dagc.policies import Plan
from dagc.protocol import ModelServer
from dagc.training import Config, Federation
from tests.flower.apps import NODES, client_app, start
from tests.helpers.local_grid import LocalGrid

ROUNDS = 12  # of which the first eight broadcasts may be long
SHARE = 0.4


def moved_at_random(server):
    """The share that each broadcast carries of a model all of whose entries move."""
    shares = []
    for number in range(ROUNDS):
        step = torch.randn(server.size, generator=torch.Generator().manual_seed(number))
        server.advance([], server.target + step)
        shares.append(server.downlink.carried)
    return shares


@pytest.mark.parametrize("momentum", [False, True])
def test_broadcasts_carry_enough_for_momentum(momentum):
    shares = moved_at_random(ModelServer(Plan(), torch.zeros(500_000), momentum=momentum))
    assert (min(shares) >= 0.95 * SHARE) == momentum  # the encoder meets a share nearly


@pytest.mark.parametrize(
    "settings", [{"bytes": 100}, {"method": "thrifty"}, {"method": "thrifty", "frames": "compact"}], ids=str
)
def test_a_budget_that_starves_momentum_holds_and_warns_once(settings):
    server = ModelServer(Plan(**settings), torch.zeros(20_000), momentum=True)
    with pytest.warns(BudgetWarning, match="less than 40 % of what its model has moved") as caught:
        shares = moved_at_random(server)
    assert len(caught) == 1
    assert max(shares) < SHARE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved_at_random(ModelServer(Plan(**settings), torch.zeros(20_000)))


@pytest.mark.parametrize("values", ["fp32", "int8", "sign"])
def test_the_share_that_entries_carry_is_known(values):
    plan = Plan(method="top-k", ratio=0.1, values=values, down="same")
    server = ModelServer(plan, torch.zeros(400))
    before = torch.randn(400, generator=torch.Generator().manual_seed(1))
    server.advance([], before.clone())
    left = before - server.model
    assert server.downlink.carried == pytest.approx(1 - float(left.square().sum() / before.square().sum()), abs=1e-6)


def local_server(**settings):
    return Federation(Config(task="logistic@digits", rounds=3, **settings)).server


@pytest.mark.parametrize(
    ("settings", "momentum"),
    [
        ({}, False),
        ({"momentum": 0.9}, True),
        ({"optimizer": "Adam"}, True),
        ({"optimizer": "Adagrad"}, False),
        ({"momentum": 0.9, "bytes": 900}, False),
    ],
    ids=str,
)
def test_the_local_engine_knows_its_optimizer(settings, momentum):
    assert (SHARE in dict(local_server(**settings).extras.broadcast(version=9))) == momentum


AVERAGE = {"fraction_evaluate": 0.0}
STRATEGIES = {
    "FedAvg": (FedAvg(**AVERAGE), False),
    "FedAvgM": (FedAvgM(server_momentum=0.9, **AVERAGE), True),
    "FedAvgM without": (FedAvgM(server_learning_rate=0.5, **AVERAGE), False),
    "FedAdam": (FedAdam(**AVERAGE), True),
    "FedYogi": (FedYogi(**AVERAGE), True),
    "FedAdagrad": (FedAdagrad(**AVERAGE), False),
    "wrapped": (Clipped(FedAvgM(server_momentum=0.9, **AVERAGE), 0.0, 10.0, NODES), True),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("budget", [{}, {"bytes": 900}], ids=str)
def test_flower_knows_its_strategies(name, budget, tmp_path, monkeypatch):
    monkeypatch.setenv("DAGC_STATE", str(tmp_path))
    inner, momentum = STRATEGIES[name]
    strategy = DataAware(inner, **budget)
    start(strategy, LocalGrid(client_app(), NODES), rounds=1)
    assert (SHARE in dict(strategy._run.server.extras.broadcast(version=9))) == (momentum and not budget)


def test_flower_warns_of_a_budget_that_starves_momentum(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGC_STATE", str(tmp_path))
    strategy = DataAware(FedAvgM(server_momentum=0.9, **AVERAGE), bytes=100, down=20)
    with pytest.warns(BudgetWarning, match="the server has momentum"):
        start(strategy, LocalGrid(client_app(), NODES), rounds=ROUNDS)
