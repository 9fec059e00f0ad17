"""Flower in this process: equal to the local engine to the bit, nothing lost, and deaf to rubbish."""

import contextlib
import difflib
import errno
import json
import logging
import os
import sys
import tomllib
import tracemalloc
from copy import copy
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMedian, FedYogi

import dagc
from dagc.data import Batches, load, make_partition
from dagc.errors import DagcError, InvalidInput, MalformedPayload
from dagc.flower import DataAware, compress, compress_with
from dagc.flower import node as node_files
from dagc.flower.layout import Layout
from dagc.flower.messages import RECORD, VERSION, Answer, record_of
from dagc.folder import read_metrics
from dagc.models import build
from dagc.policies import POLICIES, Plan
from dagc.state import dump_state, save_state
from dagc.training import Config, Federation
from tests.helpers.local_grid import LocalGrid

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


# The same training as in the local engine

BUDGETS = {"ratio": {"ratio": 0.02}, "threshold": {"threshold": 0.01}, "bytes": {"bytes": 225}}


def budget_of(method):
    return BUDGETS[POLICIES[method].budgets[0]] if POLICIES[method].budgets else {}


@pytest.mark.parametrize(
    ("method", "values", "budget", "options"),
    [
        *((method, "fp32", budget_of(method), {}) for method in POLICIES if method != "accordion"),
        ("accordion", "fp32", BUDGETS["ratio"], {"interval": 2.0, "change": 0.05}),
        *(("dagc-r", values, BUDGETS["ratio"], {}) for values in ("int8", "sign", "auto")),
        ("power", "int8", BUDGETS["bytes"], {}),
    ],
)
def test_model_residuals_and_bytes_are_those_of_the_local_engine(states, method, values, budget, options):
    rounds = 9
    grid = LocalGrid(client_app(), NODES)
    config = Config(
        task="logistic@digits", method=method, values=values, options=options, clients=NODES, skew_ratio=10,
        rounds=rounds, local_steps=2, threads=1, **budget,
    )  # fmt: skip
    engine = Federation(config)
    plan = engine.server.plan if values != "auto" else Plan(method=method, values=values, options=options, **budget)
    result = start(DataAware(fed_avg(), plan.replaced(seed=0), run="one"), grid, rounds)
    expected = [engine.step() for _ in range(rounds)]
    assert torch.equal(flat(result.arrays), engine.vector)
    if engine.server.plan.downward() is None:
        assert torch.equal(engine.vector, engine.optimizer.vector.detach())
    for name, uplink in engine.uplinks.items():
        assert torch.equal(kept_by(states, "one", name).uplink.feedback.residual, uplink.feedback.residual)
    lines = read_metrics(states / "runs" / "one")
    assert [line["up"] for line in lines] == [one.up for one in expected]
    assert [line["down"] for line in lines[1:]] == [one.down for one in expected[1:]]
    assert [line["entries"] for line in lines] == [one.entries for one in expected]


