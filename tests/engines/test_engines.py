"""One protocol, three engines: the same plan gives the same bits in each, with clients that come and go."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import dagc.ddp
from dagc import Plan
from dagc.data import Batches, load, make_partition
from dagc.flower import DataAware, compress
from dagc.flower.local import LocalGrid
from dagc.flower.node import read
from dagc.models import build
from dagc.policies import POLICIES
from dagc.training import Config, Federation, read_metrics
from tests.helpers.ranks import Ranks

ROUNDS = 11
WORKERS = 5
SPLIT = {"workers": WORKERS, "skew_ratio": 10, "seed": 3}
PRESENT = [[i for i in range(WORKERS) if not (i == 3 and t < 3) and not (i == 1 and 5 <= t < 9)] for t in range(1, 12)]
"""Client 3 joins in round 3; client 1 leaves in round 5 and returns in round 9."""
BUDGETS = {"ratio": {"ratio": 0.02}, "threshold": {"threshold": 0.01}}
FRAMES = {
    "plain": {"values": "fp32"},
    "compact": {"values": "sign", "frames": "compact"},
    "coded": {"values": "sign", "frames": "coded"},
    "coded int8": {"values": "int8", "frames": "coded"},
}
FEW = ("coded int8",)
"""These are tried with every method, but not with everything else it takes."""


def plans(downlink=False):
    """Every method with every kind of frames and everything else it takes; or with a budget for the downlink.

    All of them are tried by the slow tests. The others take turns: one kind of frames with each of the rarer ways.
    """
    for method, kind in POLICIES.items():
        budget = BUDGETS[kind.budgets[0]] if kind.budgets else {}
        ways = {"": budget}
        if "ratio" in kind.budgets:
            ways["caps"] = {**budget, "caps": {"0": 0.01, "3": 0.05}}
            ways["per tensor"] = {**budget, "per_tensor": True}
        if "bytes" in kind.budgets:
            ways["bytes"] = {"bytes": 25}
        if "rate" in kind.budgets:
            ways["rate"] = {"rate": "500 B/training"}
        if kind.waits:
            ways["waiting"] = {"bytes": 20, "overhead": 0.25}
            ways["waiting, caps"] = {**budget, "overhead": 0.1, "caps": {"0": 0.01}}
        if "interval" in kind.options:
            ways["options"] = {**budget, "options": {"interval": 2, "change": 0.01}}
        if downlink:
            some = {"bytes": 25, "overhead": 0.25} if kind.waits else budget
            ways = {"down": {**some, "down": "same" if kind.waits else 40}, "down bytes": {**budget, "down": 30}}
            ways["down per tensor"] = {**budget, "down": 30, "per_tensor": True}
            ways["ahead"] = {**some, "down": 40, "step_ahead": 0.5}
        for turn, (name, settings) in enumerate(ways.items(), start=len(method)):
            wires = {**FRAMES, "its own": {}} if "down" in kind.defaults else FRAMES
            usual = [frames for frames in wires if frames not in FEW]
            for frames, wire in wires.items():
                if frames in FEW and name not in ("", "down"):
                    continue
                quick = name in ("", "down") or frames == usual[turn % len(usual)]
                marks = () if quick else (pytest.mark.slow,)
                yield pytest.param({"method": method, **settings, **wire}, id=f"{method} {name} {frames}", marks=marks)


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
    strategy = DataAware(inner, run=run, **{**settings, **({"caps": caps} if caps else {}), "seed": 3})
    first = ArrayRecord(build("logistic", data, seed=3).state_dict())
    result = strategy.start(ComeAndGo(app, WORKERS), first, num_rounds=ROUNDS)
    return torch.cat([torch.from_numpy(array.numpy()).flatten() for array in result.arrays.values()])


@pytest.mark.parametrize("settings", [*plans(), *plans(downlink=True)])
def test_flower_and_the_local_engine_are_bit_identical_while_clients_come_and_go(states, digits, settings):
    model = flower(settings, digits, "one")
    engine = Federation(Config(task="logistic@digits", rounds=ROUNDS, local_steps=2, threads=1, **SPLIT, **settings))
    rounds = [engine.step(asked) for asked in PRESENT]
    assert torch.equal(model, engine.vector)
    if engine.server.plan.downward() is None:
        assert torch.equal(model, engine.optimizer.vector.detach())
    assert sum(one.entries for one in rounds) > 0
    for name, client in engine.clients.items():
        node = read(states / "nodes" / "one" / f"partition-{name}.state")
        node.client.settle(engine.server.members[name].taken)  # the local engine says so at once
        assert torch.equal(node.client.feedback.residual, client.feedback.residual), name
    lines = read_metrics(states / "runs" / "one")
    assert [line["up"] for line in lines] == [one.up for one in rounds]
    assert [line["entries"] for line in lines] == [one.entries for one in rounds]
    later = [t for t in range(ROUNDS) if PRESENT[t] == PRESENT[t - 1] and t]  # newcomers download twice in Flower
    assert [lines[t]["down"] for t in later] == [rounds[t].down for t in later]


BOUNDED = {"ratio": 0.02, "norm_bound": 1.2, "most_examples": 200}
CLIPPED = {
    "int8": {"ratio": 0.02, "clip": 0.05, "values": "int8"},
    "coded signs": {"ratio": 0.02, "clip": 0.05, "values": "sign", "frames": "coded"},
    "bytes": {"bytes": 30, "clip": 0.05, "values": "int8", "frames": "compact", "overhead": 0.25},
}
AHEAD = {"ratio": 0.02, "clip": 0.05, "frames": "coded", "step_ahead": 0.5, "down": "same"}


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
    for name, client in engine.clients.items():
        node = read(states / "nodes" / "clipped" / f"partition-{name}.state")
        node.client.settle(engine.server.members[name].taken)
        assert torch.equal(node.client.feedback.residual, client.feedback.residual), name


def test_who_is_left_out_for_the_norm_of_an_upload_is_the_same_in_flower_and_in_the_local_engine(states, digits):
    model = flower(BOUNDED, digits, "bounded")
    engine = Federation(Config(task="logistic@digits", rounds=ROUNDS, local_steps=2, threads=1, **SPLIT, **BOUNDED))
    for asked in PRESENT:
        engine.step(asked)
    assert torch.equal(model, engine.vector)
    assert {member.examples for member in engine.server.members.values()} >= {200}
    for name, client in engine.clients.items():
        node = read(states / "nodes" / "bounded" / f"partition-{name}.state")
        node.client.settle(engine.server.members[name].taken)
        assert torch.equal(node.client.feedback.residual, client.feedback.residual), name
    lines = read_metrics(states / "runs" / "bounded")
    assert sum(line["present"] for line in lines) < sum(map(len, PRESENT)), "somebody was left out"


# DDP: nobody joins or leaves; all ranks take every step


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.kill()


def as_engine(settings, fields):
    """A DDP script for a configuration of the local engine, where rank i is client i."""
    config = Config(**fields, **settings)
    rank = dist.get_rank()
    data = load(config.data)
    partition = make_partition(config.partition_spec, data, config.seed)
    batches = Batches(data, partition, config.batch_size, config.seed)
    model = DDP(build(config.model, data, seed=config.seed), bucket_cap_mb=0.01)
    plan = config.plan()
    examples = int(partition.sizes[rank])
    hook = dagc.ddp.register(model, examples=examples, rounds=config.rounds, **{**plan.settings(), "seed": plan.seed})
    optimiser = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    sent = 0
    for step in range(config.rounds):
        x, y = batches.batch(rank, step)
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
        sent += hook.last.payload
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights, hook.client.feedback.residual, sent


@pytest.mark.parametrize(
    "settings",
    [
        *plans(),
        pytest.param(BOUNDED, id="bounded"),
        *(pytest.param(one, id=f"clipped {name}") for name, one in CLIPPED.items()),
    ],
)
def test_ddp_and_the_local_engine_are_bit_identical(two, settings):
    settings = {**settings, **({"caps": {"0": 0.01}} if settings.get("caps") else {})}
    fields = {"task": "logistic@digits", "workers": 2, "skew_ratio": 10, "rounds": 15, "seed": 3}
    compare(two.run(as_engine, settings, fields), {"step_ahead": 0.0, **settings}, fields)  # also if it is the method's


def compare(answers, settings, fields):
    """Weights, residual and bytes of every rank, against the local engine."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    engine = Federation(Config(**fields, down="lossless", **settings))  # whatever the method's own is
    rounds = [engine.step() for _ in range(fields["rounds"])]
    vector = engine.optimizer.vector.detach()
    assert all(torch.equal(model, vector) for model, _, _ in answers)
    for client, (_, residual, _) in zip(engine.clients.values(), answers, strict=True):
        assert torch.equal(residual, client.feedback.residual)
    assert sum(sent for _, _, sent in answers) == rounds[-1].bytes_up > 0


