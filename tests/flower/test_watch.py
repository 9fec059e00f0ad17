"""An app that does not train on the model it is given is found out, and no other is suspected."""

import logging

import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from torch import nn

from dagc.flower import DataAware, compress
from tests.flower.apps import NODES, client_app, fed_avg, start, states, task
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

WORDS = "the app does not seem to train on the model that it is given"
KEEPS = "in context.state: if it starts from"


class Model(nn.Module):
    """A body and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


def keeping(names, called=str, since=1, **options):
    """An app that keeps some arrays in the context's state, `called` something there, and trains on from there."""
    plain, app = client_app(model=Model, mods=(), **options), ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        kept = context.state.array_records.get("kept", {})
        own = {name: kept[called(name)] for name in names if kept}
        message.content["arrays"] = ArrayRecord({**dict(message.content["arrays"].items()), **own})
        number = message.content["config"]["server-round"]
        reply = plain(message, context)
        if number >= since:
            arrays = {called(name): Array(reply.content["arrays"][name].numpy()) for name in names}
            context.state["kept"] = ArrayRecord(arrays)
        return reply

    return app


PLANS = [
    {"method": "dagc-r", "ratio": 0.05},
    {"method": "dagc-r", "ratio": 0.01, "values": "sign", "down": "same"},
    {"method": "thrifty", "bytes": 60},
    {"method": "dagc", "bytes": 200},
    {},
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("names", [("head.weight", "head.bias"), ("body.1.weight",)])
def test_arrays_that_the_app_keeps_itself_are_named_once(caplog, plan, names):
    with caplog.at_level(logging.WARNING, "dagc.flower"):
        start(DataAware(fed_avg(), **plan), LocalGrid(keeping(names), NODES), 25, model=Model)
    warnings = [record.getMessage() for record in caplog.records if WORDS in record.getMessage()]
    assert sorted(words.split(":")[1].strip() for words in warnings) == [f"partition-{part}" for part in range(NODES)]
    for words in warnings:
        assert all(name in names for name in words.partition("it returns ")[2].partition(" as it")[0].split(", "))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("steps", "rate"), [(2, 0.1), (20, 0.1), (5, 0.5), (1, 0.01)])
def test_an_app_that_trains_on_the_model_it_is_given_is_not_suspected(caplog, plan, steps, rate):
    app = client_app(model=Model, steps=steps, rate=rate)
    start(DataAware(fed_avg(), **plan), LocalGrid(app, NODES), 25, model=Model)
    assert WORDS not in caplog.text
    assert KEEPS not in caplog.text


def test_models_of_other_shapes_are_not_suspected(caplog):
    start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(), NODES), 60, model=task().build)
    assert WORDS not in caplog.text


def of_its_layer(name):
    """As in the `state_dict` of the layer alone, which is what Flower's advanced-pytorch keeps."""
    return name.rpartition(".")[2]


@pytest.mark.parametrize(("called", "since", "rounds"), [(str, 1, 1), (of_its_layer, 1, 3), (of_its_layer, 4, 4)])
def test_arrays_in_the_context_are_named_in_the_round_that_put_them_there(caplog, called, since, rounds):
    grid = LocalGrid(keeping(("head.weight", "head.bias"), called, since), NODES)
    start(DataAware(fed_avg()), grid, since - 1, model=Model)
    assert KEEPS not in caplog.text
    start(DataAware(fed_avg()), grid, rounds, model=Model)
    said = [record.getMessage() for record in caplog.records if KEEPS in record.getMessage()]
    assert sorted(words.partition(f" {KEEPS}")[0] for words in said) == [
        f"dagc: partition-{part}: the app keeps head.weight, head.bias" for part in range(NODES)
    ]


class Frozen(Model):
    """Only its head is trained."""

    def forward(self, x):
        return self.head(self.body(x).detach()) + 0 * self.body[1].weight.sum() + 0 * self.body[1].bias.sum()


@pytest.mark.parametrize("what", ["frozen", "received", "other numbers", "one entry"])
def test_what_else_an_app_keeps_in_the_context_is_not_suspected(caplog, what):
    """Arrays that it does not train, the model that it was sent, its momentum, a number."""
    plain, app = client_app(model=Frozen, mods=()), ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        received = dict(message.content["arrays"].items())
        reply = plain(message, context)
        trained = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        context.state["kept"] = ArrayRecord(
            {
                "frozen": {name: Array(trained[name]) for name in trained if name.startswith("body.")},
                "received": received,
                "other numbers": {name: Array(numbers - 1) for name, numbers in trained.items()},
                "one entry": {"head.bias": Array(trained["head.bias"][:1])},
            }[what]
        )
        return reply

    start(DataAware(fed_avg()), LocalGrid(app, NODES), 3, model=Frozen)
    assert KEEPS not in caplog.text
