"""Flower: what an attacker tried, and what a server keeps."""

import tracemalloc
from copy import copy

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedMedian, FedYogi

from dagc.flower import DataAware, compress, compress_with
from dagc.flower.messages import RECORD
from dagc.folder import read_metrics
from tests.flower.apps import (
    NODES,
    WithBatchNorm,
    client_app,
    fed_avg,
    flat,
    start,
    states,
    task,
    with_metrics,
    without,
)
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

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