def with_local_steps(settings, fields):
    """The same with local steps between the exchanges."""
    config = Config(**fields, **settings)
    rank = dist.get_rank()
    data = load(config.data)
    partition = make_partition(config.partition_spec, data, config.seed)
    batches = Batches(data, partition, config.batch_size, config.seed)
    model = build(config.model, data, seed=config.seed)
    plan, examples = config.plan(), int(partition.sizes[rank])
    plain = {**plan.settings(), "seed": plan.seed}
    local = dagc.ddp.LocalSteps(model, examples=examples, steps=config.local_steps, rounds=config.rounds, **plain)
    optimiser = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    sent = 0
    for step in range(config.rounds * config.local_steps):
        x, y = batches.batch(rank, step)
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
        exchanged = local.step()
        sent += 0 if exchanged is None else exchanged.payload
    return local.shared, local.client.feedback.residual, sent


@pytest.mark.parametrize("settings", list(plans()))
def test_local_steps_on_ddp_and_the_local_engine_are_bit_identical(two, settings):
    settings = {**settings, **({"caps": {"0": 0.01}} if settings.get("caps") else {})}
    fields = {"task": "logistic@digits", "workers": 2, "skew_ratio": 10, "rounds": 9, "local_steps": 2, "seed": 3}
    compare(two.run(with_local_steps, settings, fields), settings, fields)


def test_the_settings_of_all_engines_are_those_of_the_plan():
    from dataclasses import fields

    from dagc.protocol import Settings

    names = [field.name for field in fields(Plan)]
    assert list(Settings.__annotations__) == names
    assert set(names) <= set(Config.model_fields)


def test_a_flower_node_imports_nothing_beside_torch_numba_and_flower():
    """In a process of its own: what `dagc.flower` loads beside its dependencies."""
    import subprocess

    script = (
        "import sys, numpy, torch, numba, flwr.app, flwr.clientapp, flwr.serverapp, flwr.serverapp.strategy\n"
        "import flwr.supercore.utils, flwr.common.constant\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import dagc.flower\n"
        "new = {name.partition('.')[0] for name in sys.modules} - before - set(sys.stdlib_module_names)\n"
        "ours = {name.split('.')[1] for name in sys.modules if name.startswith('dagc.')}\n"
        "print(sorted(new), sorted(ours & {'training', 'data', 'models', 'network', 'report', 'experiments', 'cli'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['dagc'] []"
