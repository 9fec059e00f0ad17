"""Mistakes in a Flower app are reported at once, with their cause and what to write instead."""

import logging

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
    FedXgbBagging,
    FedXgbCyclic,
)

from dagc.errors import BudgetWarning, InvalidInput, TooFewNodes
from dagc.flower import DataAware, compress, compress_with
from dagc.flower.messages import RECORD
from dagc.folder import read_metrics
from dagc.protocol import Plan
from tests.flower.apps import NODES, client_app, fed_avg, flat, start, states, task
from tests.helpers.local_grid import LocalGrid

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
    assert "Received 1 results and 1 failures" in caplog.text  # Flower's own words: the mean, and node 3
    assert "dagc: round 1: 3 of 4 nodes" in caplog.text
    assert "dagc: asking 1 node for" in caplog.text  # again, in the second round


@pytest.mark.parametrize(
    ("bytes", "words"), [(4, "nobody sends anything in 2 rounds of 4 bytes"), (12, r"hold at most 0.62 % of the")]
)
def test_a_budget_that_teaches_nothing_is_refused_or_warned_about_before_the_first_round(bytes, words):
    strategy = DataAware(fed_avg(), bytes=bytes, down=2)
    with pytest.raises(InvalidInput, match=words) if bytes == 4 else pytest.warns(BudgetWarning, match=words):
        start(strategy, LocalGrid(client_app(), NODES), 2)
    assert strategy._run.round == (0 if bytes == 4 else 2)


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
        start(DataAware(fed_avg(), ratio=0.02, run="gone", patience=1), LocalGrid(app(), NODES), 5)
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
    strategy = DataAware(fed_avg(), ratio=0.02, run="needed", min_nodes=least, patience=2)
    if ends:
        with pytest.raises(TooFewNodes, match=r"3 nodes contribute, fewer than min_nodes = 4, .* node 3: dagc"):
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
        ({"patience": 0}, "patience is 0"),
        ({"plan": Plan(ratio=0.1)}, "give a plan or settings, not both: ratio"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        DataAware(fed_avg(), ratio=0.02, **options)


class Own(FedAvg):
    """It hands on what it does not know."""

    def __init__(self, path="", **options):
        super().__init__(**options)


def clipped(inner):
    return DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 10.0, 2)


@pytest.mark.parametrize(
    ("strategy", "named", "words"),
    [
        (FedAvg(), {"fraction_evaluate": 0.0}, r"of FedAvg.*: write DataAware\(FedAvg\(fraction_evaluate=0.0, "),
        (FedAvg(), {"plan": Plan(), "fraction_evaluate": 0.0}, "fraction_evaluate is a keyword of FedAvg"),
        (FedProx(proximal_mu=0.1), {"proximal_mu": 0.1}, "proximal_mu is a keyword of FedProx"),
        (Own(), {"fraction_train": 0.5}, "fraction_train is a keyword of Own"),
        (Own(), {"path": "here"}, r"DataAware\(Own\(path='here'"),
        (clipped(FedAvg()), {"fraction_train": 0.5}, "fraction_train is a keyword of FedAvg"),
        (FedAvg(), {"nope": 1}, "no setting 'nope': choose one of method, .*, seed, plan, whole, run, folder, "),
        (FedAvg(), {"options_": 1}, "there is no setting 'options_': did you mean 'options'?"),
        (FedAvg(), {"ratoi": 0.1}, "there is no setting 'ratoi': did you mean 'ratio'?"),
        (FedAvg(), {"foldre": "here"}, "there is no setting 'foldre': did you mean 'folder'?"),
    ],
)
def test_a_keyword_that_dataaware_does_not_have_is_answered_with_whose_it_is(strategy, named, words):
    with pytest.raises(InvalidInput, match=words):
        DataAware(strategy, **named)


def test_a_strategy_is_wrapped_once():
    with pytest.raises(InvalidInput, match="DataAware is given a DataAware: wrap the strategy once"):
        DataAware(DataAware(fed_avg()), ratio=0.02)


@pytest.mark.parametrize("wrong", [FedAvg, None])
def test_what_is_no_strategy_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"goes around a strategy of flwr.serverapp.strategy"):
        DataAware(wrong, ratio=0.02)


def test_a_run_of_that_name_with_other_settings_says_so_and_what_to_do(states):
    start(DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="mine"), LocalGrid(client_app(), NODES), 1)
    words = "ratio is 0.02 there, 0.05 here.*choose another run name, set these back to continue it, or delete"
    with pytest.raises(InvalidInput, match=words):
        start(DataAware(fed_avg(), method="dagc-r", ratio=0.05, run="mine"), LocalGrid(client_app(), NODES), 2)


