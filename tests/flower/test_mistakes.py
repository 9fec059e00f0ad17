"""Mistakes in a Flower app are reported at once, with their cause and what to write instead."""

import logging

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg

from dagc.errors import InvalidInput, TooFewNodes
from dagc.flower import DataAware, compress
from dagc.flower.local import LocalGrid
from dagc.folder import read_metrics
from tests.flower.test_flower import NODES, client_app, fed_avg, flat, start, states

__all__ = ["states"]

LINE = r"app = ClientApp\(mods=\[compress\]\)"


def on_nodes(*numbers, without, usually=None):
    """An app that is `without` on some nodes: by their partition."""
    usual = usually or client_app()

    class Apart(ClientApp):
        def __call__(self, message, context):
            return (without if context.node_config["partition-id"] in numbers else usual)(message, context)

    return Apart()


def test_without_the_mod_the_first_round_ends_the_run_with_the_line_to_add():
    with pytest.raises(TooFewNodes, match=f"round 1: no node contributes. .*: dagc is missing.*{LINE}") as stopped:
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(client_app(mods=()), NODES), 3)
    assert str(stopped.value).count("dagc is missing") == 1  # once for all nodes, not once for each
    assert all(f"node {number}" in str(stopped.value) for number in range(1, NODES + 1))


def test_without_the_mod_on_one_node_the_others_train_and_it_is_named(states, caplog):
    grid = LocalGrid(on_nodes(2, without=client_app(mods=())), NODES)
    start(DataAware(fed_avg(), ratio=0.02, run="one"), grid, 2)
    assert [line["present"] for line in read_metrics(states / "runs" / "one")] == [3, 3]
    assert "node 3 is left out: dagc is missing there, or is not the first mod" in caplog.text
    assert "Received 3 results and 1 failures" in caplog.text  # Flower's own words
    assert "dagc: round 1: 3 of 4 nodes" in caplog.text
    assert "dagc: asking 1 node for" in caplog.text  # again, in the second round


def test_an_app_that_answers_without_looking_at_the_model_is_found_out_too():
    app = ClientApp()

    @app.train()
    def train(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 5})}), reply_to=message)

    with pytest.raises(TooFewNodes, match=LINE):
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(app, NODES), 3)


def test_without_the_wrapper_on_the_server_nodes_say_that_models_are_sent_whole(caplog):
    start(fed_avg(), LocalGrid(client_app(), NODES), 1)
    assert caplog.text.count("the server does not use dagc, models are sent whole: write DataAware(strategy)") == NODES


@pytest.mark.parametrize("whole", ["head.weight", ["nope*"]])
def test_arrays_to_send_whole_that_are_not_there(whole):
    with pytest.raises(InvalidInput, match=r"give a list of names|no array is called 'nope\*'; there are "):
        start(DataAware(fed_avg(), ratio=0.02, whole=whole), LocalGrid(client_app(), NODES), 1)


def test_a_reply_with_invalid_examples_ends_the_run_with_their_value():
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"num-examples": float("nan")})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    with pytest.raises(TooFewNodes, match="says num-examples = nan: return a number from 0 on"):
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(app, NODES), 3)


def test_a_reply_without_examples_ends_the_run_with_the_metric_to_add():
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        metrics = MetricRecord({"loss": 1.0})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    with pytest.raises(TooFewNodes, match=r"no metric 'num-examples'.*MetricRecord\(\{'num-examples': len\(data\)"):
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(app, NODES), 3)


def test_a_round_that_nobody_contributes_to_ends_the_run_and_it_is_resumed_at_that_round(states):
    def app():
        plain = client_app()

        class Broken(ClientApp):
            def __call__(self, message, context):
                if message.content["config"]["server-round"] == 3 and broken:
                    raise RuntimeError("the data are gone")
                return plain(message, context)

        return Broken()

    broken = True
    with pytest.raises(TooFewNodes, match=r"round 3: no node contributes.*the data are gone"):
        start(DataAware(fed_avg(), ratio=0.02, run="gone"), LocalGrid(app(), NODES), 5)
    assert len(read_metrics(states / "runs" / "gone")) == 2
    broken = False
    resumed = start(DataAware(fed_avg(), ratio=0.02, run="gone"), LocalGrid(app(), NODES), 5)
    straight = start(DataAware(fed_avg(), ratio=0.02, run="straight"), LocalGrid(app(), NODES), 5)
    assert flat(resumed.arrays).equal(flat(straight.arrays))