def test_what_nodes_train_on_is_the_servers_model_bit_for_bit_and_is_downloaded_whole_only_once(states):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    strategy = DataAware(fed_avg(fraction_train=0.5), method="dagc-r", ratio=0.02, run="half")
    models = [flat(ArrayRecord(task().build().state_dict()))]
    start(strategy, grid, 12, evaluate_fn=lambda number, arrays: (number and models.append(flat(arrays))) or None)
    assert len(seen) == 24
    for number, (_, before, _) in enumerate(seen):
        assert torch.equal(before, models[number // 2])
    assert len({part for part, _, _ in seen}) == NODES
    whole = len(models[0]) * 4
    lines = read_metrics(states / "runs" / "half")
    assert sum(line["down"] for line in lines) < NODES * (whole + 100) + 12 * whole / 2
    assert sum(line["down"] > whole for line in lines) <= NODES


def test_those_who_evaluate_get_the_new_model_in_few_bytes_too(states):
    seen = []
    strategy = DataAware(FedAvg(), ratio=0.02, run="evaluated")
    result = start(strategy, LocalGrid(client_app(seen=seen), NODES), 3)
    last = [before for who, before, _ in seen if who == "evaluate"][-NODES:]
    assert all(torch.equal(model, flat(result.arrays)) for model in last)
    lines = read_metrics(states / "runs" / "evaluated")
    assert [line["score"] for line in lines] == [0.5] * 3
    assert lines[-1]["down"] < 2_000


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


@pytest.mark.parametrize("inner", [fed_avg, lambda: FedMedian(fraction_evaluate=0.0)])
def test_batch_norm_goes_whole_and_stays_sound(inner):
    grid = LocalGrid(client_app(model=WithBatchNorm), NODES)
    start(DataAware(inner(), method="dagc-r", ratio=0.1, values="sign", run="norm"), grid, 7, model=WithBatchNorm)
    strategy = DataAware(inner(), method="dagc-r", ratio=0.1, values="sign", run="norm")
    arrays = start(strategy, grid, 15, model=WithBatchNorm).arrays
    state = arrays.to_torch_state_dict()
    assert state["body.2.running_var"].min() > 0
    assert state["body.2.num_batches_tracked"] == 30
    assert state["body.2.num_batches_tracked"].dtype == torch.int64
    assert state["precise"].dtype == torch.float64
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_arrays_can_be_kept_whole_by_name():
    arrays = ArrayRecord(nn.Linear(3, 2).state_dict())
    assert Layout.of(arrays).size == 8
    assert Layout.of(arrays, ["bias"]).size == 6
    assert Layout.read(Layout.of(arrays, ["bias"]).text).pieces == Layout.of(arrays, ["bias"]).pieces
    with pytest.raises(InvalidInput, match="nothing to compress"):
        Layout.of(arrays, ["*"])
    with pytest.raises(MalformedPayload):
        Layout.read('[["a", [-1], "object", 0]]')


@pytest.mark.parametrize("spoil", ["short", "bits", "nan"])
def test_arrays_that_go_whole_are_checked(spoil):
    layout = Layout.of(ArrayRecord(nn.BatchNorm1d(3).state_dict()))
    model = layout.split(ArrayRecord(nn.BatchNorm1d(3).state_dict()))
    if spoil == "nan":
        model.whole[0][0] = np.nan
    payload = layout.pack(b"frame", model.whole)
    payload = {"short": payload[-20:], "bits": payload[:-6] + b"xx" + payload[-4:], "nan": payload}[spoil]
    with pytest.raises(MalformedPayload):
        layout.unpack(payload)


# Other strategies


@pytest.mark.parametrize(
    "make",
    [fed_avg, lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.5), lambda: FedAdam(fraction_evaluate=0.0),
     lambda: FedMedian(fraction_evaluate=0.0)],
)  # fmt: skip
def test_without_compression_any_strategy_ends_where_it_would_without_us(make):
    plain = start(make(), LocalGrid(client_app(mods=()), NODES), 4)
    ours = start(DataAware(make(), method="none"), LocalGrid(client_app(), NODES), 4)
    assert torch.allclose(flat(ours.arrays), flat(plain.arrays), rtol=1e-5, atol=1e-6)
    for number in range(1, 5):
        got, expected = ours.train_metrics_clientapp[number], plain.train_metrics_clientapp[number]
        assert got["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)


def test_a_zero_that_loses_its_sign_on_the_server_costs_nobody_a_round(states, caplog):
    def negative_zeros():
        model = task().build()
        for parameter in model.parameters():
            parameter.data.fill_(-0.0)
        return model

    strategy = DataAware(FedAdam(fraction_evaluate=0.0), ratio=0.02, run="zeros")
    start(strategy, LocalGrid(client_app(), NODES), 4, model=negative_zeros)
    assert [line["present"] for line in read_metrics(states / "runs" / "zeros")] == [NODES] * 4
    assert "out of sync" not in caplog.text


def test_the_mod_lets_other_servers_pass():
    plain = start(fed_avg(), LocalGrid(client_app(mods=()), NODES), 2)
    same = start(fed_avg(), LocalGrid(client_app(), NODES), 2)
    assert torch.allclose(flat(same.arrays), flat(plain.arrays), atol=1e-6)  # FedAvg adds up in any order


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
    """The sum of all that a node learnt."""
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


@pytest.mark.parametrize("down", ["lossless", "same", 60])
@pytest.mark.parametrize(("method", "values"), [("dagc-r", "fp32"), ("dagc-r", "int8"), ("top-k", "sign")])
def test_with_a_third_of_the_replies_lost_nothing_is(states, method, values, down):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.3)
    strategy = DataAware(fed_avg(), ratio=0.02, method=method, values=values, down=down, run="lossy")
    result = start(strategy, grid, 40)
    assert sum(line["present"] for line in read_metrics(states / "runs" / "lossy")) < 0.8 * 40 * NODES
    books_balance(states, "lossy", seen, losing.delivered, taken_of(strategy))
    assert flat(result.arrays).isfinite().all()


@pytest.mark.parametrize("down", ["lossless", "same", 60])
def test_nodes_that_miss_1_to_50_rounds_are_brought_up_to_date_and_nothing_is_lost(states, down):
    """They train on the bits that the others have, whatever they missed."""
    seen, missing = [], {1: range(2, 3), 2: range(4, 14), 3: range(6, 56)}

    class Some(LocalGrid):
        def get_node_ids(self):
            return [node for node in self.contexts if number not in missing.get(node - 1, ())]

    class Counting(FedAvg):
        def configure_train(self, server_round, *rest):
            nonlocal number
            number = server_round
            return super().configure_train(server_round, *rest)

    number, models = 0, [flat(ArrayRecord(task().build().state_dict()))]
    grid = Some(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)
    inner = Counting(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = DataAware(
        inner,
        method="dagc-r",
        ratio=0.02,
        values="sign",
        frames="compact",
        run="away",
        down=down,
        strategy_state=[],
    )
    start(strategy, grid, 58, evaluate_fn=lambda t, arrays: (t and models.append(flat(arrays))) or None)
    lines = read_metrics(states / "runs" / "away")
    assert [line["present"] for line in lines] == [
        sum(t not in missing.get(part, ()) for part in range(NODES)) for t in range(1, 59)
    ]
    at = [t for t, line in enumerate(lines) for _ in range(line["present"])]
    assert all(torch.equal(before, models[t]) for t, (_, before, _) in zip(at, seen, strict=True))
    books_balance(states, "away", seen, losing.delivered, taken_of(strategy))
    whole = 4 * len(models[0])
    assert all(line["down"] < whole + NODES * 600 for line in lines[1:])


class Killed(Exception):
    """As the server dies."""


@pytest.mark.parametrize("down", ["lossless", 60])
@pytest.mark.parametrize(("done", "at"), [(3, 0), (3, 1), (3, 3), (0, 3)])
def test_a_run_is_resumed_after_the_server_was_killed_and_nothing_is_lost(states, done, at, down):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing, trained = Losing(grid, 0.0), 0

    def dies(reply):
        nonlocal trained
        if reply.content.config_records[RECORD]["kind"] == "train":
            trained += 1
            if trained > done * NODES + at:
                raise Killed
            if trained > done * NODES:  # what arrives in this round is never taken
                return [reply]
        return losing(reply)

    grid.on_reply = dies
    with pytest.raises(Killed):
        start(DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="killed", down=down), grid, 8)
    restarted = LocalGrid(client_app(seen=seen), NODES)
    restarted.on_reply = losing
    again = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="killed", down=down)
    result = start(again, restarted, 8)
    assert [line["round"] for line in read_metrics(states / "runs" / "killed")] == list(range(1, 9))
    assert sorted(result.train_metrics_clientapp) == list(range(done + 1, 9))
    books_balance(states, "killed", seen, losing.delivered, taken_of(again))


@pytest.mark.parametrize("down", ["lossless", 60])
@pytest.mark.parametrize("method", ["dagc-r", "random-k", "accordion"])
def test_a_run_that_is_resumed_ends_with_the_same_bits(states, method, down):
    def run(name, rounds, nodes=NODES):
        strategy = DataAware(fed_avg(), ratio=0.02, method=method, run=name, down=down)
        return flat(start(strategy, LocalGrid(client_app(), nodes), rounds).arrays)

    straight = run("straight", 7)
    run("parts", 3)
    run("parts", 4)
    assert torch.equal(run("parts", 7), straight)
    assert torch.equal(run("parts", 7), straight)  # nothing left to do
    straight, parts = (read_metrics(states / "runs" / name) for name in ("straight", "parts"))
    assert [line["up"] for line in parts] == [line["up"] for line in straight]
    assert [line["down"] for line in parts] == [line["down"] for line in straight]


def test_a_run_that_starts_over_uses_nothing_of_the_one_before(states, tmp_path):
    first = flat(start(DataAware(fed_avg(), ratio=0.02, run="again"), LocalGrid(client_app(), NODES), 3).arrays)
    (states / "runs").rename(tmp_path / "gone")
    second = flat(start(DataAware(fed_avg(), ratio=0.02, run="again"), LocalGrid(client_app(), NODES), 3).arrays)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"bytes": 225}, {"bytes": 225.0}),
        ({"bytes": np.float32(225), "down": "60"}, {"bytes": 225, "down": 60}),
        ({"ratio": 1, "caps": {"partition-0": 1.0}}, {"ratio": 1.0, "caps": {"partition-0": 1}}),
        ({"ratio": 0.02, "norm_bound": 1e300}, {"ratio": np.float64(0.02), "norm_bound": 1e300}),
    ],
)
def test_numbers_that_are_written_in_another_way_are_the_same_run(states, settings, same):
    for given, rounds in ((settings, 1), (same, 2), (settings, 3)):
        start(DataAware(fed_avg(), run="numbers", **given), LocalGrid(client_app(), NODES), rounds)
    assert len(read_metrics(states / "runs" / "numbers")) == 3