def test_so_does_one_that_never_got_through_its_first_round():
    with pytest.raises(TooFewNodes):
        start(DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="mine"), LocalGrid(client_app(mods=()), NODES), 1)
    with pytest.raises(InvalidInput, match=r"ratio is 0.02 there, 0.05 here"):
        start(DataAware(fed_avg(), method="dagc-r", ratio=0.05, run="mine"), LocalGrid(client_app(), NODES), 2)
    start(DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="mine"), LocalGrid(client_app(), NODES), 2)


def test_a_run_that_is_finished_says_so_and_what_to_do(states, caplog):
    start(DataAware(fed_avg(), ratio=0.02, run="done"), LocalGrid(client_app(), NODES), 2)
    with caplog.at_level(logging.WARNING, "dagc.flower"):
        start(DataAware(fed_avg(), ratio=0.02, run="done"), LocalGrid(client_app(), NODES), 2)
    (said,) = [record.getMessage() for record in caplog.records if "already" in record.getMessage()]
    assert said.startswith("dagc: run done has been trained for 2 rounds already, and 2 are wanted")
    assert "ask for more rounds" in said
    assert str(states / "runs" / "done") in said


def test_a_run_ends_after_three_rounds_in_a_row_that_nobody_contributes_to_and_not_before(states):
    plain = client_app()

    class Broken(ClientApp):
        def __call__(self, message, context):
            if message.content["config"]["server-round"] in broken:
                raise RuntimeError("the data are gone")
            return plain(message, context)

    broken = (2, 3, 5, 6, 8, 9, 10)
    with pytest.raises(TooFewNodes, match=r"round 10: no node contributes, as in the 2 rounds before.*the data are go"):
        start(DataAware(fed_avg(), ratio=0.02, run="outage"), LocalGrid(Broken(), NODES), 12)
    present = [line["present"] for line in read_metrics(states / "runs" / "outage")]
    assert present == [4, 0, 0, 4, 0, 0, 4, 0, 0]


def test_a_strategy_of_the_older_api_is_answered_with_what_to_change():
    words = r"older API: import it from flwr.serverapp.strategy instead.*NumPyClient"
    for wrong in (LegacyFedAvg, LegacyFedAvg()):
        with pytest.raises(InvalidInput, match=words):
            DataAware(wrong, ratio=0.02)


def test_a_numpy_client_is_answered_with_what_to_change():
    class Old(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 10, {}

    app = ClientApp(client_fn=lambda context: Old().to_client(), mods=[compress])
    with pytest.raises(TooFewNodes, match=r"the client is a NumPyClient or Client of Flower's older API: write"):
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(app, NODES), 3)


@pytest.mark.parametrize("kind", [FedXgbBagging, FedXgbCyclic])
def test_trees_are_refused_as_trees(kind):
    with pytest.raises(InvalidInput, match=f"{kind.__name__} trains trees, which have no entries to compress"):
        DataAware(kind(), ratio=0.02)


@pytest.mark.parametrize("mods", [(), (arrays_size_mod,)])
def test_an_app_that_reads_arrays_by_name_without_the_mod_is_told_the_line_to_add(mods):
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        weights = message.content["arrays"]["1.weight"].numpy()
        raise AssertionError(weights)

    with pytest.raises(TooFewNodes, match=rf"KeyError: '1.weight': the app did not get the model's arrays: .*{LINE}"):
        start(DataAware(fed_avg(), ratio=0.02), LocalGrid(app, NODES), 3)


class Saving(FedAvg):
    """As in Flower's advanced examples: it has its own start and keeps the best model."""

    def set_path(self, path):
        self.path = path

    def start(self, grid, initial_arrays, num_rounds=3, *, evaluate_fn=None, note="", **options):
        self.best, self.note = 0.0, note

        def evaluate(number, arrays):
            metrics = evaluate_fn(number, arrays)
            self.update(number, metrics["accuracy"])
            return metrics

        return super().start(grid, initial_arrays, num_rounds, evaluate_fn=evaluate, **options)

    def update(self, number, accuracy):
        if accuracy > self.best:
            self.best, self.at = accuracy, number


class Looping(Saving):
    """Its own loop does not evaluate at all."""

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, *rest, **options):
        arrays, config = initial_arrays, ConfigRecord()
        for number in range(1, num_rounds + 1):
            replies = grid.send_and_receive(self.configure_train(number, arrays, config, grid), timeout=timeout)
            arrays, _ = self.aggregate_train(number, replies)
        return arrays