def test_nobody_answers_in_time():
    grid = LocalGrid(client_app(), NODES)
    grid.on_reply = lambda reply: []
    with pytest.raises(TooFewNodes, match="did not answer in time"):
        start(DataAware(fed_avg(), ratio=0.02), grid, 3)


@pytest.mark.parametrize(("least", "ends"), [(0, False), (3, False), (4, True)])
def test_how_many_nodes_are_needed_can_be_said(states, least, ends):
    grid = LocalGrid(on_nodes(2, without=client_app(mods=())), NODES)
    strategy = DataAware(fed_avg(), ratio=0.02, run="needed", min_nodes=least)
    if ends:
        with pytest.raises(TooFewNodes, match=r"3 nodes contribute, fewer than min_nodes = 4. node 3: dagc is"):
            start(strategy, grid, 2)
    else:
        start(strategy, grid, 2)
        assert len(read_metrics(states / "runs" / "needed")) == 2


def test_with_0_nodes_needed_a_run_without_any_goes_on(states):
    strategy = DataAware(fed_avg(), ratio=0.02, run="alone", min_nodes=0)
    start(strategy, LocalGrid(client_app(mods=()), NODES), 2)
    assert [line["present"] for line in read_metrics(states / "runs" / "alone")] == [0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_nodes": -1}, "min_nodes is -1"),
        ({"min_nodes": True}, "min_nodes is True"),
        ({"budget_mb": 0}, "budget_mb is 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        DataAware(fed_avg(), ratio=0.02, **options)


@pytest.mark.parametrize("wrong", [LegacyFedAvg(), FedAvg, None])
def test_what_is_no_strategy_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"goes around a strategy of flwr.serverapp.strategy"):
        DataAware(wrong, ratio=0.02)


def test_a_run_of_that_name_with_other_settings_says_so_and_what_to_do(states):
    start(DataAware(fed_avg(), ratio=0.02, run="mine"), LocalGrid(client_app(), NODES), 1)
    words = "ratio is 0.02 there, 0.05 here.*choose another run name, set these back to continue it, or delete"
    with pytest.raises(InvalidInput, match=words):
        start(DataAware(fed_avg(), ratio=0.05, run="mine"), LocalGrid(client_app(), NODES), 2)


def test_so_does_one_that_never_got_through_its_first_round():
    with pytest.raises(TooFewNodes):
        start(DataAware(fed_avg(), ratio=0.02, run="mine"), LocalGrid(client_app(mods=()), NODES), 1)
    with pytest.raises(InvalidInput, match=r"ratio is 0.02 there, 0.05 here"):
        start(DataAware(fed_avg(), ratio=0.05, run="mine"), LocalGrid(client_app(), NODES), 2)
    start(DataAware(fed_avg(), ratio=0.02, run="mine"), LocalGrid(client_app(), NODES), 2)


def test_a_run_that_is_finished_says_so_and_what_to_do(states, caplog):
    start(DataAware(fed_avg(), ratio=0.02, run="done"), LocalGrid(client_app(), NODES), 2)
    with caplog.at_level(logging.WARNING, "dagc.flower"):
        start(DataAware(fed_avg(), ratio=0.02, run="done"), LocalGrid(client_app(), NODES), 2)
    (said,) = [record.getMessage() for record in caplog.records if "already" in record.getMessage()]
    assert said.startswith("dagc: run done has been trained for 2 rounds already, and 2 are wanted")
    assert "ask for more rounds" in said
    assert str(states / "runs" / "done") in said
