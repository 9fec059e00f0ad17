"""Beside Flower's other mods and strategies: each works with its guarantee intact, or is refused with the reason."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)

import dagc
from dagc.errors import InvalidInput, OutsideBound, TooFewNodes
from dagc.flower import DataAware, compress
from dagc.flower.messages import RECORD
from dagc.folder import read_metrics
from dagc.protocol import ModelServer, Plan, Uplink
from dagc.wire import VALUE_CODECS
from tests.flower.apps import NODES, WithBatchNorm, client_app, fed_avg, flat, kept_by, start, states
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

SIZE = 60
GOAL = torch.linspace(-3, 3, SIZE)


def toward(*mods, rate=0.5):
    """An app that goes half of the way to a goal in every round, and reports how far it is."""
    app = ClientApp(mods=[compress, *mods])

    @app.train()
    def train(message, context):
        model = torch.from_numpy(message.content["arrays"]["w"].numpy().copy())
        metrics = MetricRecord({"num-examples": 10, "train_loss": float((GOAL - model).norm())})
        arrays = ArrayRecord({"w": Array((model + rate * (GOAL - model)).numpy())})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def run(strategy, *mods, nodes=NODES, rounds=12, rate=0.5, **settings):
    """What the server reads of every node, by round, and the result."""
    grid, sent = LocalGrid(toward(*mods, rate=rate), nodes), []

    def read(reply):
        about = reply.content.config_records.get(RECORD) if reply.has_content() else None
        if about is not None and about["kind"] == "train" and reply.content["arrays"][RECORD].data:
            values = dagc.decode(reply.content["arrays"][RECORD].data, size=SIZE, round=about["round"]).values
            sent.append((about["round"], float(np.linalg.norm(values.astype(np.float64)))))
        return [reply]

    grid.on_reply = read
    first = ArrayRecord({"w": Array(np.zeros(SIZE, np.float32))})
    aware = DataAware(strategy, **{"method": "dagc-r", "ratio": 0.2, **settings})
    return sent, aware.start(grid, first, num_rounds=rounds)


def losses(result):
    return [metrics["train_loss"] for metrics in result.train_metrics_clientapp.values()]


# Strategies

OFF = {"fraction_evaluate": 0.0}
LEARNING = {
    "FedAvg": lambda: FedAvg(**OFF),
    "FedProx": lambda: FedProx(**OFF, proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(**OFF, server_momentum=0.1),
    "FedAdam": lambda: FedAdam(**OFF, eta=0.3),
    "FedYogi": lambda: FedYogi(**OFF, eta=0.05),
    "FedAdagrad": lambda: FedAdagrad(**OFF, eta=1.0),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=0.5, q=0.1, **OFF),
    "FedMedian": lambda: FedMedian(**OFF),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(**OFF),
    "Krum": lambda: Krum(**OFF, num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(**OFF, num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: Bulyan(**OFF, num_malicious_nodes=1),
}


@pytest.mark.parametrize("name", LEARNING)
def test_every_strategy_learns_from_what_is_sent(name):
    _, result = run(LEARNING[name](), nodes=7, rounds=25, rate=0.2)
    found = losses(result)
    assert len(found) == 25
    assert found[-1] < 0.5 * found[0]


class LargestNode(FedAvg):
    """Somebody's own: takes the model of the node whose model is largest."""

    def aggregate_train(self, server_round, replies):
        replies = [reply for reply in replies if not reply.has_error()]
        best = max(replies, key=lambda reply: np.abs(reply.content["arrays"]["w"].numpy()).sum())
        return best.content["arrays"], MetricRecord({"train_loss": best.content["metrics"]["train_loss"]})


def test_a_strategy_of_ones_own_gets_every_nodes_model():
    _, result = run(LargestNode(**OFF), rounds=20)
    assert losses(result)[-1] < 0.5 * losses(result)[0]


