"""Golden states of real runs: whatever a version has left on disk, every later one continues to the same end.

`tests/golden` has a state of each engine in the middle of a run, for every version of its format: a run's folder of the
local engine, a Flower server's folder, its nodes' files, the states of a DDP hook and of local steps. The tests
continue them, and make the same runs without interruption: both must end alike.
`pytest tests/engines --golden` writes the files of the newest version again; those of a version that was
released never change.
"""

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import dagc.ddp
from dagc import checkpoint, folder
from dagc.ddp import hook as ddp_hook
from dagc.ddp import resume as local_steps
from dagc.errors import InvalidInput
from dagc.flower import DataAware, compress, node, store
from dagc.flower.local import LocalGrid
from dagc.flower.messages import RECORD
from dagc.folder import read_metrics
from dagc.state import NewerVersion, load_state, save_state
from dagc.training import Config, Federation, RunFolder, train

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = ("clients.json", "config.toml", "metrics.jsonl")
"""The files of a run's folder, beside its checkpoints."""


def versions(newest):
    """A test for every version, so that a new one without golden files fails."""
    return pytest.mark.parametrize("version", range(1, newest + 1))


@pytest.fixture(scope="module", autouse=True)
def written(request, tmp_path_factory):
    """With --golden, the files of the newest version, written again."""
    if request.config.getoption("--golden"):
        for path, write in (
            (GOLDEN / f"engine-{checkpoint.VERSION}", write_engine),
            (GOLDEN / f"flower-{checkpoint.VERSION}", write_flower),
            (GOLDEN / f"ddp-{ddp_hook.VERSION}", write_ddp),
            (GOLDEN / f"local-steps-{local_steps.VERSION}", write_local_steps),
        ):
            shutil.rmtree(path, ignore_errors=True)
            write(path, tmp_path_factory.mktemp("new"))


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    """Where Flower's server and nodes keep their states."""
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def copy_run(source, target, round):
    """A run's folder as it was after a round, without its lock and with one checkpoint."""
    (target / "checkpoints").mkdir(parents=True)
    for name in (*FOLDER, f"checkpoints/round-{round:08d}.state"):
        shutil.copyfile(source / name, target / name)


def made_newer(path, kind):
    """Let a newer version of dagc have written this state; returns its bytes."""
    version, numbers, arrays = load_state(path, kind, newest=99)
    save_state(path, kind, version + 1, {**numbers, "new": 1}, arrays)
    return path.read_bytes()


# The local engine

ENGINE_SAVED = 7
ENGINE = {
    "task": "logistic@digits",
    "method": "dagc-r",
    "rate": "480 B/training",
    "values": "sign",
    "frames": "compact",
    "overhead": 0.25,
    "down": "same",
    "workers": 3,
    "skew_ratio": 10,
    "participation": 0.6,
    "late": 0.2,
    "optimizer_options": {"momentum": 0.5},
    "rounds": 12,
    "evaluate_every": 3,
    "checkpoint_every": ENGINE_SAVED,
    "threads": 1,
}


def write_engine(path, new):
    """Seven of twelve rounds of `ENGINE`: two of three clients take part in each, an upload in five comes late."""
    for result in train(Config(**ENGINE), new / "run"):
        if result.round == ENGINE_SAVED:
            break
    copy_run(new / "run", path, ENGINE_SAVED)


def bits(federation):
    """The whole state, exactly."""
    return {name: array.tobytes() for name, array in federation.arrays().items()}, federation.numbers()


