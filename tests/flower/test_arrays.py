"""Whatever arrays an app has: half precision, adapters, tied and frozen weights, buffers; and the bytes it reads of."""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian
from torch import nn

from dagc.errors import InvalidInput, MalformedPayload
from dagc.flower import DataAware, compress, compress_with
from dagc.flower.layout import AppModel, Layout
from dagc.folder import read_metrics
from tests.flower.apps import NODES, client_app, fed_avg, kept_by, start, states
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]


def bfloat16(tensor):
    """A tensor as ml_dtypes and JAX give it to Flower: two bytes per entry that numpy cannot name."""
    raw = tensor.to(torch.bfloat16).view(torch.int16).numpy()
    return Array("bfloat16", raw.shape, "numpy.ndarray", Array(raw.view("V2")).data)


def tensor_of(array):
    """An array of any type as float32."""
    if array.dtype == "bfloat16":
        return torch.from_numpy(array.numpy().view(np.int16).copy()).view(torch.bfloat16).float()
    return torch.from_numpy(array.numpy().copy()).float()


def as_type(tensor, dtype):
    return bfloat16(tensor) if dtype == "bfloat16" else Array(tensor.to(getattr(torch, dtype)).numpy())


SIZE = 400
GOAL = torch.linspace(-1, 1, SIZE)


