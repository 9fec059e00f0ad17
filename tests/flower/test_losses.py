"""Flower: nothing is lost, whoever is away, killed or resumed."""

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from dagc.errors import InvalidInput
from dagc.flower import DataAware
from dagc.flower.layout import Layout
from dagc.flower.messages import RECORD, Setup
from dagc.flower.node import Node
from dagc.flower.run import FlowerRun
from dagc.folder import read_metrics
from dagc.policies import Plan
from tests.flower.apps import (
    NODES,
    Killed,
    Losing,
    books_balance,
    client_app,
    fed_avg,
    flat,
    start,
    states,
    taken_of,
    task,
)
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]


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


@pytest.mark.parametrize("down", ["same", "lossless"])
def test_who_only_evaluates_where_frames_are_coded_downloads_what_has_changed(states, caplog, down):
    """It remembers no broadcasts, which would cost the others: a model costs no more than what has changed of it."""
    sizes, grid = [], LocalGrid(client_app(), NODES)
    usual = grid.send_and_receive

    def watch(messages, **options):
        messages = list(messages)
        sizes.extend(len(one.content["arrays"][RECORD].data) for one in messages if one.metadata.dst_node_id == 4)
        return usual(messages, **options)

    class Late(Apart):
        """Node 4 trains as well from round 9 on, and must then read what the others read."""

        def configure_train(self, server_round, arrays, config, grid):
            messages = FedAvg.configure_train(self, server_round, arrays, config, grid)
            return [one for one in messages if one.metadata.dst_node_id in ((1, 4) if server_round > 8 else (1, 2))]

    grid.send_and_receive = watch
    inner = Late(fraction_evaluate=1.0, min_train_nodes=1, min_evaluate_nodes=1)
    strategy = DataAware(inner, run="onlooker", strategy_state=[], method="thrifty", frames="coded", down=down)
    start(strategy, grid, 12)
    present = [line["present"] for line in read_metrics(states / "runs" / "onlooker")]
    assert present == [2] * 12
    whole = sizes[0]
    assert whole > 600
    assert sum(sizes[1:8]) < whole * (1 if down == "same" else 3), "what has changed, not the model"
    assert "is left out" not in caplog.text


def test_who_only_evaluates_downloads_the_model_once_and_then_broadcasts(states, caplog):
    seen, sizes = [], []
    grid = LocalGrid(client_app(seen=seen), NODES)
    usual = grid.send_and_receive

    def watch(messages, **options):
        messages = list(messages)
        sizes.extend(len(one.content["arrays"][RECORD].data) for one in messages if one.metadata.dst_node_id == 4)
        return usual(messages, **options)

    grid.send_and_receive = watch
    inner = Apart(fraction_evaluate=1.0, min_train_nodes=1, min_evaluate_nodes=1)
    strategy = DataAware(inner, run="onlooker", strategy_state=[], bytes=100)
    start(strategy, grid, 6)
    evaluated = [model for who, model, _ in seen if who == "evaluate"]
    assert len(sizes) == len(evaluated) == 6
    assert max(sizes[1:]) < sizes[0] / 4, "broadcasts, not the model"
    assert torch.equal(evaluated[-1], strategy._run.server.model)
    start(DataAware(inner, run="onlooker", strategy_state=[], bytes=100), grid, 8)
    assert sizes[6] > sizes[0] / 2 > 2 * sizes[7], "a server that starts again does not know who evaluated"
    assert "is left out" not in caplog.text


def test_a_checkpoint_of_another_model_is_refused(states):
    start(DataAware(fed_avg(), ratio=0.02, run="mine"), LocalGrid(client_app(), NODES), 1)
    other = DataAware(fed_avg(), ratio=0.02, run="mine")
    with pytest.raises(InvalidInput, match="choose another run name"):
        start(other, LocalGrid(client_app(), NODES), 2, model=lambda: nn.Linear(20, 20))


def test_a_damaged_checkpoint_is_loaded_whole_or_not_at_all():
    arrays = ArrayRecord(nn.Linear(20, 10).state_dict())
    trained, fresh = (FlowerRun(arrays, Plan(ratio=0.1), (), 3, fed_avg()) for _ in range(2))
    trained.server.join("a", 5)
    state, before = trained.state_dict(), fresh.state_dict()
    for damage in ({"strategy": []}, {"nodes": [["one", "a"]]}, {"bytes_up": -1}, {"uninformed": 3}):
        with pytest.raises(InvalidInput, match="choose another run name"):
            fresh.load_state_dict({**state, **damage})
        unchanged = fresh.state_dict()
        assert (unchanged["lineage"], unchanged["server"]["roster"]) == (before["lineage"], before["server"]["roster"])
    fresh.load_state_dict(state)
    assert list(fresh.server.members) == ["a"]


def test_a_damaged_node_is_refused():
    layout = Layout.of(ArrayRecord(nn.BatchNorm1d(4).state_dict()))
    node = Node("partition-0", "0" * 16, Setup(Plan(ratio=0.5).for_clients(), layout, "num-examples"))
    node.whole = [np.zeros(4, np.float32), np.ones(4, np.float32), np.array(3)]
    state = node.state_dict()
    assert Node.restored(state).state_dict()["owner"] == "partition-0"
    for damage in ({"whole": []}, {"answered": -1}, {"delivered": [[1]]}, {"layout": "[]"}, {"plan": 3}, {"watch": {}}):
        with pytest.raises(InvalidInput):
            Node.restored({**state, **damage})
