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


class Model(nn.Module):
    """A body and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


def keeping(names, **options):
    """An app that keeps some arrays in the context's state, and trains on from there."""
    plain, app = client_app(model=Model, mods=(), **options), ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        kept = context.state.array_records.get("kept", {})
        arrays = {**dict(message.content["arrays"].items()), **{name: kept[name] for name in kept}}
        message.content["arrays"] = ArrayRecord(arrays)
        reply = plain(message, context)
        context.state["kept"] = ArrayRecord({name: Array(reply.content["arrays"][name].numpy()) for name in names})
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


def test_models_of_other_shapes_are_not_suspected(caplog):
    start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(), NODES), 60, model=task().build)
    assert WORDS not in caplog.text