@versions(checkpoint.VERSION)
def test_the_local_engine_continues(version, tmp_path):
    """As golden runs do; and bit for bit on a processor that rounds like the one that wrote the files.

    That is so if the rounds before the checkpoint have the same losses, in all digits.
    """
    copy_run(GOLDEN / f"engine-{version}", tmp_path / "run", ENGINE_SAVED)
    config = Config.read(tmp_path / "run")
    restored = Federation(config)
    with RunFolder(tmp_path / "run", restored):
        begun = bits(restored)
    halfway = []
    straight = train(
        config, tmp_path / "straight", [lambda run, done: done.round == ENGINE_SAVED and halfway.append(bits(run))]
    )
    straight.run()
    resumed = train(config, tmp_path / "run")
    assert [result.round for result in resumed] == list(range(ENGINE_SAVED + 1, config.rounds + 1))

    ours, expected = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "straight")
    assert ours[:ENGINE_SAVED] == read_metrics(GOLDEN / f"engine-{version}")
    for one, other in zip(ours, expected, strict=True):
        assert one.keys() == other.keys()
        assert (one["round"], one["present"]) == (other["round"], other["present"])
        for name in ("loss", "test_loss"):
            assert one.get(name, 0) == pytest.approx(other.get(name, 0), rel=0.01), name
        for name in ("entries", "bytes_up", "bytes_down", "seconds"):
            assert one[name] == pytest.approx(other[name], rel=0.02), name
        assert one.get("accuracy", 0) == pytest.approx(other.get("accuracy", 0), abs=0.02)
    if ours[:ENGINE_SAVED] == expected[:ENGINE_SAVED]:
        assert begun == halfway[0]
        assert bits(resumed.federation) == bits(straight.federation)
        for name in ("metrics.jsonl", "model.safetensors", "result.json"):
            assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


# Flower

FLOWER_SAVED, FLOWER_ROUNDS, NODES = 6, 12, 3
FLOWER = {"method": "dagc-r", "ratio": 0.06, "values": "sign", "frames": "compact", "overhead": 0.35, "down": "same"}


def wanted(number, count):
    """Numbers that look random and are whole multiples of 1/64: sums of a few are exact on every processor."""
    return ((np.arange(count, dtype=np.int64) * 37 + 11 * number * number) % 101 - 50).astype(np.float32) / 64


def flower_app():
    """An app without data: each node goes a quarter of the way to a model of its own, which changes every round."""
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        part, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        for name in ("weight", "bias"):
            target = wanted(NODES * number + part, arrays[name].size).reshape(arrays[name].shape)
            arrays[name] = arrays[name] - (arrays[name] - target) / 4
        arrays["running_mean"] = arrays["running_mean"] + np.float32(part)
        arrays["num_batches_tracked"] = np.array(arrays["num_batches_tracked"] + 1)
        metrics = MetricRecord({"train_loss": 1.0, "num-examples": (5, 2, 1)[part]})
        record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


LINEAGE = "d03aa1ebd9c16102"
"""Nodes' files of every version belong to one run, so that each goes with every server's folder."""


def flower_run(rounds):
    """The model after a run of this app, which has 210 entries to compress and two arrays that go whole.

    The reply of one node is lost in the round after which the state is kept: its file holds an upload that goes back.
    """
    grid = LocalGrid(flower_app(), NODES)

    def lossy(reply):
        about = reply.content[RECORD] if reply.has_content() else {}
        return [] if (about.get("name"), about.get("round")) == ("partition-1", FLOWER_SAVED) else [reply]

    grid.on_reply = lossy
    first = {
        "weight": np.zeros((20, 10), np.float32), "bias": np.zeros(10, np.float32),
        "running_mean": np.zeros(4, np.float32), "num_batches_tracked": np.array(0),
    }  # fmt: skip
    strategy = DataAware(FedAvg(fraction_evaluate=0.0), run="golden", **FLOWER)
    arrays = ArrayRecord({name: Array(array) for name, array in first.items()})
    result = strategy.start(grid, arrays, num_rounds=rounds)
    return {name: array.numpy().tobytes() for name, array in result.arrays.items()}