def toward(goal=GOAL, rate=0.25, seen=None, mod=compress):
    """An app whose arrays move toward a goal, each in its own type."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message, context):
        given, moved = message.content["arrays"], {}
        for name, array in given.items():
            values = tensor_of(array)
            moved[name] = as_type(values + rate * (goal - values), array.dtype)
            if seen is not None:
                seen.append((context.node_config["partition-id"], array.dtype, values - tensor_of(moved[name])))
        metrics = MetricRecord({"num-examples": 10 + context.node_config["partition-id"]})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    return app


def first(*dtypes):
    return ArrayRecord({f"{number}.{dtype}": as_type(torch.zeros(SIZE), dtype) for number, dtype in enumerate(dtypes)})


@pytest.mark.parametrize(
    "inner",
    [fed_avg, lambda: FedAdam(fraction_evaluate=0.0, eta=0.05), lambda: FedMedian(fraction_evaluate=0.0)],
)
@pytest.mark.parametrize("dtypes", [("float16",), ("bfloat16",), ("bfloat16", "float32", "float16")])
def test_half_precision_is_compressed_and_comes_back_as_it_was(states, dtypes, inner):
    strategy = DataAware(inner(), method="dagc-r", ratio=0.2, run="half")
    result = strategy.start(LocalGrid(toward(), NODES), first(*dtypes), num_rounds=40)
    assert [array.dtype for array in result.arrays.values()] == list(dtypes)
    assert all(array.shape == (SIZE,) for array in result.arrays.values())
    if not isinstance(strategy.strategy, FedMedian):  # a median of mostly zeros does not move
        assert all((tensor_of(array) - GOAL).abs().mean() < 0.2 for array in result.arrays.values())
    lines = read_metrics(states / "runs" / "half")
    assert lines[-1]["up"] < NODES * (0.2 * 8 * SIZE * len(dtypes) + 100)
    with np.load(states / "runs" / "half" / "model.npz") as arrays:
        assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_half_precision_rounds_away_stays_in_the_model(states, dtype):
    """Each round moves an entry by less than its type can hold; the server's model and the nodes' have it all."""
    apart = 2.0**-10 if dtype == "float16" else 2.0**-7  # two numbers of this type from 1
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        values = tensor_of(message.content["arrays"]["w"])
        moved = values + apart * context.node_config["partition-id"]  # one of two nodes: the mean moves by half of it
        metrics = MetricRecord({"num-examples": 1})
        arrays = ArrayRecord({"w": as_type(moved, dtype)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    arrays = ArrayRecord({"w": as_type(torch.ones(4), dtype)})
    for rounds in (1, 5):  # the second is resumed
        strategy = DataAware(fed_avg(), method="none", run="fine")
        strategy.start(LocalGrid(app, 2), arrays, num_rounds=rounds)
        assert torch.equal(strategy._run.model.vector, torch.full((4,), 1 + rounds * apart / 2))


def test_the_residual_keeps_all_that_was_not_sent_in_float32(states):
    seen = []
    strategy = DataAware(fed_avg(), ratio=0.05, run="kept")
    strategy.start(LocalGrid(toward(seen=seen), NODES), first("bfloat16"), num_rounds=1)
    for part in range(NODES):
        node = kept_by(states, "kept", part)
        (computed,) = [change for who, _, change in seen if who == part]
        assert torch.equal(node.uplink.feedback.residual + node.uplink.pending.dense(), computed)
        assert node.uplink.feedback.residual.dtype == torch.float32


def test_the_app_is_not_blamed_for_rounding():
    """What the app does not change is no change, though the model has more digits than its type."""
    layout = Layout.of(first("float16", "bfloat16", "float32"))
    vector = torch.linspace(0, 1, 3 * SIZE)
    seen = layout.split(layout.join(AppModel(vector, []))).vector
    assert torch.equal(seen, layout.rounded(vector))
    assert not torch.equal(seen, vector)
    assert torch.equal(seen[2 * SIZE :], vector[2 * SIZE :])
    assert torch.equal(layout.split(layout.join(AppModel(vector, []), wide=True)).vector, vector)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_what_goes_whole_is_finite_in_every_precision(kind, wrong):
    arrays = ArrayRecord({**dict(first("float32").items()), "kept": as_type(torch.ones(3), kind)})
    layout = Layout.of(arrays, ["kept"])
    payload = layout.pack(b"frame", [np.array([1, wrong, 2], "float32" if kind == "bfloat16" else kind)])
    with pytest.raises(MalformedPayload, match="array 'kept' holds NaN, infinity"):
        layout.unpack(payload)


def test_bfloat16_that_goes_whole_is_whole(states):
    arrays = ArrayRecord({**dict(first("float32").items()), "kept": bfloat16(torch.tensor([[1.5, -2.0]]))})
    layout = Layout.of(arrays, ["kept"])
    model = layout.split(arrays)
    frame, whole = layout.unpack(layout.pack(b"frame", model.whole))
    assert bytes(frame) == b"frame"
    assert whole[0].tolist() == [[1.5, -2.0]]
    assert tensor_of(layout.join(AppModel(model.vector, whole))["kept"]).tolist() == [[1.5, -2.0]]
    assert layout.whole_bytes == 4
    bad = layout.pack(b"", [np.array([[np.inf, 1.0]], np.float32)])
    with pytest.raises(MalformedPayload, match="NaN, infinity"):
        layout.unpack(bad)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "object", "U3"])
def test_other_types_are_refused_by_name(dtype):
    arrays = ArrayRecord({"odd": Array(dtype, (1,), "numpy.ndarray", b"x")})
    with pytest.raises(InvalidInput, match=f"array 'odd' is of type {dtype}: use bool, .*, bfloat16"):
        Layout.of(arrays)


def test_nodes_can_draw_a_first_model_of_half_precision(states):
    torch.manual_seed(3)
    model = ArrayRecord({"w": bfloat16(torch.randn(SIZE)), "v": Array(torch.randn(SIZE).half().numpy())})
    app = toward(mod=compress_with(lambda context: model))
    strategy = DataAware(fed_avg(), ratio=0.05, first_model="drawn", run="drawn")
    strategy.start(LocalGrid(app, NODES), model, num_rounds=2)
    lines = read_metrics(states / "runs" / "drawn")
    assert [line["present"] for line in lines] == [NODES] * 2
    assert lines[0]["down"] < 1000


class Adapters(nn.Module):
    """A frozen layer with a LoRA adapter, tied embeddings, an integer buffer: as one finds them in language models."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.base = nn.Linear(64, 32, bias=False)
        self.base.weight.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(64, 4, bias=False), nn.Linear(4, 32, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.head, self.tied = nn.Linear(32, 10, bias=False), nn.Linear(32, 10, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("position_ids", torch.arange(7))

    def forward(self, x):
        x = x.flatten(1)
        return self.tied(torch.relu(self.base(x) + self.lora_B(self.lora_A(x)))) + self.head(self.base(x))

    def parameters(self, recurse=True):
        return (p for p in super().parameters(recurse) if p.requires_grad)


def test_frozen_weights_cost_nothing_and_tied_ones_stay_tied(states):
    grid = LocalGrid(client_app(model=Adapters), NODES)
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="adapters")
    result = start(strategy, grid, 30, model=Adapters)
    before, after = Adapters().state_dict(), result.arrays.to_torch_state_dict()
    assert torch.equal(after["base.weight"], before["base.weight"])
    assert not torch.equal(after["lora_B.weight"], before["lora_B.weight"])
    assert torch.equal(after["position_ids"], torch.arange(7))
    assert after["position_ids"].dtype == torch.int64
    own = Adapters()
    own.load_state_dict(after)
    assert own.tied.weight is own.head.weight
    losses = [metrics["train_loss"] for metrics in result.train_metrics_clientapp.values()]
    assert losses[-1] < 0.6 * losses[0]


def test_a_state_dict_of_adapters_alone_is_a_model_too(states):
    """As PEFT's get_peft_model_state_dict gives it: the names of some parameters, and nothing else."""

    def adapters(model):
        return {name: value for name, value in model.state_dict().items() if "lora" in name}

    plain, app = client_app(model=Adapters, mods=()), ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        whole = Adapters().state_dict() | message.content["arrays"].to_torch_state_dict()
        message.content["arrays"] = ArrayRecord(whole)
        reply = plain(message, context)
        own = {name: array for name, array in reply.content["arrays"].items() if "lora" in name}
        reply.content["arrays"] = ArrayRecord({name: Array(a.numpy().astype(np.float16)) for name, a in own.items()})
        return reply

    model = ArrayRecord({name: value.half() for name, value in adapters(Adapters()).items()})
    result = DataAware(fed_avg(), ratio=0.05, run="lora").start(LocalGrid(app, NODES), model, num_rounds=20)
    assert {array.dtype for array in result.arrays.values()} == {"float16"}
    losses = [metrics["train_loss"] for metrics in result.train_metrics_clientapp.values()]
    assert losses[-1] < losses[0]


# Bytes


def test_bytes_are_among_the_metrics_and_in_the_log(states, caplog):
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="counted", budget_mb=0.013)
    with caplog.at_level(logging.INFO, "dagc.flower"):
        result = start(strategy, LocalGrid(client_app(), NODES), 4)
    lines = read_metrics(states / "runs" / "counted")
    assert len(lines) == 4
    for line in lines:
        metrics = result.train_metrics_clientapp[line["round"]]
        assert metrics["dagc-mb-up"] == line["up"] / 1e6
        assert metrics["dagc-mb-down"] == line["down"] / 1e6
        assert metrics["dagc-mb-total"] == (line["bytes_up"] + line["bytes_down"]) / 1e6
        assert metrics["train_loss"] > 0
    last = lines[-1]
    total = (last["bytes_up"] + last["bytes_down"]) / 1e6
    assert f"; {total:.3f} MB so far of 0.013 MB ({total / 0.013:.2%})" in caplog.text
    assert caplog.text.count("the budget of 0.013 MB is used up; the run goes on") == 1


