"""One protocol, three engines: the same plan gives the same bits in each, with clients that come and go."""

import sys

import pytest
import torch
from torch.nn.functional import cross_entropy

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from dagc import Plan
from dagc.data import Batches, load, make_partition
from dagc.flower import DataAware, compress
from dagc.flower.node import read_node
from dagc.models import build
from dagc.training import Config, Federation, read_metrics
from tests.helpers.local_grid import LocalGrid
from tests.helpers.plans import BOUNDED, CLIPPED, plans

ROUNDS = 11
WORKERS = 5
SPLIT = {"clients": WORKERS, "skew_ratio": 10, "seed": 3}
PRESENT = [[i for i in range(WORKERS) if not (i == 3 and t < 3) and not (i == 1 and 5 <= t < 9)] for t in range(1, 12)]
"""Client 3 joins in round 3; client 1 leaves in round 5 and returns in round 9."""


@pytest.fixture
def states(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.fsync", lambda handle: None)  # nobody pulls the plug here, and there are many files
    return tmp_path / "state"


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    partition = make_partition(f"skewed:clients={WORKERS},skew_ratio=10,label_alpha=0.5", data, 3)
    return data, partition, Batches(data, partition, 32, 3)


class Sampled(FedAvg):
    """Asks those who are there in a round."""

    def configure_train(self, server_round, arrays, config, grid):
        grid.here = [i + 1 for i in PRESENT[server_round - 1]]
        return super().configure_train(server_round, arrays, config, grid)


class ComeAndGo(LocalGrid):
    """Some of the nodes."""

    def get_node_ids(self):
        return self.here


def flower(settings, digits, run):
    data, partition, batches = digits
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        model = build("logistic", data, seed=3)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number, part = int(message.content["config"]["server-round"]) - 1, int(context.node_config["partition-id"])
        parameters = list(model.parameters())
        for step in range(2):
            x, y = batches.batch(part, 2 * number + step)
            for p, g in zip(parameters, torch.autograd.grad(cross_entropy(model(x), y), parameters), strict=True):
                p.data.add_(g, alpha=-0.1)
        torch.set_num_threads(threads)
        metrics = MetricRecord({"num-examples": int(partition.sizes[part])})
        arrays = ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    caps = {f"partition-{name}": cap for name, cap in settings.get("caps", {}).items()}
    inner = Sampled(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    strategy = DataAware(
        inner, run=run, strategy_state=[], **{**settings, **({"caps": caps} if caps else {}), "seed": 3}
    )
    first = ArrayRecord(build("logistic", data, seed=3).state_dict())
    result = strategy.start(ComeAndGo(app, WORKERS), first, num_rounds=ROUNDS)
    return torch.cat([torch.from_numpy(array.numpy()).flatten() for array in result.arrays.values()])


@pytest.mark.parametrize("settings", [*plans(), *plans(downlink=True)])
def test_flower_and_the_local_engine_are_bit_identical_while_clients_come_and_go(states, digits, settings):
    engine = Federation(Config(task="logistic@digits", rounds=ROUNDS, local_steps=2, threads=1, **SPLIT, **settings))
    model = flower({**settings, "first_bits": engine.server.plan.first_bits}, digits, "one")
    rounds = [engine.step(asked) for asked in PRESENT]
    assert torch.equal(model, engine.vector)
    if engine.server.plan.downward() is None:
        assert torch.equal(model, engine.optimizer.vector.detach())
    assert sum(one.entries for one in rounds) > 0
    for name, uplink in engine.uplinks.items():
        node = read_node(states / "nodes" / "one" / f"partition-{name}.safetensors")
        node.uplink.settle(engine.server.members[name].accepted_round)  # the local engine says so at once
        assert torch.equal(node.uplink.feedback.residual, uplink.feedback.residual), name
    lines = read_metrics(states / "runs" / "one")
    assert [line["up"] for line in lines] == [one.up for one in rounds]
    assert [line["entries"] for line in lines] == [one.entries for one in rounds]
    later = [t for t in range(ROUNDS) if PRESENT[t] == PRESENT[t - 1] and t]  # newcomers download twice in Flower
    assert [lines[t]["down"] for t in later] == [rounds[t].down for t in later]


AHEAD = {
    "method": "thrifty",
    "first_bits": 7,
    "ratio": 0.02,
    "clip": 0.05,
    "frames": "coded",
    "step_ahead": 0.5,
    "down": "same",
}


@pytest.mark.parametrize("settings", [*CLIPPED.values(), AHEAD], ids=[*CLIPPED, "ahead"])
def test_what_is_clipped_is_the_same_in_flower_and_in_the_local_engine(states, digits, settings):
    model = flower(settings, digits, "clipped")
    fields = {"task": "logistic@digits", "rounds": ROUNDS, "local_steps": 2, "threads": 1, **SPLIT}
    engine = Federation(Config(**fields, **settings))
    free = Federation(Config(**fields, **{**settings, "clip": None}))
    for asked in PRESENT:
        engine.step(asked)
        free.step(asked)
    assert torch.equal(model, engine.vector)
    assert not torch.equal(model, free.vector)
    for name, uplink in engine.uplinks.items():
        node = read_node(states / "nodes" / "clipped" / f"partition-{name}.safetensors")
        node.uplink.settle(engine.server.members[name].accepted_round)
        assert torch.equal(node.uplink.feedback.residual, uplink.feedback.residual), name


def test_who_is_left_out_for_the_norm_of_an_upload_is_the_same_in_flower_and_in_the_local_engine(states, digits):
    model = flower(BOUNDED, digits, "bounded")
    engine = Federation(Config(task="logistic@digits", rounds=ROUNDS, local_steps=2, threads=1, **SPLIT, **BOUNDED))
    for asked in PRESENT:
        engine.step(asked)
    assert torch.equal(model, engine.vector)
    assert {member.examples for member in engine.server.members.values()} >= {200}
    for name, uplink in engine.uplinks.items():
        node = read_node(states / "nodes" / "bounded" / f"partition-{name}.safetensors")
        node.uplink.settle(engine.server.members[name].accepted_round)
        assert torch.equal(node.uplink.feedback.residual, uplink.feedback.residual), name
    lines = read_metrics(states / "runs" / "bounded")
    assert sum(line["present"] for line in lines) < sum(map(len, PRESENT)), "somebody was left out"


def test_the_settings_of_all_engines_are_those_of_the_plan():
    assert set(Plan.schema()) <= set(Config.schema())


def test_a_flower_node_imports_nothing_beside_its_dependencies():
    """In a process of its own: what `dagc.flower` loads beside its dependencies."""
    import subprocess

    script = (
        "import sys, numpy, torch, numba, safetensors\n"
        "import flwr.app, flwr.clientapp, flwr.serverapp, flwr.serverapp.strategy\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import dagc.flower\n"
        "new = {name.partition('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)\n"
        "ours = {name.split('.')[1] for name in sys.modules if name.startswith('dagc.')}\n"
        "print(sorted(new), sorted(ours & {'training', 'data', 'models', 'network', 'report', 'experiments', 'cli'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dagc'] []"