@pytest.mark.parametrize("name", ["FedMedian", "FedTrimmedAvg", "Bulyan"])
@pytest.mark.parametrize(
    "plan", [{"ratio": 0.05}, {"bytes": 40}, {"method": "dagc"}, {"method": "dagc-a", "threshold": 1}]
)
def test_medians_of_entries_that_few_nodes_send_are_refused(name, plan):
    with pytest.raises(InvalidInput, match=f"{name} compares what nodes say about each entry.*give a ratio of 0.1"):
        DataAware(LEARNING[name](), **{"method": "dagc-r", **plan}).start(LocalGrid(toward(), 7), ArrayRecord({}))


@pytest.mark.parametrize("name", ["Krum", "MultiKrum"])
def test_krum_is_refused_where_nodes_wait(name):
    with pytest.raises(InvalidInput, match=f"{name} compares nodes, and with this plan some of them send nothing"):
        DataAware(LEARNING[name](), method="dagc-r", ratio=0.2, overhead=0.2).start(
            LocalGrid(toward(), 7), ArrayRecord({})
        )


@pytest.mark.parametrize("name", ["FedMedian", "FedTrimmedAvg", "Bulyan", "Krum", "MultiKrum"])
def test_who_compares_nodes_needs_only_a_ratio(name):
    """The default method lets nodes wait, but not with such a strategy."""
    aware = DataAware(LEARNING[name](), ratio=0.2)
    aware.start(LocalGrid(toward(), 7), ArrayRecord({"w": Array(np.zeros(SIZE, np.float32))}), num_rounds=2)
    assert aware.plan.overhead == 0


# What is sent is clipped, with what was kept back


@pytest.mark.parametrize("values", [*VALUE_CODECS, "auto"])
@pytest.mark.parametrize("clip", [1e-30, 0.01, 1.0, 1e6])
def test_no_upload_is_longer_than_clip_and_nothing_is_lost(values, clip):
    plan = Plan(method="thrifty", ratio=0.2, values=values, clip=clip)
    server = ModelServer(plan, torch.zeros(100))
    client = Uplink(server.plan.for_clients(), [100])
    server.join("a", 10)
    delivered, computed = torch.zeros(100, dtype=torch.float64), torch.zeros(100, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        order = server.orders(["a"])["a"]
        client.settle(order.accepted)
        gradient = torch.randn(100, generator=generator)
        upload = server.read("a", client.upload(gradient, order).frame)
        computed += gradient
        delivered += upload.update.dense()
        assert np.linalg.norm(upload.update.values.astype(np.float64)) <= clip
        server.close([upload])
    assert torch.allclose(delivered + client.feedback.residual, computed, atol=1e-4)
    if clip in (0.01, 1.0):
        assert delivered.norm() > 0.9 * clip


def test_the_server_refuses_what_is_longer_than_clip():
    server = ModelServer(Plan(method="dagc-r", ratio=0.5, clip=1.0), torch.zeros(10))
    client = Uplink(server.plan.for_clients(), [10])
    server.join("a", 10)
    order = server.orders(["a"])["a"]
    with pytest.raises(OutsideBound, match="more than clip = 1"):
        server.read("a", client.upload(torch.ones(10), order._replace(clip=0.0)).frame)


def test_a_rounds_own_bound_counts_beside_the_plans():
    server = ModelServer(Plan(method="dagc-r", ratio=0.5, clip=1.0), torch.zeros(10))
    server.join("a", 10)
    assert [server.orders(["a"], clip=bound)["a"].clip for bound in (None, 0.5, 2.0)] == [1.0, 0.5, 1.0]


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), "much"])
def test_a_clip_that_bounds_nothing_is_refused(wrong):
    with pytest.raises(InvalidInput, match="clip is"):
        Plan(ratio=0.1, clip=wrong)


# Differential privacy


def noisy(kind, **options):
    fixed = {"clipping_norm": 0.5} if "Fixed" in kind.__name__ else {"initial_clipping_norm": 0.5}
    return kind(FedAvg(**OFF), noise_multiplier=0.01, num_sampled_clients=NODES, **fixed, **options)


def test_clipping_by_flowers_mod_alone_does_not_bound_what_is_sent():
    """Why a strategy's bound is ours, too: without that, what was kept back comes on top."""
    sent, _ = run(FedAvg(**OFF), clip_after(0.5))
    assert max(norm for _, norm in sent) > 0.6


