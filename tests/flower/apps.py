"""Apps, servers and messages that the tests of `dagc.flower` have in common."""

import contextlib
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import dagc
from dagc.data import Batches, load, make_partition
from dagc.errors import MalformedPayload
from dagc.flower import compress
from dagc.flower import node as node_files
from dagc.flower.messages import RECORD, record_of
from dagc.models import build

NODES = 4


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    """Every test has its own place for states, and computes on one thread, as the local engine does."""
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.fsync", lambda handle: None)  # nobody pulls the plug here, and there are many files
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path / "state"
    torch.set_num_threads(threads)


@cache
def task(name="logistic", seed=0):
    """Digits on four unequal nodes."""
    digits = load("digits")
    partition = make_partition(f"skewed:clients={NODES},skew_ratio=10,label_alpha=0.5", digits, seed)
    return SimpleNamespace(
        data=digits,
        sizes=[int(size) for size in partition.sizes],
        batches=Batches(digits, partition, 32, seed),
        build=lambda: build(name, digits, seed=seed),
    )


def client_app(about=None, steps=2, rate=0.1, mods=(compress,), model=None, seen=None):
    """An app as one finds them: it loads the arrays, takes some steps, returns arrays and metrics."""
    about = about or task()
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        own = (model or about.build)()
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        before = flat(message.content["arrays"])
        number, part = int(message.content["config"]["server-round"]) - 1, int(context.node_config["partition-id"])
        for step in range(steps):
            x, y = about.batches.batch(part, number * steps + step)
            loss = cross_entropy(own(x), y)
            parameters = list(own.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.data.add_(gradient, alpha=-rate)
        arrays = ArrayRecord(own.state_dict())
        if seen is not None:
            seen.append((part, before, before - flat(arrays)))
        metrics = MetricRecord({"train_loss": float(loss.detach()), "num-examples": about.sizes[part]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        if seen is not None:
            seen.append(("evaluate", flat(message.content["arrays"]), None))
        metrics = MetricRecord({"eval_acc": 0.5, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def flat(arrays):
    """The floats in some arrays, as one vector."""
    return torch.cat([torch.from_numpy(a.numpy()).flatten().float() for a in arrays.values() if "float" in a.dtype])


def start(strategy, grid, rounds, model=None, **options):
    first = (model or task().build)()
    return strategy.start(grid, ArrayRecord(first.state_dict()), num_rounds=rounds, **options)


def fed_avg(**options):
    return FedAvg(**{"fraction_evaluate": 0.0, **options})


def kept_by(state, run, part):
    """What a node keeps."""
    return node_files.read_node(state / "nodes" / run / f"partition-{part}.safetensors")


# What goes whole


class WithBatchNorm(nn.Module):
    """Buffers, an integer and a float64 among the arrays."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 10))
        self.register_buffer("precise", torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return self.body(x)


# Nothing is lost


class Losing:
    """A network that loses replies, and a record of what reached the server of each node, by name."""

    def __init__(self, grid, chance, seed=3):
        self.random, self.chance = np.random.default_rng(seed), chance
        self.delivered = {}
        grid.on_reply = self

    def __call__(self, reply):
        record = reply.content.config_records.get(RECORD) if reply.has_content() else None
        if record is None or record["kind"] != "train":
            return [reply]
        if self.random.random() < self.chance:
            return []
        payload = reply.content["arrays"][RECORD].data
        if payload:  # a node that is to send nothing sends nothing
            size = len(flat(ArrayRecord(task().build().state_dict())))
            name, dense = record["name"], dagc.decode(payload, size=size, round=record["round"]).dense().double()
            self.delivered[name] = self.delivered.get(name, 0.0) + dense
        return [reply]


def taken_of(strategy):
    """The round of the last upload that the server took of each node, by name."""
    return {member.name: member.accepted_round for member in strategy._run.server.members.values()}


def computed_by(seen, part):
    """The sum of all that a node learned."""
    return sum(change.double() for who, _, change in seen if who == part)


def books_balance_of(kept, computed, delivered, taken):
    """Of one client: delivered + residual + an upload that was not taken = everything computed."""
    left = kept.uplink.feedback.residual.double()
    if kept.uplink.pending is not None and taken < kept.uplink.sent_round:
        left = left + kept.uplink.pending.dense().double()
    error = (delivered + left - computed).abs().max() / computed.abs().max()
    assert error < 1e-5
    assert computed.abs().sum() > 1


def books_balance(states, run, seen, delivered, taken):
    """Of all clients."""
    for part in range(NODES):
        name = f"partition-{part}"
        books_balance_of(kept_by(states, run, part), computed_by(seen, part), delivered[name], taken[name])


class Killed(Exception):
    """As the server dies."""


# Rubbish


def with_payload(change):
    def spoil(reply):
        payload = reply.content["arrays"][RECORD].data
        reply.content["arrays"] = record_of(change(payload))
        return [reply]

    return spoil


def with_answer(**fields):
    def spoil(reply):
        answer = dict(reply.content[RECORD])
        answer.update(fields)
        reply.content[RECORD] = ConfigRecord(answer)
        return [reply]

    return spoil


def with_metrics(**fields):
    def spoil(reply):
        reply.content["metrics"] = MetricRecord({**dict(reply.content["metrics"]), **fields})
        return [reply]

    return spoil


def without(name):
    def spoil(reply):
        del reply.content[name]
        return [reply]

    return spoil


def read_frame(payload):
    """What it holds, and its round, which only the checksum knows."""
    size = sum(parameter.numel() for parameter in task().build().parameters())
    for round in range(20):
        with contextlib.suppress(MalformedPayload):
            return dagc.decode(payload, size, round=round), round
    raise AssertionError("a frame of none of the first rounds")


def nan_frame(payload):
    sparse, round = read_frame(payload)
    bad = dagc.Sparse.trusted(sparse.size, sparse.indices, np.full(len(sparse), np.nan, np.float32))
    return dagc.encode(bad, round=round)


def again(payload, **changes):
    sparse, round = read_frame(payload)
    size, entries = changes.get("size", sparse.size), changes.get("entries", len(sparse))
    new = dagc.Sparse(size, np.arange(entries), np.ones(entries, np.float32))
    return dagc.encode(new, changes.get("values", "fp32"), round=changes.get("round", round))


def whole_arrays(reply):
    reply.content["arrays"] = ArrayRecord(task().build().state_dict())
    return [reply]
