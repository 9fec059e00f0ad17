"""A server that is started again from an older state goes on, and no node loses anything or counts anything twice."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from dagc import Plan
from dagc.errors import DagcError, MalformedPayload
from dagc.flower import DataAware
from dagc.flower.layout import Layout
from dagc.flower.messages import RECORD, TRAIN, Instruction, Setup
from dagc.flower.node import LONGEST_JUMP, Node
from dagc.flower.run import FlowerRun
from dagc.folder import read_metrics
from dagc.protocol import Download, Order
from tests.flower.apps import NODES, Killed, client_app, computed_by, fed_avg, flat, kept_by, start, states
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

PLANS = {
    "dagc-r": {"method": "dagc-r", "ratio": 0.02},
    "coded": {"method": "thrifty", "bytes": 60, "values": "sign", "frames": "coded", "down": "same"},
    "best": {"method": "dagc", "bytes": 300},
}


@pytest.fixture
def accepted(monkeypatch):
    """What the server has accepted in each round; a round that is repeated counts once."""
    rounds, usual = {}, FlowerRun.advance

    def advance(run, uploads, model):
        usual(run, uploads, model)
        rounds[run.round] = uploads if model is not None else []

    monkeypatch.setattr(FlowerRun, "advance", advance)
    return rounds


def aware(run, **plan):
    return DataAware(fed_avg(), run=run, **plan)


def killed_in(number, grid):
    """The server dies while it receives the replies of this round."""

    def dies(reply):
        about = reply.content[RECORD] if reply.has_content() else {}
        if (about.get("kind"), about.get("round")) == ("train", number) and about["name"] == "partition-2":
            raise Killed
        return [reply]

    grid.on_reply = dies


def books_balance(states, run, strategy, seen, accepted):
    for part in range(NODES):
        name, node = f"partition-{part}", kept_by(states, run, part)
        node.uplink.settle(strategy._run.server.members[name].accepted_round)
        delivered = [each.update.dense().double() for t in accepted for each in accepted[t] if each.client == name]
        computed = computed_by(seen, part)
        error = sum(delivered, node.uplink.feedback.residual.double()) - computed
        assert error.abs().max() / computed.abs().max() < 1e-5


def damage(states, run, round):
    path = states / "runs" / run / "checkpoints" / f"round-{round:08d}.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])


@pytest.mark.filterwarnings("ignore:the checkpoint")
@pytest.mark.parametrize("plan", PLANS)
def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_and_nothing_is_lost(states, accepted, caplog, plan):
    seen, settings = [], PLANS[plan]
    grid = LocalGrid(client_app(seen=seen), NODES)
    killed_in(5, grid)
    with pytest.raises(Killed):
        start(aware("back", **settings), grid, 8)
    del accepted[4]
    damage(states, "back", 4)
    grid.on_reply = lambda reply: [reply]
    strategy = aware("back", **settings)
    result = start(strategy, grid, 8)
    present = [line["present"] for line in read_metrics(states / "runs" / "back")]
    assert present[:3] == [NODES] * 3
    assert present[4:] == [NODES] * 4
    assert "has answered round" not in caplog.text
    assert "are lost" not in caplog.text
    assert flat(result.arrays).isfinite().all()
    books_balance(states, "back", strategy, seen, accepted)


def test_uploads_that_can_no_longer_go_back_are_counted(states, caplog):
    grid = LocalGrid(client_app(), NODES)
    checkpoints = states / "runs" / "older" / "checkpoints"
    kept = {}

    def keep(number, arrays):
        if number == 2:
            kept.update({path.name: path.read_bytes() for path in checkpoints.iterdir()})
            kept["lines"] = (states / "runs" / "older" / "metrics.jsonl").read_bytes()

    start(aware("older", method="dagc-r", ratio=0.02), grid, 6, evaluate_fn=keep)
    (states / "runs" / "older" / "metrics.jsonl").write_bytes(kept.pop("lines"))
    for path in checkpoints.iterdir():
        path.unlink()
    for name, content in kept.items():  # a backup of round 1
        (checkpoints / name).write_bytes(content)
    result = start(aware("older", method="dagc-r", ratio=0.02), grid, 6)
    assert caplog.text.count("the server has fallen back to round 1: 3 uploads of this node with ") == NODES
    assert [line["present"] for line in read_metrics(states / "runs" / "older")][-4:] == [NODES] * 4
    assert flat(result.arrays).isfinite().all()


def test_a_message_of_an_earlier_start_of_the_server_is_refused(states):
    grid = LocalGrid(client_app(), NODES)
    sent, usual = [], grid._answer
    grid._answer = lambda message: sent.append((message, dict(message.content.items()))) or usual(message)
    start(aware("late", method="dagc-r", ratio=0.02), grid, 2)
    late, content = sent[-1]
    start(aware("late", method="dagc-r", ratio=0.02), grid, 4)
    path = states / "nodes" / "late" / f"partition-{late.metadata.dst_node_id - 1}.safetensors"
    before = path.read_bytes()
    late.content = type(late.content)(content)
    reply = usual(late)
    assert "works for a later start of the server: this is for the one before" in reply.error.reason
    assert path.read_bytes() == before


@pytest.mark.parametrize("number", [1, 2])
def test_one_order_for_a_far_round_does_not_spoil_a_node_for_good(states, number):
    grid = LocalGrid(client_app(), NODES)
    usual, rounds = grid._answer, []

    def far(message):
        about = message.content[RECORD]
        if (about["kind"], about["round"], message.metadata.dst_node_id) == ("train", number, 2):
            rounds.append(number)
            about["round"] = about["order.round"] = 2**47
        return usual(message)

    grid._answer = far
    start(aware("far", method="dagc-r", ratio=0.02), grid, 3)
    assert rounds == [number]
    assert kept_by(states, "far", 1).answered == 3
    present = [line["present"] for line in read_metrics(states / "runs" / "far")]
    assert present == [3 if round == number else 4 for round in (1, 2, 3)]
    assert torch.isfinite(kept_by(states, "far", 1).uplink.feedback.residual).all()


def test_an_order_within_the_longest_jump_costs_one_start_of_the_server_and_not_the_run(states):
    grid = LocalGrid(client_app(), NODES)
    usual = grid._answer

    def far(message):
        about = message.content[RECORD]
        if (about["kind"], about["round"], message.metadata.dst_node_id) == ("train", 2, 2):
            about["round"] = about["order.round"] = LONGEST_JUMP
        return usual(message)

    grid._answer = far
    start(aware("far", method="dagc-r", ratio=0.02), grid, 3)
    assert kept_by(states, "far", 1).answered == LONGEST_JUMP
    grid._answer = usual
    start(aware("far", method="dagc-r", ratio=0.02), grid, 5)  # a new start of the server
    assert [line["present"] for line in read_metrics(states / "runs" / "far")] == [4, 3, 3, 4, 4]


def test_a_node_that_joins_in_a_late_round_of_a_run_works(states):
    """The first message under a token may be of any round."""
    layout = Layout.of(ArrayRecord({"weight": Array(np.ones((8, 5), np.float32))}))
    node = Node("a", "0" * 16, Setup(Plan(ratio=0.1).for_size(40).for_clients(), layout, "num-examples"))
    late = Instruction(TRAIN, "run", "0" * 16, "1" * 16, 10**9, Download(0, 0, 0, 0, b""), Order(10**9, 1))
    node.admit(late)
    node.answered = late.round
    with pytest.raises(DagcError, match="has answered round 1000000000; this is for round 1000000000"):
        node.admit(late)
    node.admit(late._replace(round=10**9 + LONGEST_JUMP))
    with pytest.raises(MalformedPayload, match="far before"):
        node.admit(late._replace(round=10**9 + LONGEST_JUMP + 1))
    node.admit(late._replace(round=5, server="2" * 16))