def clip_after(bound):
    """What fixedclipping_mod does, without the server's word for it."""

    def mod(message, context, call_next):
        message.content["config"] = ConfigRecord({**dict(message.content["config"]), "clipping_norm": bound})
        return fixedclipping_mod(message, context, call_next)

    return mod


@pytest.mark.parametrize(
    ("kind", "mod"),
    [
        (DifferentialPrivacyClientSideFixedClipping, fixedclipping_mod),
        (DifferentialPrivacyClientSideAdaptiveClipping, adaptiveclipping_mod),
    ],
)
@pytest.mark.parametrize("values", ["fp32", "sign"])
def test_with_clipping_on_nodes_what_they_send_is_within_the_bound(kind, mod, values):
    strategy = noisy(kind)
    bounds, usual = {}, strategy.configure_train

    def configure(number, arrays, config, grid):
        bounds[number] = strategy.clipping_norm
        return usual(number, arrays, config, grid)

    strategy.configure_train = configure
    sent, result = run(strategy, mod, values=values, rounds=15)
    assert len(sent) == 15 * NODES
    assert all(norm <= bounds[number] for number, norm in sent)
    assert max(norm / bounds[number] for number, norm in sent) > 0.99
    assert losses(result)[-1] < losses(result)[0]


@pytest.mark.parametrize(
    "kind", [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyServerSideAdaptiveClipping]
)
@pytest.mark.parametrize("down", ["lossless", "same"])
def test_with_clipping_on_the_server_every_nodes_part_is_within_the_bound_and_noise_is_on_all_entries(kind, down):
    strategy = noisy(kind)
    seen, inner = [], strategy.strategy
    usual = inner.aggregate_train

    def aggregate(number, replies):
        before = strategy.current_arrays["w"].numpy()
        seen.extend(float(np.linalg.norm(reply.content["arrays"]["w"].numpy() - before)) for reply in replies)
        return usual(number, replies)

    inner.aggregate_train = aggregate
    _, result = run(strategy, down=down, rounds=15)
    assert len(seen) == 15 * NODES
    assert max(seen) < 3
    if kind is DifferentialPrivacyServerSideFixedClipping:
        assert max(seen) <= 0.5001
    assert losses(result)[-1] < losses(result)[0]
    if down == "lossless":
        assert np.count_nonzero(result.arrays["w"].numpy()) == SIZE


@pytest.mark.parametrize(
    "kind", [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyServerSideAdaptiveClipping]
)
@pytest.mark.parametrize("plan", [{"ratio": None}, {"ratio": 0.05}, {"ratio": 0.05, "overhead": 0.25}])
def test_with_clipping_on_the_server_nodes_may_wait(kind, plan):
    """Flower divides by the length of what a node sends, and a node that waits sends nothing."""
    sent, result = run(noisy(kind), **{"method": "thrifty", "frames": "compact", "rounds": 20, **plan})
    assert 0 < len(sent) < 20 * NODES
    assert losses(result)[-1] < losses(result)[0]


def test_a_bound_that_adapts_is_in_the_checkpoint(states):
    def bound(rounds):
        strategy = noisy(DifferentialPrivacyServerSideAdaptiveClipping)
        run(strategy, run="adapts", rounds=rounds)
        return strategy.clipping_norm

    first = bound(3)
    assert first != 0.5
    assert bound(3) == first  # no round is left


def test_moments_of_a_strategy_inside_a_wrapper_are_in_the_checkpoint(states):
    def done(name, rounds):
        strategy = DifferentialPrivacyServerSideFixedClipping(FedAdam(**OFF), 0.0, 0.5, NODES)
        return run(strategy, run=name, rounds=rounds)[1].arrays["w"].numpy()

    straight = done("straight", 6)
    done("parts", 3)
    assert np.array_equal(done("parts", 6), straight)


def test_a_run_with_a_privacy_accountant_is_not_resumed(states):
    strategy = noisy(DifferentialPrivacyServerSideFixedClipping)
    run(strategy, run="spent", rounds=2)
    strategy = noisy(DifferentialPrivacyServerSideFixedClipping)
    strategy.accountant = object()
    with pytest.raises(InvalidInput, match="privacy accountant does not know what its rounds have spent"):
        run(strategy, run="spent", rounds=4)