def write_flower(path, new):
    """Six of twelve rounds: the server's folder and the files of its three nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGC_STATE", str(new))
        patch.setattr("secrets.token_hex", lambda size: LINEAGE)
        flower_run(FLOWER_SAVED)
    copy_run(new / "runs" / "golden", path / "runs" / "golden", FLOWER_SAVED)
    nodes = GOLDEN / f"nodes-{node.VERSION}"
    shutil.rmtree(nodes, ignore_errors=True)
    shutil.copytree(new / "nodes", nodes, copy_function=shutil.copyfile)


def copy_flower(version, states, nodes=node.VERSION):
    """The golden states where server and nodes look for theirs."""
    copy_run(GOLDEN / f"flower-{version}" / "runs" / "golden", states / "runs" / "golden", FLOWER_SAVED)
    shutil.copytree(GOLDEN / f"nodes-{nodes}", states / "nodes")


@versions(checkpoint.VERSION)
@pytest.mark.parametrize("nodes", range(1, node.VERSION + 1))
def test_a_flower_server_and_its_nodes_continue(version, nodes, states, tmp_path, monkeypatch):
    def outcome(state):
        lines = read_metrics(state / "runs" / "golden")
        counted = [[line[name] for name in ("round", "present", "entries", "up", "down")] for line in lines]
        nodes = [node.read(path) for path in sorted((state / "nodes" / "golden").iterdir())]
        return counted, [
            (one.client.numbers(), {name: array.tobytes() for name, array in one.client.arrays().items()})
            for one in nodes
        ]

    copy_flower(version, states, nodes)
    lost = node.read(states / "nodes" / "golden" / "partition-1.state")
    assert (lost.client.sent, lost.examples) == (FLOWER_SAVED, 2.0)
    assert len(lost.client.pending) > 0
    resumed = flower_run(FLOWER_ROUNDS)
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "straight"))
    assert flower_run(FLOWER_ROUNDS) == resumed
    assert outcome(states) == outcome(tmp_path / "straight")
    present = [line["present"] for line in read_metrics(states / "runs" / "golden")]
    assert present == [NODES - (number == FLOWER_SAVED) for number in range(1, FLOWER_ROUNDS + 1)]


# DDP

DDP_SAVED, DDP_STEPS = 11, 16
REGIMES = {"interval": 3, "change": 0.3, "gentle": 0.1, "aggressive": 0.02}


class Nearer(nn.Module):
    """A model whose gradient is its distance from what it is given."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(20, 10)), nn.Parameter(torch.zeros(10))

    def forward(self, target):
        parts = target[:200].view(20, 10) - self.weight, target[200:] - self.bias
        return sum((part * part).sum() for part in parts) / 2


@pytest.fixture
def alone():
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def ddp_run(steps, state=None):
    """The module and its hook after SGD, continued from a state if there is one.

    What the module is to get near to is four times as large in one half of the steps: ACCORDION changes its mind.
    """
    model = DDP(Nearer())
    hook = dagc.ddp.register(model, examples=100, method="accordion", ratio=0.1, values="int8", options=REGIMES)
    if state is not None:
        model.module.load_state_dict(state["model"])
        hook.load_state_dict(state["dagc"])
    for step in range(hook.steps, steps):
        model.zero_grad()
        model(torch.from_numpy(wanted(step, 210)) * (4 if step % 8 < 4 else 1)).backward()
        for parameter in model.parameters():
            parameter.data.sub_(parameter.grad / 4)
    return model.module, hook


def write_ddp(path, new):
    """Eleven of sixteen steps of the only rank, in the middle of one of ACCORDION's intervals."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, hook = ddp_run(DDP_SAVED)
    finally:
        dist.destroy_process_group()
    path.mkdir()
    torch.save({"model": model.state_dict(), "dagc": hook.state_dict()}, path / "rank-0.pt")


@versions(ddp_hook.VERSION)
def test_a_ddp_hook_continues(version, alone):
    state = torch.load(GOLDEN / f"ddp-{version}" / "rank-0.pt", weights_only=True)
    assert state["dagc"]["version"] == version
    (model, hook), (straight, expected) = ddp_run(DDP_STEPS, state), ddp_run(DDP_STEPS)
    assert hook.steps == expected.steps == DDP_STEPS
    for name, parameter in straight.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name
    assert torch.equal(hook.client.feedback.residual, expected.client.feedback.residual)
    assert hook.client.numbers() == expected.client.numbers()
    assert hook.server.members == expected.server.members


# Local steps

LOCAL_SAVED, LOCAL_ROUNDS = 5, 9


def local_run(rounds, states=()):
    """The module and its exchange after steps of a quarter of the way, two between exchanges, with momentum."""
    model = Nearer()
    plan = {"method": "dagc-r", "bytes": 60, "values": "int8", "frames": "compact", "overhead": 0.25}
    local = dagc.ddp.LocalSteps(model, examples=100, steps=2, momentum=0.5, resume=states, **plan)
    for step in range(2 * local.round, 2 * rounds):
        model.zero_grad()
        model(torch.from_numpy(wanted(step, 210))).backward()
        for parameter in model.parameters():
            parameter.data.sub_(parameter.grad / 4)
        local.step()
    return model, local


def write_local_steps(path, new):
    """Five of nine exchanges of the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        state = local_run(LOCAL_SAVED)[1].state_dict()
    finally:
        dist.destroy_process_group()
    path.mkdir()
    torch.save(state, path / "rank-0.pt")