class Apart(FedAvg):
    """Nodes 1 and 2 train, in the last rounds node 3, too; node 4 only evaluates, if anybody does."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        return [one for one in messages if one.metadata.dst_node_id < (4 if server_round > 8 else 3)]

    def configure_evaluate(self, server_round, arrays, config, grid):
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        return [one for one in messages if one.metadata.dst_node_id == 4]


def test_who_only_evaluates_costs_nobody_else_a_byte_and_who_comes_later_hears_what_the_others_hear(states, caplog):
    def down(name, evaluated):
        grid, sent = LocalGrid(client_app(), NODES), []
        usual = grid.send_and_receive

        def watch(messages, **options):
            messages = list(messages)
            sent.extend(
                (one.metadata.dst_node_id, one.content["arrays"][RECORD].data)
                for one in messages
                if one.metadata.dst_node_id < 4
            )
            return usual(messages, **options)

        grid.send_and_receive = watch
        inner = Apart(fraction_evaluate=evaluated, min_train_nodes=1, min_evaluate_nodes=1)
        settings = {"method": "thrifty", "bytes": 40, "values": "sign", "frames": "coded", "down": "same"}
        start(DataAware(inner, run=name, strategy_state=[], **settings), grid, 14)
        assert [line["present"] for line in read_metrics(states / "runs" / name)] == [2] * 8 + [3] * 6
        return sorted(sent)  # nodes are asked in any order

    assert down("alone", 0.0) == down("watched", 1.0)
    assert "is left out" not in caplog.text


def test_a_checkpoint_of_another_model_is_refused(states):
    start(DataAware(fed_avg(), ratio=0.02, run="mine"), LocalGrid(client_app(), NODES), 1)
    other = DataAware(fed_avg(), ratio=0.02, run="mine")
    with pytest.raises(InvalidInput, match="choose another run name"):
        start(other, LocalGrid(client_app(), NODES), 2, model=lambda: nn.Linear(20, 20))


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


RUBBISH = {
    "bytes": with_payload(lambda payload: b"\x00" * 50),
    "nothing": with_payload(lambda payload: b""),
    "cut": with_payload(lambda payload: payload[:-3]),
    "flipped": with_payload(lambda payload: payload[:20] + bytes([payload[20] ^ 1]) + payload[21:]),
    "NaN": with_payload(nan_frame),
    "too many entries": with_payload(lambda payload: again(payload, entries=300)),
    "another size": with_payload(lambda payload: again(payload, size=10, entries=3)),
    "another round": with_payload(lambda payload: again(payload, round=1)),
    "another codec": with_payload(lambda payload: again(payload, values="int8", entries=3)),
    "whole arrays": whole_arrays,
    "no payload": without("arrays"),
    "no record": without(RECORD),
    "no metrics": without("metrics"),
    "answer of another round": with_answer(round=1),
    "another version": with_answer(version=99),
    "unknown field": with_answer(surprise=1),
    "wrong type": with_answer(examples="many"),
    "negative examples": with_answer(examples=-5.0),
    "infinite examples": with_answer(examples=float("inf")),
    "infinite norm": with_answer(norm=float("inf")),
    "other examples than its metrics": with_answer(examples=1e9),
    "an odd metric": with_metrics(surprise=1.0),
    "a list for a number": with_metrics(train_loss=[1.0, 2.0]),
}  # fmt: skip


def test_the_log_is_under_dagc_and_once_among_flowers_own_lines(caplog):
    theirs, ours = [], logging.getLogger("flwr")
    handler = logging.Handler(logging.INFO)
    handler.emit = theirs.append
    ours.addHandler(handler)
    level = ours.level
    try:
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(client_app(), NODES), 1)
        ours.setLevel(logging.ERROR)
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(client_app(), NODES), 1)
    finally:
        ours.setLevel(level)
        ours.removeHandler(handler)
    said = [record for record in caplog.records if "dagc: round 1: 4 of 4 nodes" in record.getMessage()]
    assert [record.name for record in said] == ["dagc.flower"] * 2
    assert [record for record in theirs if record in said] == said[:1]  # the second time, Flower was to be quiet


@pytest.mark.parametrize(("settings", "named"), [({}, True), ({"ratio": 0.02}, False)])
def test_the_log_names_the_budget_that_nobody_has_set(caplog, settings, named):
    with caplog.at_level(logging.INFO, "dagc.flower"):
        start(DataAware(fed_avg(), **settings), LocalGrid(client_app(), NODES), 1)
    assert ("by default 65 bytes per node and round" in caplog.text) == named


@pytest.mark.parametrize("kind", RUBBISH)
def test_a_node_that_sends_rubbish_is_left_out_of_that_round_by_name(states, caplog, kind):
    grid = LocalGrid(client_app(), NODES)
    replies = 0

    def spoil(reply):
        nonlocal replies
        record = reply.content.config_records[RECORD]
        if (record["name"], record["kind"], record["round"]) == ("partition-2", "train", 3):
            replies += 1
            return RUBBISH[kind](reply)
        return [reply]

    grid.on_reply = spoil
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="rubbish")
    with caplog.at_level(logging.WARNING, "dagc.flower"):
        result = start(strategy, grid, 5)
    assert replies == 1
    warnings = [record.getMessage() for record in caplog.records if record.name == "dagc.flower"]
    assert len(warnings) == 1
    assert warnings[0].startswith("dagc: round 3: partition-2 (node 3) is left out: ")
    assert [line["present"] for line in read_metrics(states / "runs" / "rubbish")] == [4, 4, 3, 4, 4]
    assert flat(result.arrays).isfinite().all()
    # As if that reply had been lost: what it held went back to the node's residual and came later.
    silent = LocalGrid(client_app(), NODES)
    silent.on_reply = lambda reply: (
        [] if (about := reply.content[RECORD])["name"] == "partition-2" and about["round"] == 3 else [reply]
    )
    assert torch.equal(
        flat(start(DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="silent"), silent, 5).arrays),
        flat(result.arrays),
    )


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 200, 7])
def test_a_node_with_a_strange_name_is_not_met(states, caplog, name):
    grid = LocalGrid(client_app(), NODES)
    grid.on_reply = lambda reply: (
        with_answer(name=name)(reply) if reply.content[RECORD]["name"] == "partition-2" else [reply]
    )
    start(DataAware(fed_avg(), ratio=0.02, run="strange"), grid, 1)
    assert "round 1: node 3 is left out" in caplog.text
    assert read_metrics(states / "runs" / "strange")[0]["present"] == 3


def test_replies_that_come_twice_or_from_an_earlier_round_change_nothing(caplog):
    def run(on_reply):
        grid = LocalGrid(client_app(), NODES)
        if on_reply:
            grid.on_reply = on_reply
        return flat(start(DataAware(fed_avg(), ratio=0.02), grid, 4).arrays)

    earlier = []

    def twice_and_late(reply):
        earlier.append(reply)
        copy = Message(RecordDict(dict(reply.content.items())), metadata=reply.metadata)
        return [reply, copy, *earlier[-6:-5]]

    assert torch.equal(run(None), run(twice_and_late))
    assert "a second or late reply of node 2 does not count" in caplog.text


def test_of_two_nodes_with_one_name_one_is_left_out(caplog):
    grid = LocalGrid(client_app(), NODES, node_config={})
    grid.contexts[4].node_config["partition-id"] = 1
    start(DataAware(fed_avg(), ratio=0.02), grid, 2)
    assert "node 4 is left out: it says it is partition-1, and so does node 2" in caplog.text


class InTurn(FedAvg):
    """Samples nodes 1 and 2, then 1 and 4, and so on."""

    def configure_train(self, server_round, arrays, config, grid):
        chosen = {1, 2} if server_round % 2 else {1, 4}
        messages = super().configure_train(server_round, arrays, config, grid)
        return [message for message in messages if message.metadata.dst_node_id in chosen]


def test_a_name_belongs_to_its_node_while_that_lives(states, tmp_path, caplog):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    for node in (2, 4):
        grid.contexts[node].node_config |= {"dagc-name": "twin", "dagc-state": str(tmp_path / f"disk-{node}")}
    losing = Losing(grid, 0.0)
    strategy = DataAware(InTurn(fraction_evaluate=0.0), method="dagc-r", ratio=0.02, run="twins", strategy_state=[])
    start(strategy, grid, 6)
    assert caplog.text.count("node 4 is left out: it says it is name-twin, and so does node 2") == 3
    assert [line["present"] for line in read_metrics(states / "runs" / "twins")] == [2, 1] * 3
    own, other = (
        node_files.read_node(tmp_path / f"disk-{n}" / "nodes" / "twins" / "name-twin.safetensors") for n in (2, 4)
    )
    assert other.uplink.sent_round == 0
    delivered = losing.delivered["name-twin"]
    books_balance_of(own, computed_by(seen, 1), delivered, taken_of(strategy)["name-twin"])


def test_a_known_node_that_renames_itself_is_left_out_and_named(states, caplog):
    grid = LocalGrid(client_app(), NODES)

    def rename(number, arrays):
        if number == 2:
            grid.contexts[3].node_config["dagc-name"] = "berlin"

    strategy = DataAware(fed_avg(), ratio=0.02, run="renamed")
    start(strategy, grid, 5, evaluate_fn=rename)
    assert [line["present"] for line in read_metrics(states / "runs" / "renamed")] == [4, 4, 3, 3, 3]
    assert "round 4: partition-2 (node 3) is left out: it calls itself 'name-berlin' now" in caplog.text
    assert set(taken_of(strategy)) == {f"partition-{part}" for part in range(NODES)}


def test_a_node_that_first_reports_no_examples_trains_later_by_its_new_claim(states, caplog):
    seen = []
    plain = client_app(mods=(), seen=seen)
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        if context.node_config["partition-id"] == 1 and message.content["config"]["server-round"] == 1:
            reply.content["metrics"]["num-examples"] = 0
        return reply

    grid = LocalGrid(app, NODES)
    losing = Losing(grid, 0.0)
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="later")
    start(strategy, grid, 5)
    assert "round 1: partition-1 (node 2) is left out: it has trained on no examples" in caplog.text
    assert [line["present"] for line in read_metrics(states / "runs" / "later")] == [3, 4, 4, 4, 4]
    assert strategy._run.server.members["partition-1"].examples == task().sizes[1]
    books_balance(states, "later", seen, losing.delivered, taken_of(strategy))


def test_a_node_that_is_left_out_for_odd_metrics_does_not_keep_its_new_claim(caplog):
    grid = LocalGrid(client_app(), NODES)

    def claim(reply):
        about = reply.content[RECORD]
        if (about["name"], about["kind"], about["round"]) == ("partition-2", "train", 3):
            with_answer(examples=9e9)(reply)
            with_metrics(**{"num-examples": 9e9, "surprise": 1.0})(reply)
        return [reply]

    grid.on_reply = claim
    strategy = DataAware(fed_avg(), ratio=0.02)
    start(strategy, grid, 3)
    assert "round 3: partition-2 (node 3) is left out: its metrics differ from most" in caplog.text
    assert strategy._run.server.members["partition-2"].examples == task().sizes[2]


def test_a_node_whose_app_fails_is_left_out(states, caplog):
    plain = client_app(mods=())
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        if context.node_config["partition-id"] == 1 and message.content["config"]["server-round"] == 2:
            raise RuntimeError("out of memory")
        return plain(message, context)

    start(DataAware(fed_avg(), ratio=0.02, run="errors"), LocalGrid(app, NODES), 3)
    assert "round 2: partition-1 (node 2) is left out: RuntimeError: out of memory" in caplog.text
    assert [line["present"] for line in read_metrics(states / "runs" / "errors")] == [4, 3, 4]


def test_an_app_that_does_not_report_its_examples_is_named(caplog):
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        return Message(
            RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"loss": 1.0})}), reply_to=message
        )

    start(DataAware(fed_avg(), ratio=0.02, min_nodes=0), LocalGrid(app, NODES), 1)
    assert "the app's reply has no metric 'num-examples'" in caplog.text


def test_a_model_with_nan_never_leaves_the_node_and_its_residual_is_as_before(states, caplog):
    plain = client_app(mods=())
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        if context.node_config["partition-id"] == 0 and message.content["config"]["server-round"] == 2:
            name, array = next(iter(reply.content["arrays"].items()))
            bad = array.numpy().copy()
            bad.flat[0] = np.nan
            reply.content["arrays"][name] = Array(bad)
        return reply

    strategy = DataAware(fed_avg(), ratio=0.02, run="nan")
    result = start(strategy, LocalGrid(app, NODES), 4)
    assert "partition-0 (node 1) is left out: NonFiniteGradient" in caplog.text
    assert flat(result.arrays).isfinite().all()
    assert kept_by(states, "nan", 0).uplink.feedback.residual.isfinite().all()


# The first model


def test_nodes_that_draw_the_first_model_do_not_download_it_and_one_that_draws_another_downloads_it(states, caplog):
    def first_model(context):
        model = task().build()
        if context.node_config["partition-id"] == 1:
            next(model.parameters()).data += 1
        return ArrayRecord(model.state_dict())

    def run(name, how, mod):
        strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run=name, first_model=how)
        start(strategy, LocalGrid(client_app(mods=(mod,)), NODES), 5)
        return read_metrics(states / "runs" / name)

    whole = 4 * len(flat(ArrayRecord(task().build().state_dict())))
    sent = run("sent", "sent", compress)
    assert sent[0]["down"] > NODES * whole
    drawn = run("drawn", "drawn", compress_with(first_model))
    assert [line["present"] for line in drawn] == [3, 4, 4, 4, 4]
    assert "node 2 is left out: partition-1 is out of sync" in caplog.text
    assert drawn[0]["down"] < 200
    assert sum(line["down"] > whole for line in drawn) == 1
    plain = run("plain", "drawn", compress)  # the mod of a node that cannot
    assert [line["present"] for line in plain] == [0, 4, 4, 4, 4]


# The node's file


DAMAGE = {
    "cut": lambda content: content[:-50],
    "header": lambda content: b"x" + content[1:],
    "model": lambda content: content[:-2000] + bytes([content[-2000] ^ 1]) + content[-1999:],
    "empty": lambda content: b"",
    "another kind": lambda content: dump_state("client", node_files.VERSION, {}),
    "another state": lambda content: dump_state("node", node_files.VERSION, {"owner": "partition-1"}),
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_costs_its_node_a_round_and_its_residual_and_nothing_else(states, caplog, damage):
    path = states / "nodes" / "damaged" / "partition-1.safetensors"

    def spoil(number, arrays):
        if number == 3:
            content, change = path.read_bytes(), DAMAGE[damage]
            path.unlink() if change is None else path.write_bytes(change(content))

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="damaged")
    result = start(strategy, LocalGrid(client_app(), NODES), 6, evaluate_fn=spoil)
    assert [line["present"] for line in read_metrics(states / "runs" / "damaged")] == [4, 4, 4, 3, 4, 4]
    assert "partition-1 (node 2) is left out: partition-1 is out of sync" in caplog.text
    assert "this node has nothing of this run" in caplog.text
    aside = path.with_name("partition-1.safetensors.damaged")
    assert aside.exists() == (damage != "gone")
    assert (f"What this node had not sent is in {aside}; it starts empty" in caplog.text) == (damage != "gone")
    assert flat(result.arrays).isfinite().all()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("where", ["read_bytes", "stat"])
def test_a_file_that_cannot_be_read_now_stays_and_its_node_waits(states, caplog, monkeypatch, error, where):
    path = states / "nodes" / "unread" / "partition-1.safetensors"
    usual, broken = getattr(Path, where), []

    def fails(self, *rest, **options):
        if self == path and broken:
            raise OSError(error, os.strerror(error))
        return usual(self, *rest, **options)

    monkeypatch.setattr(Path, where, fails)
    before = []

    def breaks(number, arrays):
        if number in (2, 4):
            broken.append(1) if number == 2 else broken.clear()
            with path.open("rb") as file:
                before.append(file.read())

    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="unread")
    start(strategy, grid, 6, evaluate_fn=breaks)
    assert [line["present"] for line in read_metrics(states / "runs" / "unread")] == [4, 4, 3, 3, 4, 4]
    assert caplog.text.count("partition-1 (node 2) is left out: CheckpointError: ") == 2
    assert before[0] == before[1]
    monkeypatch.undo()
    assert list(path.parent.glob("*.damaged")) == []
    for part in range(NODES):
        name = f"partition-{part}"
        kept = node_files.read_node(path.with_name(f"{name}.safetensors"))
        books_balance_of(kept, computed_by(seen, part), losing.delivered[name], taken_of(strategy)[name])


def test_a_file_copied_to_another_node_is_refused_with_words_and_stays(states, caplog):
    folder = states / "nodes" / "copied"
    before = []

    def copies(number, arrays):
        if number == 2:
            before.append((folder / "partition-0.safetensors").read_bytes())
            (folder / "partition-1.safetensors").write_bytes(before[0])

    start(DataAware(fed_avg(), ratio=0.02, run="copied"), LocalGrid(client_app(), NODES), 4, evaluate_fn=copies)
    assert [line["present"] for line in read_metrics(states / "runs" / "copied")] == [4, 4, 3, 3]
    words = "partition-1.safetensors belongs to partition-0, and this node is partition-1"
    assert words in caplog.text
    assert (folder / "partition-1.safetensors").read_bytes() == before[0]


def test_a_file_from_an_older_backup_sends_nothing_twice(states):
    path, copies, seen = states / "nodes" / "backup" / "partition-1.safetensors", {}, []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)

    def copy(number, arrays):
        if number in (2, 4):
            copies[number] = path.read_bytes(), kept_by(states, "backup", 1)
        if number == 4:
            path.write_bytes(copies[2][0])

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="backup")
    start(strategy, grid, 8, evaluate_fn=copy)
    assert [line["present"] for line in read_metrics(states / "runs" / "backup")] == [4, 4, 4, 4, 3, 4, 4, 4]
    older, newer = (copies[number][1].uplink for number in (2, 4))
    assert older.pending is not None  # taken in round 2: it must not go back into the residual
    lost = (newer.feedback.residual - older.feedback.residual).double()
    computed, delivered = computed_by(seen, 1) - lost, losing.delivered["partition-1"]
    books_balance_of(kept_by(states, "backup", 1), computed, delivered, taken_of(strategy)["partition-1"])


def test_a_file_of_a_newer_version_stays_as_it_is(states, caplog):
    path = states / "nodes" / "newer" / "partition-1.safetensors"
    save_state(path, "node", 99, {"everything": "has changed"})
    before = path.read_bytes()
    start(DataAware(fed_avg(), ratio=0.02, run="newer"), LocalGrid(client_app(), NODES), 2)
    assert "node 2 is left out: NewerVersion" in caplog.text
    assert [line["present"] for line in read_metrics(states / "runs" / "newer")] == [3, 3]
    assert path.read_bytes() == before


def test_only_its_owner_can_read_what_a_node_keeps(states):
    start(DataAware(fed_avg(), ratio=0.02, run="private"), LocalGrid(client_app(), NODES), 2)
    files = list((states / "nodes").rglob("*.safetensors"))
    assert len(files) == NODES
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    folders = {states / "nodes", states / "nodes" / "private"}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_a_restarted_node_with_another_number_has_its_residual_and_its_acknowledgement(states):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)

    def restart(number, arrays):
        if number == 3:  # a SuperNode without a key comes back under another number, its memory empty
            context = grid.contexts.pop(2)
            context.node_id, context.state = 77, RecordDict()
            grid.contexts[77] = context

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="restart")
    start(strategy, grid, 6, evaluate_fn=restart)
    assert [line["present"] for line in read_metrics(states / "runs" / "restart")] == [4] * 6
    assert len(strategy._run.server.members) == NODES
    books_balance(states, "restart", seen, losing.delivered, taken_of(strategy))


def test_a_node_that_was_given_up_while_it_trained_changes_nothing_when_it_is_done(states, caplog):
    """A SuperNode is killed and its app is not; the one that is started in its place has written since."""
    seen, lost = [], []
    plain, app = client_app(mods=(), seen=seen), ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        if context.node_config["partition-id"] == 1 and message.content["config"]["server-round"] == 3:
            other = node_files.Place("successor", context)  # of the other process
            other.write(other.read())
            lost.append(seen.pop())
        return reply

    grid = LocalGrid(app, NODES)
    losing = Losing(grid, 0.0)
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="successor")
    start(strategy, grid, 5)
    assert len(lost) == 1
    assert [line["present"] for line in read_metrics(states / "runs" / "successor")] == [4, 4, 3, 4, 4]
    assert "partition-1.safetensors was changed by another process of this node" in caplog.text
    books_balance(states, "successor", seen, losing.delivered, taken_of(strategy))


def test_a_message_that_comes_twice_or_late_to_a_node_is_refused(states):
    grid = LocalGrid(client_app(), NODES)
    sent = []
    usual = grid._answer
    grid._answer = lambda message: sent.append(message) or usual(message)
    start(DataAware(fed_avg(), ratio=0.02, run="stale"), grid, 3)
    before = (states / "nodes" / "stale" / "partition-0.safetensors").read_bytes()
    to_first = [message for message in sent if message.metadata.dst_node_id == 1]
    for message in (to_first[-1], to_first[-2]):
        reply = usual(message)
        assert reply.has_error()
        assert (states / "nodes" / "stale" / "partition-0.safetensors").read_bytes() == before
    assert "has answered round 3" in usual(to_first[-1]).error.reason


@pytest.mark.parametrize("run", ["../../etc", "a/b", ".hidden"])
def test_a_run_name_cannot_leave_its_folder(run):
    with pytest.raises(InvalidInput, match="name it with letters"):
        DataAware(fed_avg(), ratio=0.01, run=run)
    context = LocalGrid(client_app(), 1).contexts[1]
    with pytest.raises(InvalidInput, match="cannot be the name of a file"):
        node_files.state_path(run, context)
    context.node_config["dagc-name"] = "../x"
    with pytest.raises(InvalidInput, match="cannot be the name of a file"):
        node_files.state_path("good", context)


def test_an_empty_run_name_is_none():
    """A run configuration of Flower cannot hold None."""
    assert DataAware(fed_avg(), ratio=0.01, run="").name is None


def test_a_run_without_a_name_leaves_nothing_behind(states, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = LocalGrid(client_app(), NODES)
    unnamed = start(DataAware(fed_avg(), ratio=0.02), grid, 4)
    assert not states.exists()
    assert list(tmp_path.iterdir()) == []
    assert all(node_files.KEPT in context.state for context in grid.contexts.values())
    named = start(DataAware(fed_avg(), ratio=0.02, run="named"), LocalGrid(client_app(), NODES), 4)
    assert torch.equal(flat(unnamed.arrays), flat(named.arrays))


def test_where_a_node_keeps_its_file_can_be_configured(tmp_path):
    context = LocalGrid(client_app(), 1, node_config={"dagc-state": str(tmp_path), "dagc-name": "berlin"}).contexts[1]
    assert node_files.state_path("r", context) == tmp_path / "nodes" / "r" / "name-berlin.safetensors"
    del context.node_config["dagc-name"], context.node_config["partition-id"]
    assert node_files.state_path("r", context) == tmp_path / "nodes" / "r" / "node-1.safetensors"


# The example


def test_the_example_changes_four_lines_of_code():
    folder = Path(__file__).parents[2] / "examples" / "flower"
    changed = []
    for path in sorted((folder / "before" / "digits").glob("*.py")):
        after = folder / "after" / "digits" / path.name
        changed += [
            line
            for line in difflib.unified_diff(path.read_text().splitlines(), after.read_text().splitlines(), n=0)
            if line.startswith("+") and not line.startswith("+++")
        ]
    assert changed == [
        "+from dagc.flower import compress_with",
        "+app = ClientApp(mods=[compress_with(lambda context: ArrayRecord(build(context.run_config).state_dict()))])",
        "+from dagc.flower import DataAware",
        '+    strategy = DataAware(strategy, ratio=config["ratio"], down=config["down"], first_model="drawn", '
        'run=config["run"])',
    ]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_the_example_learns(states, monkeypatch, kind):
    folder = Path(__file__).parents[2] / "examples" / "flower" / kind
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "digits"]:
        monkeypatch.delitem(sys.modules, name)
    from digits.client_app import app as client
    from digits.server_app import app as server

    config = {
        **tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"],
        "rounds": 8,
        "run": "digits",
    }
    grid = LocalGrid(client, 3, run_config=config)
    server(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    if kind == "after":
        lines = read_metrics(states / "runs" / "digits")
        assert lines[-1]["score"] > 0.8
        assert lines[-1]["bytes_up"] < 8 * 3 * 4 * 37_510 / 40


# The rest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic", "ratio": 0.1}, "there is no method 'magic'"),
        ({"method": "dagc-a"}, "method 'dagc-a' needs a budget: give threshold"),
        ({"ratio": 0.1, "bytes": 20}, "give one budget, not ratio and bytes"),
        ({"ratio": 0.1, "threshold": 0.1}, "method 'dagc' takes no threshold"),
        ({"ration": 0.1}, "there is no setting 'ration': did you mean 'ratio'"),
        ({"ratio": 0.1, "options": {"interval": 5}}, "method 'dagc' takes no options"),
        ({"ratio": 2.0}, "ratio is 2"),
        ({"ratio": 0.1, "values": "fp7"}, "fp7"),
        ({"ratio": 0.1, "caps": {"partition-0": 1e-6}}, "the cap 1e-06 of 'partition-0' is below one entry"),
    ],
)
def test_bad_arguments_are_refused_before_any_message_is_sent(options, words):
    grid = LocalGrid(client_app(), NODES)
    grid.on_reply = lambda reply: pytest.fail("a message was sent")
    with pytest.raises(InvalidInput, match=words):
        start(DataAware(fed_avg(), **options), grid, 1)


def test_what_is_not_started_says_so():
    with pytest.raises(InvalidInput, match="has not been started"):
        DataAware(fed_avg(), ratio=0.1).aggregate_train(1, [])


def test_dagc_report_draws_a_flower_run(states, tmp_path, capsys, monkeypatch):
    from dagc.cli import main

    for method, budget in (("dagc-r", {"ratio": 0.02}), ("none", {})):
        strategy = DataAware(fed_avg(), method=method, run=f"digits-{method}", **budget)
        start(
            strategy, LocalGrid(client_app(), NODES), 4,
            evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": 0.2 + number / 10, "loss": 1.0}),
        )  # fmt: skip
    result = json.loads((states / "runs" / "digits-dagc-r" / "result.json").read_text())
    assert result["final_score"] == pytest.approx(0.6)
    folders = [str(states / "runs" / f"digits-{method}") for method in ("dagc-r", "none")]
    monkeypatch.setattr("sys.argv", ["dagc", "report", *folders, "--output", str(tmp_path / "page")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    page = (tmp_path / "page" / "report.html").read_text()
    assert "trained with Flower" in page


def test_records_are_complete_or_refused():
    with pytest.raises(MalformedPayload, match="not complete"):
        Answer.read({"version": VERSION, "kind": "train"})
    with pytest.raises(MalformedPayload, match="another version"):
        Answer.read({})
    assert issubclass(MalformedPayload, DagcError)


# What else an attacker tried


@pytest.mark.parametrize("make", [FedAdam, FedAvgM, FedYogi, FedAdagrad])
def test_the_memory_of_a_strategy_is_in_the_checkpoint(make):
    def run(name, rounds):
        options = {"server_momentum": 0.9} if make is FedAvgM else {}
        strategy = DataAware(make(fraction_evaluate=0.0, **options), ratio=0.05, run=name)
        return flat(start(strategy, LocalGrid(client_app(), NODES), rounds).arrays)

    straight = run("straight", 6)
    run("parts", 2)
    run("parts", 5)
    assert torch.equal(run("parts", 6), straight)


def test_a_finished_run_whose_model_is_gone_writes_it_again(states):
    for _ in range(2):
        start(DataAware(fed_avg(), ratio=0.02, run="done"), LocalGrid(client_app(), NODES), 2)
        model = states / "runs" / "done" / "model.npz"
        model.unlink()  # there again after the second start
    start(DataAware(fed_avg(), ratio=0.02, run="done"), LocalGrid(client_app(), NODES), 2)
    assert model.exists()


def test_of_two_nodes_with_different_metrics_the_one_that_did_not_change_stays(states, caplog):
    grid = LocalGrid(client_app(), 2)

    def odd(reply):
        about = reply.content[RECORD]
        changed = about["name"] == "partition-0" and about["kind"] == "train" and about["round"] > 1
        return with_metrics(surprise=1.0)(reply) if changed else [reply]

    grid.on_reply = odd
    for rounds in (2, 4):  # the second is resumed: what was usual is in the checkpoint
        strategy = DataAware(fed_avg(), ratio=0.02, run="odd")
        start(strategy, grid, rounds)
    assert [line["present"] for line in read_metrics(states / "runs" / "odd")] == [2, 1, 1, 1]
    assert caplog.text.count("partition-0 (node 1) is left out: its metrics differ from most") == 3


@pytest.mark.parametrize("claims", [[5e-324], [5e-324, 5e-324], [5e-324, 2.0**52], [1e-300, 1.0]])
@pytest.mark.parametrize("inner", [FedAvg, FedMedian])
def test_claims_of_next_to_no_examples_do_not_stop_the_server(states, claims, inner):
    plain = client_app(mods=())
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        reply.content["metrics"]["num-examples"] = claims[context.node_config["partition-id"]]
        return reply

    alone = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    result = start(DataAware(inner(**alone), method="dagc-r", ratio=0.1, run="tiny"), LocalGrid(app, len(claims)), 3)
    assert [line["present"] for line in read_metrics(states / "runs" / "tiny")] == [len(claims)] * 3
    assert flat(result.arrays).isfinite().all()


def test_arrays_that_go_whole_cannot_overflow_either(states, caplog):
    plain = client_app(mods=(), model=WithBatchNorm)
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        if context.node_config["partition-id"] == 1:
            reply.content["arrays"]["precise"] = Array(np.full(2, 1.7e308))
        return reply

    strategy = DataAware(fed_avg(), ratio=0.02, run="huge")
    result = start(strategy, LocalGrid(app, NODES), 2, model=WithBatchNorm)
    assert caplog.text.count("partition-1 (node 2) is left out: array 'precise' holds NaN, infinity or a value") == 2
    assert result.arrays["precise"].numpy().tolist() == [1.0, 1.0]


LAYOUTS = {
    "huge": '[["a",[1000000000000],"float32",false]]',
    "huger": '[["a",[281474976710656,281474976710656],"float32",false]]',
    "digits": '[["a",[' + "9" * 5000 + '],"float32",false]]',
    "negative": '[["a",[-1],"float32",false]]',
    "huge whole": '[["a",[1000000000000],"float64",true],["b",[650],"float32",false]]',
    "twice": '[["a",[325],"float32",false],["a",[325],"float32",false]]',
    "deep": "[" * 5000,
    "objects": '[["a",[650],"object",true],["b",[650],"float32",false]]',
    "fields": '[["a",[650],"f4,f4",true],["b",[650],"float32",false]]',
    "no type": '[["a",[650],null,true],["b",[650],"float32",false]]',
    "axes": '[["a",[' + "1," * 100 + '650],"float32",false]]',
    "words": '"abcd"',
    "number": "7",
}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("since", [-1, 0, 5])
def test_a_layout_that_a_server_makes_up_costs_a_node_nothing(states, kind, since):
    """The bytes that come with it are those of 650 entries."""

    def first_model(context):
        return ArrayRecord(task().build().state_dict())

    for mod in (compress, compress_with(first_model)):
        grid = LocalGrid(client_app(mods=(mod,)), 1)
        usual, reasons = grid._answer, []

        def answer(message, usual=usual, reasons=reasons):
            message.content[RECORD]["layout"] = LAYOUTS[kind]
            message.content[RECORD]["download.since"] = since
            tracemalloc.start()
            reply = usual(message)
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
            tracemalloc.stop()
            reasons.append(reply.error.reason)
            return reply

        grid._answer = answer
        start(DataAware(fed_avg(min_train_nodes=1, min_available_nodes=1), ratio=0.02, min_nodes=0), grid, 1)
        assert len(reasons) == 1
        assert reasons[0].startswith(("MalformedPayload", "partition-0 is out of sync"))


ORDERS = {
    "download.since": (-5, -(2**62), 2**62),
    "download.version": (-1, -(2**62), 2**62),
    "download.checksum": (-1, 2**62),
    "download.steps": (-1, 5, 2**62, True, 0.5),
    "order.amount": (-1, 2**62, -(2**62), float("nan"), float("inf"), -1.0, 1e308, "x", True),
    "order.compressor": ("", "x"),
    "order.number": (-1, 2**62, "x"),
    "order.round": (-1, 0, 1, 3, 2**62),
    "order.accepted": (-1, -(2**62), 2**62),
    "order.counted": (-1, -(2**62)),
    "order.clip": (-1.0, float("nan")),
    "order.visit": ("x", 1),
    "order.more": (1,),
    "plan.values": ("x", "auto"),
    "plan.step_ahead": (float("nan"), -1.0),
    "layout": ("x", '[["a",[650],"float32",false]]'),
    "more.more": (1,),
    "run": ("../x", "x" * 5000),
    "lineage": ("x", "0" * 16, "f" * 1_000_000),
    "server": ("", "x", "f" * 17),
    "examples": ("x",),
    "kind": ("", "x", "ask", "model"),
    "round": (-1, 0, 1, 2**62),
    "version": (2, "x"),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ORDERS.items() for value in values])
def test_an_order_that_no_server_gives_is_refused_with_words_and_changes_nothing(states, name, value):
    grid = LocalGrid(client_app(), NODES)
    usual, reasons, path = grid._answer, [], states / "nodes" / "orders" / "partition-1.safetensors"

    def answer(message):
        about = message.content[RECORD]
        if (about["kind"], about["round"], message.metadata.dst_node_id) != ("train", 2, 2):
            return usual(message)
        about[name] = value
        before = path.read_bytes()
        reply = usual(message)
        assert path.read_bytes() == before
        reasons.append(reply.error.reason)
        return reply

    grid._answer = answer
    result = start(DataAware(fed_avg(), method="thrifty", ratio=0.02, run="orders"), grid, 3)
    ours = ("InvalidInput", "MalformedPayload", "DagcError", "partition-1 is out of sync")
    assert len(reasons) == 1
    assert reasons[0].startswith(ours)
    assert [line["present"] for line in read_metrics(states / "runs" / "orders")] == [4, 3, 4]
    assert flat(result.arrays).isfinite().all()


def test_a_node_that_sends_or_claims_far_more_than_most_is_left_out_or_counts_as_less(states, caplog):
    plain = client_app(mods=())
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        if context.node_config["partition-id"] == 1:
            reply.content["metrics"]["num-examples"] = 9e9
        if context.node_config["partition-id"] == 2 and message.content["config"]["server-round"] > 2:
            for name, array in list(reply.content["arrays"].items()):
                reply.content["arrays"][name] = Array(array.numpy() + np.float32(1e6))
        return reply

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="bound", norm_bound=10, most_examples=300)
    result = start(strategy, LocalGrid(app, NODES), 6)
    assert [line["present"] for line in read_metrics(states / "runs" / "bound")] == [4, 4, 3, 3, 3, 3]
    assert caplog.text.count("partition-2 (node 3) is left out: its upload has norm") == 4
    assert flat(result.arrays).abs().max() < 10
    assert strategy._run.server.members["partition-1"].examples == 300
    sizes = [min(300, task().sizes[part]) if part != 1 else 300 for part in range(NODES)]
    assert [member.examples for member in strategy._run.server.members.values()] == sizes


def without_metric(name):
    def spoil(reply):
        del reply.content["metrics"][name]
        return [reply]

    return spoil


MEASURED = {
    "an odd metric": with_metrics(surprise=1.0),
    "no metrics": without("metrics"),
    "no examples": without_metric("num-examples"),
    "a list for a number": with_metrics(eval_acc=[1.0, 2.0]),
    "NaN examples": with_metrics(**{"num-examples": float("nan")}),
    "negative examples": with_metrics(**{"num-examples": -40}),
    "0 examples": with_metrics(**{"num-examples": 0}),
    "NaN": with_metrics(eval_acc=float("nan")),
    "infinity": with_metrics(eval_acc=float("-inf")),
}


@pytest.mark.parametrize("kind", MEASURED)
def test_a_node_cannot_stop_the_server_when_it_evaluates_either(states, caplog, kind):
    grid = LocalGrid(client_app(), NODES)

    def spoil(reply):
        evaluated = "eval_acc" in reply.content.metric_records.get("metrics", {})
        return MEASURED[kind](reply) if evaluated and reply.metadata.src_node_id == 3 else [reply]

    grid.on_reply = spoil
    result = start(DataAware(FedAvg(), ratio=0.02, run="measured"), grid, 2)
    assert [dict(metrics) for metrics in result.evaluate_metrics_clientapp.values()] == [{"eval_acc": 0.5}] * 2
    for number in (1, 2):
        assert f"evaluating round {number}: partition-2 (node 3) is left out: its metrics" in caplog.text


def test_a_metric_that_nobody_could_measure_stops_nobody_from_measuring_the_others(caplog):
    grid = LocalGrid(client_app(), NODES)
    grid.on_reply = lambda reply: (
        [reply] if RECORD in reply.content else with_metrics(eval_auc=float("nan"))(reply)  # of one class, say
    )
    result = start(DataAware(FedAvg(), ratio=0.02), grid, 1)
    assert result.evaluate_metrics_clientapp[1]["eval_acc"] == 0.5
    assert "is left out" not in caplog.text


def test_a_node_cannot_answer_in_the_place_of_another(states, caplog):
    """Should it learn what the message to the other one is called."""
    grid = LocalGrid(client_app(), NODES)

    def forge(reply):
        about = reply.content[RECORD]
        if (about["name"], about["kind"], about["round"]) != ("partition-1", "train", 2):
            return [reply]
        forged = Message(RecordDict(dict(reply.content.items())), metadata=copy(reply.metadata))
        forged.metadata.__dict__["_src_node_id"] = 4
        return [forged, reply]

    grid.on_reply = forge
    start(DataAware(fed_avg(), ratio=0.02, run="forged"), grid, 3)
    assert "round 2: node 4 answers in the place of partition-1 (node 2), which does not count" in caplog.text
    assert "is left out" not in caplog.text
    assert [line["present"] for line in read_metrics(states / "runs" / "forged")] == [4, 4, 4]


def test_an_error_of_a_node_is_one_line_of_the_log(caplog):
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        raise RuntimeError("first\nWARNING : all is well" + "x" * 5000)

    start(DataAware(fed_avg(), ratio=0.02, min_nodes=0), LocalGrid(app, NODES), 1)
    lines = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert len(lines) == NODES
    assert all("\n" not in line and len(line) < 600 for line in lines)