def test_with_arrays_that_go_whole_clipping_is_refused():
    for strategy, settings in (
        (noisy(DifferentialPrivacyClientSideFixedClipping), {}),
        (fed_avg(), {"clip": 1.0}),
    ):
        grid = LocalGrid(client_app(model=WithBatchNorm), NODES)
        with pytest.raises(
            InvalidInput, match=r"clip bounds what is compressed, but precise, body.2.running_mean.* goes whole"
        ):
            start(DataAware(strategy, method="dagc-r", ratio=0.1, **settings), grid, 1, model=WithBatchNorm)


def test_dagc_goes_around_the_wrappers_of_flower():
    strategy = noisy(DifferentialPrivacyServerSideFixedClipping)
    strategy.strategy = DataAware(FedAvg(**OFF), method="dagc-r", ratio=0.2)
    with pytest.raises(InvalidInput, match="other wrappers go inside"):
        strategy.start(LocalGrid(toward(), NODES), ArrayRecord({"w": Array(np.zeros(SIZE, np.float32))}))


def test_with_local_privacy_all_that_is_kept_or_sent_was_made_noisy_before(states):
    """What LocalDpMod lets out of the app is all that dagc ever sees, so whatever it does is post-processing."""
    seen = {}

    class Watching(LocalDpMod):
        def __call__(self, message, context, call_next):
            before = torch.from_numpy(message.content["arrays"]["w"].numpy().copy())
            reply = super().__call__(message, context, call_next)
            change = before - torch.from_numpy(reply.content["arrays"]["w"].numpy().copy())
            part = context.node_config["partition-id"]
            seen[part] = seen.get(part, 0) + change.double()
            return reply

    mod = Watching(clipping_norm=0.5, sensitivity=0.01, epsilon=1.0, delta=1e-5)
    sent, _ = run(FedAvg(**OFF), mod, run="local", method="top-k")
    assert len(sent) == 12 * NODES
    for part in range(NODES):
        left = kept_by(states, "local", part).uplink.feedback.residual.double()
        assert left.norm() > 0
        assert left.count_nonzero() > SIZE / 2
        assert seen[part].norm() < 12 * (0.5 + 0.01 * 6 * SIZE**0.5)


# Order, and others


@pytest.mark.parametrize(
    "mod",
    [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(1.0, 0.1, 1.0, 1e-5)],
    ids=["fixed", "adaptive", "local"],
)
def test_a_mod_that_changes_the_model_is_refused_before_ours(mod):
    kinds = {
        fixedclipping_mod: DifferentialPrivacyClientSideFixedClipping,
        adaptiveclipping_mod: DifferentialPrivacyClientSideAdaptiveClipping,
    }
    strategy = noisy(kinds[mod]) if mod in kinds else FedAvg(**OFF)
    app = client_app(mods=(mod, compress))
    with pytest.raises(TooFewNodes, match="is not the first mod"):
        start(DataAware(strategy, method="dagc-r", ratio=0.2), LocalGrid(app, NODES), 2)


@pytest.mark.parametrize("first", [True, False])
def test_mods_that_only_look_go_before_and_after(first):
    looks = (message_size_mod, arrays_size_mod)
    app = client_app(mods=(*looks, compress) if first else (compress, *looks))
    result = start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(app, NODES), 2)
    plain = start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(), NODES), 2)
    assert torch.equal(flat(result.arrays), flat(plain.arrays))


@pytest.mark.parametrize("mods", [(compress, secaggplus_mod), (secaggplus_mod, compress)])
def test_secure_aggregation_is_refused_with_the_reason(mods):
    with pytest.raises(TooFewNodes, match="secure aggregation adds up masked vectors of all entries"):
        start(DataAware(fed_avg(), method="dagc-r", ratio=0.02), LocalGrid(client_app(mods=mods), NODES), 2)


def test_the_results_of_a_run_say_which_strategy_it_was(states):
    run(LEARNING["FedYogi"](), run="named", rounds=1)
    assert 'strategy = "FedYogi"' in (states / "runs" / "named" / "config.toml").read_text()
    assert len(read_metrics(states / "runs" / "named")) == 1
