"""Flower: a node that sends rubbish is left out, by name."""

import logging

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dagc.flower import DataAware, compress
from dagc.flower import node as node_files
from dagc.flower.messages import RECORD
from dagc.folder import read_metrics
from tests.flower.apps import (
    NODES,
    Losing,
    again,
    books_balance,
    books_balance_of,
    client_app,
    computed_by,
    fed_avg,
    flat,
    kept_by,
    nan_frame,
    start,
    states,
    taken_of,
    task,
    whole_arrays,
    with_answer,
    with_metrics,
    with_payload,
    without,
)
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

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