class Counting(FedAvg):
    """Notes what Flower's strategies count of a round."""

    def __init__(self, **options):
        super().__init__(**options)
        self.counts = []

    def _check_and_log_replies(self, replies, is_train, validate=True):
        good, bad = super()._check_and_log_replies(replies, is_train, validate)
        if is_train:
            self.counts.append((len(good), len(bad)))
        return good, bad


class Own(Counting):
    """A strategy of somebody's own, which gets every node's model."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies))


@pytest.mark.parametrize(("kind", "counts"), [(Counting, [(1, 0), (1, 1), (1, 0)]), (Own, [(4, 0), (3, 1), (3, 0)])])
def test_the_inner_strategy_gets_one_mean_or_every_nodes_model_and_all_failures(caplog, kind, counts):
    grid = LocalGrid(client_app(), NODES)

    def spoil(reply):
        about = reply.content["dagc"]
        if about["kind"] == "train" and about["round"] == 2 and about["name"] == "partition-1":
            reply.content["arrays"] = ArrayRecord({"x": Array(np.zeros(3))})
        return [] if about["round"] == 3 and about["name"] == "partition-2" else [reply]

    grid.on_reply = spoil
    inner = kind(fraction_evaluate=0.0)
    start(DataAware(inner, ratio=0.02), grid, 3)
    assert inner.counts == counts
    assert f"Received {counts[0][0]} results and 0 failures" in caplog.text
    assert "dagc: round 1: 4 of 4 nodes" in caplog.text


def test_metrics_are_those_of_all_nodes_even_if_the_strategy_gets_one_reply():
    """A function of somebody's own sees every node's metrics; those of the one reply are their means."""
    seen = []

    def aggregate(contents, key):
        seen.append([dict(content["metrics"]) for content in contents])
        return MetricRecord({"largest": max(float(content["metrics"]["train_loss"]) for content in contents)})

    result = start(
        DataAware(fed_avg(train_metrics_aggr_fn=aggregate), method="dagc-r", ratio=0.02),
        LocalGrid(client_app(), NODES), 1,
    )  # fmt: skip
    mean, everybody = seen
    assert [len(mean), len(everybody)] == [1, NODES]
    examples = [each["num-examples"] for each in everybody]
    assert mean[0]["num-examples"] == sum(examples)
    losses = [each["train_loss"] for each in everybody]
    assert mean[0]["train_loss"] == pytest.approx(np.average(losses, weights=examples))
    assert result.train_metrics_clientapp[1]["largest"] == max(losses)


def test_an_evaluation_on_the_nodes_counts_in_the_metrics_of_the_next_round(states):
    result = start(DataAware(FedAvg(), method="dagc-r", ratio=0.02, run="counted"), LocalGrid(client_app(), NODES), 3)
    lines = read_metrics(states / "runs" / "counted")
    *metrics, last = result.train_metrics_clientapp.values()
    down = sum(each["dagc-mb-down"] for each in (*metrics, last))
    assert 0 < down < sum(line["down"] for line in lines) / 1e6
    assert last["dagc-mb-total"] == pytest.approx(down + sum(line["up"] for line in lines) / 1e6)