@versions(local_steps.VERSION)
def test_local_steps_continue(version, alone):
    state = torch.load(GOLDEN / f"local-steps-{version}" / "rank-0.pt", weights_only=True)
    assert (state["version"], state["round"]) == (version, LOCAL_SAVED)
    (model, local), (straight, expected) = local_run(LOCAL_ROUNDS, [state]), local_run(LOCAL_ROUNDS)
    assert local.round == expected.round == LOCAL_ROUNDS
    for name, parameter in straight.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name
    ours, theirs = local.state_dict(), expected.state_dict()
    assert all(torch.equal(ours["arrays"][name], array) for name, array in theirs["arrays"].items())
    assert (ours["client"], ours["server"]) == (theirs["client"], theirs["server"])


# What a newer version wrote is refused with words, and stays as it is

WORDS = "was written by a newer version of dagc: update dagc to read it"


def test_a_newer_checkpoint_of_the_local_engine_is_refused(tmp_path):
    copy_run(GOLDEN / f"engine-{checkpoint.VERSION}", tmp_path / "run", ENGINE_SAVED)
    config = Config.read(tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / f"round-{ENGINE_SAVED:08d}.state"
    content = made_newer(path, "run")
    with pytest.raises(NewerVersion, match=WORDS):
        train(config, tmp_path / "run").run()
    assert path.read_bytes() == content
    assert len(read_metrics(tmp_path / "run")) == ENGINE_SAVED


def made_newer_settings(path):
    """Let a newer version of dagc have written a run's settings."""
    text = (path / "config.toml").read_text()
    version = tomllib.loads(text)["version"]
    (path / "config.toml").write_text(text.replace(f"version = {version}", f"version = {folder.VERSION + 1}", 1))


def test_newer_settings_are_refused_by_the_local_engine_and_by_flower(tmp_path, states):
    copy_run(GOLDEN / f"engine-{checkpoint.VERSION}", tmp_path / "run", ENGINE_SAVED)
    config = Config.read(tmp_path / "run")
    made_newer_settings(tmp_path / "run")
    with pytest.raises(InvalidInput, match=WORDS):
        train(config, tmp_path / "run").run()
    copy_flower(checkpoint.VERSION, states)
    made_newer_settings(states / "runs" / "golden")
    with pytest.raises(InvalidInput, match=WORDS):
        flower_run(FLOWER_ROUNDS)
    for path in (tmp_path / "run", states / "runs" / "golden"):
        assert not (path / "result.json").exists()


def test_a_newer_checkpoint_of_a_flower_server_is_refused(states):
    copy_flower(checkpoint.VERSION, states)
    path = states / "runs" / "golden" / "checkpoints" / f"round-{FLOWER_SAVED:08d}.state"
    content = made_newer(path, "run")
    with pytest.raises(NewerVersion, match=WORDS):
        flower_run(FLOWER_ROUNDS)
    assert path.read_bytes() == content


def test_a_newer_file_of_a_flower_node_is_refused_and_the_others_continue(states, caplog):
    copy_flower(checkpoint.VERSION, states)
    path = states / "nodes" / "golden" / "partition-0.state"
    stored = store.restore(path, node.VERSION)
    store.replace(path, node.VERSION + 1, {"everything": "has changed"}, {}, stored.model, stored.residual)
    content = path.read_bytes()
    flower_run(FLOWER_ROUNDS)
    assert f"partition-0 (node 1) is left out: NewerVersion: {path} {WORDS}" in caplog.text
    assert path.read_bytes() == content
    later = read_metrics(states / "runs" / "golden")[FLOWER_SAVED:]
    assert [line["present"] for line in later] == [NODES - 1] * (FLOWER_ROUNDS - FLOWER_SAVED)


def test_a_newer_state_of_a_ddp_hook_is_refused(alone):
    state = torch.load(GOLDEN / f"ddp-{ddp_hook.VERSION}" / "rank-0.pt", weights_only=True)["dagc"]
    hook = ddp_run(0)[1]
    with pytest.raises(InvalidInput, match=f"the state has version {ddp_hook.VERSION + 1}, .*: update dagc to load it"):
        hook.load_state_dict({**state, "version": ddp_hook.VERSION + 1, "new": 1})
    assert hook.steps == 0