def test_a_start_of_ones_own_and_other_attributes_work(states):
    inner = Saving(fraction_evaluate=0.0)
    strategy = DataAware(inner, method="dagc-r", ratio=0.02, run="own", strategy_state=["best", "at"])
    strategy.set_path("here")
    grid = LocalGrid(client_app(), NODES)

    def evaluate(number, arrays):
        return MetricRecord({"accuracy": 0.9 if number == 2 else 0.5})

    first = ArrayRecord(task().build().state_dict())
    result = strategy.start(grid, first, num_rounds=3, evaluate_fn=evaluate, note="mine")
    plain = start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(), NODES), 3)
    assert flat(result.arrays).equal(flat(plain.arrays))
    assert (inner.path, inner.best, inner.at, strategy.note) == ("here", 0.9, 2, "mine")
    assert len(read_metrics(states / "runs" / "own")) == 3
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        strategy.nothing()


def test_a_loop_of_ones_own_works(states):
    strategy = DataAware(Looping(fraction_evaluate=0.0), method="dagc-r", ratio=0.02, run="loop", strategy_state=())
    arrays = start(strategy, LocalGrid(client_app(), NODES), 3)
    plain = start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(), NODES), 3)
    assert flat(arrays).equal(flat(plain.arrays))
    assert [line["present"] for line in read_metrics(states / "runs" / "loop")] == [NODES] * 3


class Hooked(FedAvg):
    """It says itself what it keeps."""

    rounds = 0

    def aggregate_train(self, server_round, replies):
        self.rounds += 1
        return super().aggregate_train(server_round, replies)

    def state_dict(self):
        return {"rounds": self.rounds}

    def load_state_dict(self, state):
        self.rounds = state["rounds"]


def test_what_a_strategy_keeps_is_saved_or_the_run_may_have_no_name(states):
    with pytest.raises(InvalidInput, match=r"dagc does not know what Saving keeps.*strategy_state=\[…\]"):
        DataAware(Saving(), ratio=0.02, run="unknown")
    DataAware(Saving(), ratio=0.02)
    for rounds in (2, 5):
        inner = Hooked(fraction_evaluate=0.0)
        start(DataAware(inner, ratio=0.02, run="hooked"), LocalGrid(client_app(), NODES), rounds)
    assert inner.rounds == 5


@pytest.mark.parametrize("way", ["node_config", "function"])
def test_a_node_that_knows_its_examples_does_not_train_to_report_them(states, way):
    seen, counts = [], task().sizes
    by_config = way == "node_config"
    mod = compress if by_config else compress_with(examples=lambda context: counts[context.node_config["partition-id"]])
    grid = LocalGrid(client_app(mods=(mod,), seen=seen), NODES)
    if by_config:
        for node, context in grid.contexts.items():
            context.node_config["dagc-examples"] = counts[node - 1]
    trained = []

    def watch(reply):
        trained.append((reply.content[RECORD]["kind"], len(seen)))
        return [reply]

    grid.on_reply = watch
    result = start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), grid, 2)
    assert [number for kind, number in trained if kind == "ask"] == [0] * NODES
    plain = start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(), NODES), 2)
    assert flat(result.arrays).equal(flat(plain.arrays))


def test_examples_that_are_no_number_are_named():
    grid = LocalGrid(client_app(), NODES, node_config={"dagc-examples": "many"})
    with pytest.raises(TooFewNodes, match="the app says dagc-examples = 'many': return a number from 0 on"):
        start(DataAware(fed_avg(), ratio=0.02), grid, 1)


@pytest.mark.parametrize(("settings", "ahead"), [({"method": "thrifty"}, True), ({"method": "dagc"}, False)])
def test_a_train_loss_of_another_model_than_the_servers_is_named(caplog, settings, ahead):
    with caplog.at_level(logging.INFO):
        start(DataAware(fed_avg(), **settings), LocalGrid(client_app(), NODES), 3)
    assert ("train_loss is of the models that nodes train from, ahead of the server's" in caplog.text) == ahead


def test_a_mod_with_parentheses_is_answered_with_what_to_write():
    with pytest.raises(InvalidInput, match=r"write ClientApp\(mods=\[compress\]\), without parentheses"):
        ClientApp(mods=[compress()])


def test_settings_of_the_mod_are_answered_with_where_they_belong():
    words = r"ClientApp\(mods=\[compress\]\), without parentheses; ratio belongs to DataAware\(strategy, ratio=0.1\)"
    with pytest.raises(InvalidInput, match=words):
        ClientApp(mods=[compress(ratio=0.1)])
    with pytest.raises(InvalidInput, match=r"values, down belong to DataAware\(strategy, values='int8', down='same'\)"):
        compress(values="int8", down="same")
    with pytest.raises(InvalidInput, match="without parentheses"):
        compress(0.1)
