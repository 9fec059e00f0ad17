"""Local steps on 1 to 4 gloo processes: exact, and equal to the local engine."""

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from dagc import InvalidInput
from dagc.ddp import LocalSteps, local_steps
from dagc.protocol import Plan
from dagc.training import Config, Federation
from tests.ddp.scripts import EXAMPLES, alike, around, as_rank, counting, good, one_step, sgd, small, trained, weights

# The same training as in the local engine


def as_engine(config, options):
    """A script for a configuration of the local engine, where rank i is client i."""
    plan, (model, examples, batch) = config.plan(), as_rank(config)
    local = LocalSteps(
        model, plan=plan.replaced(first_model="sent"), examples=examples, steps=config.local_steps,
        rounds=config.rounds, **{"momentum": 0, **options},
    )  # fmt: skip
    models, payload = [], 0
    for _ in trained(model, config, batch, config.rounds * config.local_steps):
        exchanged = local.step()
        if exchanged is not None:
            assert plan.step_ahead or torch.equal(weights(model), local.shared)
            models.append(local.shared.clone())
            payload += exchanged.payload
    return models, local.uplink.feedback.residual, payload


@pytest.mark.parametrize(
    ("world", "settings", "options"),
    [
        (2, {"ratio": 0.01}, {}),
        (4, {"ratio": 0.01, "values": "int8"}, {}),
        (4, {"ratio": 0.02, "values": "sign", "per_tensor": True}, {"momentum": 0.9}),
        (4, {"bytes": 100, "values": "int8", "frames": "compact"}, {"momentum": 0.5}),
        (4, {"bytes": 20, "values": "sign", "frames": "compact", "overhead": 0.25}, {}),
        (4, {"bytes": 60, "values": "sign", "frames": "coded"}, {}),
        (4, {"ratio": 0.02, "values": "int8", "frames": "coded"}, {"momentum": 0.9}),
        (4, {"rate": "2 kB/training", "values": "int8"}, {}),
        (4, {"ratio": 0.02, "caps": {"0": 0.01, "3": 0.05}}, {}),
        (4, {"method": "accordion", "ratio": 0.01}, {}),
        (4, {"method": "random-k", "ratio": 0.05, "values": "int8"}, {}),
        (4, {"method": "dagc-a", "threshold": 0.01, "values": "int8"}, {}),
        (4, {"method": "dagc", "bytes": 300, "down": "lossless", "first_model": "drawn"}, {"momentum": 0.9}),
        (4, {"method": "thrifty", "down": "lossless", "first_model": "drawn"}, {}),
        (4, {"ratio": 0.01, "step_ahead": 1.0, "clip": 0.5}, {"outer_rate": 0.5, "momentum": 0.5}),
        (2, {"method": "none"}, {"momentum": 0.9}),
    ],
)
def test_after_every_exchange_replicas_and_the_local_engine_are_bit_identical(two, four, world, settings, options):
    outer = {"momentum": options["momentum"], "nesterov": True} if options else {}
    rate = options.get("outer_rate", 1.0)
    config = Config(
        task="mlp@digits", clients=world, skew_ratio=10, rounds=12, local_steps=4, learning_rate=0.1, seed=3,
        optimizer_options=outer, server_rate=rate, threads=1, **{"method": "dagc-r", **settings},
    )  # fmt: skip
    answers = good({2: two, 4: four}[world].run(as_engine, config, options))
    engine = Federation(config)
    start = engine.vector.clone()
    for number in range(config.rounds):
        done = engine.step()
        assert alike([engine.vector, *(models[number] for models, _, _ in answers)]), f"exchange {number}"
    assert not torch.equal(engine.vector, start)
    assert sum(payload for _, _, payload in answers) == done.bytes_up > 0
    for (_, residual, _), name in zip(answers, engine.names, strict=True):
        assert torch.equal(residual, engine.uplinks[name].feedback.residual)


# What is exchanged


class Parts(nn.Module):
    """A body, a head, a frozen layer, a buffer and a convolution that is channels-last."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 1).to(memory_format=torch.channels_last)
        self.body, self.head, self.frozen = nn.Linear(20, 20), nn.Linear(20, 5), nn.Linear(20, 20)
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += dist.get_rank() + 1
        x = self.convolution(x.view(8, 4, 5, 1)).flatten(1)
        return self.head(self.frozen(self.body(x)))


def with_patterns():
    torch.manual_seed(0)
    model = Parts()
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    local = around(model, method="none", ratio=None, local=["head.*"])
    for step in range(6):
        one_step(model, sgd(model), step)
        local.step()
    return first, model.state_dict(), local.uplink.size


def test_local_heads_frozen_layers_and_buffers_stay_on_their_rank(two):
    (first, one, size), (_, other, _) = good(two.run(with_patterns))
    assert size == 20 + 420
    for name in first:
        moved = "body" in name or "convolution" in name
        assert torch.equal(one[name], other[name]) == (moved or "frozen" in name), name
        assert torch.equal(one[name], first[name]) == ("frozen" in name), name


def in_half(dtype, values):
    model = small().to(dtype)
    local = around(model, values=values)
    offered = counting(local)
    start = local.shared.double()
    for step in range(12):
        one_step(model, sgd(model), step)
        local.step()
    # A round in which nothing moves: the shared model has more digits than the parameters.
    before = offered.clone()
    for _ in range(3):
        local.step()
    still = torch.equal(offered, before)
    dtypes = (model[0].weight.dtype, local.uplink.feedback.residual.dtype, local.shared.dtype)
    return weights(model), start - local.shared.double(), offered, local.uplink.feedback.residual, still, dtypes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("values", ["fp32", "int8"])
def test_half_precision_parameters_have_float32_residuals_and_lose_nothing(two, dtype, values):
    answers = good(two.run(in_half, dtype, values))
    assert alike([model for model, *_ in answers])
    shares = np.array(EXAMPLES[:2]) / sum(EXAMPLES[:2])
    unsent = sum(p * (offered - residual) for p, (_, _, offered, residual, *_) in zip(shares, answers, strict=True))
    for _, moved, _, _, still, dtypes in answers:
        assert torch.allclose(moved, unsent, rtol=1e-4, atol=1e-6)
        assert moved.any()
        assert still
        assert dtypes == (dtype, torch.float32, torch.float32)


def outer(rate, momentum):
    model = small()
    local = around(model, method="none", ratio=None, outer_rate=rate, momentum=momentum)
    offered, vectors, moves = counting(local), [local.shared.double()], []
    for step in range(9):
        one_step(model, sgd(model), step)
        before = offered.clone()
        if local.step():
            vectors.append(local.shared.double())
            moves.append(offered - before)
    return vectors, moves


@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.0), (0.7, 0.9)])
def test_the_outer_optimizer_is_plain_or_nesterov(two, rate, momentum):
    answers = good(two.run(outer, rate, momentum))
    shares = np.array(EXAMPLES[:2]) / sum(EXAMPLES[:2])
    vector, velocity = answers[0][0][0], 0.0
    for number in range(3):
        mean = sum(p * moves[number] for p, (_, moves) in zip(shares, answers, strict=True))
        velocity = momentum * velocity + mean
        vector = vector - rate * (mean + momentum * velocity)
        assert torch.allclose(answers[0][0][number + 1], vector, rtol=1e-5, atol=1e-6)


def momentum_of(options):
    """The momentum, and whether there is a vector for it."""
    local = LocalSteps(small(), examples=1, **options)
    return local.momentum, local.state_dict()["velocity"] is not None


@pytest.mark.parametrize(
    ("options", "momentum"),
    [
        ({}, 0.5),
        ({"method": "none"}, 0.5),
        ({"ratio": 0.05}, 0.5),
        ({"bytes": 40}, 0.0),
        ({"method": "thrifty"}, 0.0),
        ({"method": "dagc-r", "ratio": 0.1}, 0.0),
        ({"momentum": 0}, 0.0),
        ({"bytes": 40, "momentum": 0.9}, 0.9),
    ],
)
def test_momentum_is_on_where_messages_carry_most_of_the_change(two, options, momentum):
    assert good(two.run(momentum_of, options)) == [(momentum, momentum > 0)] * 2


def test_the_default_budget_is_four_times_that_of_a_round(two):
    for payload, momentum in good(two.run(default_exchange)):
        assert 2 * 78 < payload <= 4 * 78  # of 785 parameters
        assert momentum == 0.5


def default_exchange():
    """The bytes of the first exchange without a setting."""
    model = small()
    local = LocalSteps(model, examples=1, steps=1)
    one_step(model, sgd(model), 0)
    return local.step().payload, local.momentum


def without_data(examples):
    model = small()
    local = around(model, examples=examples[dist.get_rank()])
    residual = local.uplink.feedback.residual
    for step in range(3):
        one_step(model, sgd(model), step)
        exchanged = local.step()
    return weights(model), exchanged.entries, torch.equal(local.uplink.feedback.residual, residual)


def test_a_rank_without_data_takes_part_without_a_say(two):
    (one, entries, same), (other, none, unchanged) = good(two.run(without_data, (5, 0)))
    assert torch.equal(one, other)
    assert (entries > 0, none, same, unchanged) == (True, 0, False, True)


# How many steps


class Ticks:
    """A clock on which every call takes as long."""

    def __init__(self, tick):
        self.tick, self.now = tick, 0.0

    def __call__(self):
        self.now += self.tick
        return self.now


def paced(options, seconds_per_step):
    """How many local steps each exchange had, with a clock of our own."""
    clock = Ticks(0.0)
    real, local_steps.perf_counter = local_steps.perf_counter, clock
    try:
        model = small()
        local, counts, payload = around(model, steps=2, **options), [], 0
        for step in range(400):
            one_step(model, sgd(model), step)
            clock.now += seconds_per_step[dist.get_rank()]
            exchanged = local.step()
            if exchanged is not None:
                counts.append(exchanged.steps)
                payload += exchanged.payload
        return counts, payload, clock.now
    finally:
        local_steps.perf_counter = real


@pytest.mark.parametrize("overlap", [False, True])
def test_a_time_between_exchanges_is_that_of_the_slowest_rank(two, overlap):
    answers = good(two.run(paced, {"seconds": 8.0, "overlap": overlap}, (0.5, 1.0)))
    assert answers[0][0] == answers[1][0]
    assert answers[0][0][:3] == ([2, 2, 8] if overlap else [2, 8, 8])
    assert set(answers[0][0][2:]) == {8}


def test_a_rate_per_hour_makes_local_steps_until_the_bytes_are_there(two):
    settings = {"ratio": None, "bytes": 120, "rate": "600 B/hour", "values": "sign"}
    answers = good(two.run(paced, settings, (20.0, 30.0)))
    (counts, payload, seconds), (others, more, _) = answers
    assert counts == others
    assert max(counts) > 10
    assert 0.5 < (payload + more) / (2 * 600 * seconds / 3600) <= 1


# Overlap


def overlapping(settings):
    model = small()
    local = around(model, overlap=True, **settings)
    offered, start = counting(local), local.shared.double()
    vectors, losses = [], []
    for step in range(150):
        losses.append(one_step(model, sgd(model), step))
        if local.step():
            vectors.append(local.shared.clone())
    ahead = weights(model)
    local.finish()
    return vectors, ahead, weights(model), offered, local.uplink.feedback.residual, start, losses


@pytest.mark.parametrize("settings", [{}, {"values": "int8", "momentum": 0.5}])
def test_with_overlap_the_shared_model_is_bit_identical_and_the_books_balance(two, settings):
    answers = good(two.run(overlapping, settings))
    assert len(answers[0][0]) == 49
    for vectors in zip(*(answer[0] for answer in answers), strict=True):
        assert alike(vectors)
    assert not torch.equal(answers[0][1], answers[1][1])  # each is ahead by its own
    assert torch.equal(answers[0][2], answers[1][2])
    for *_, losses in answers:
        assert np.mean(losses[-30:]) < 0.8 * np.mean(losses[:30])
    if "momentum" not in settings:
        shares = np.array(EXAMPLES[:2]) / sum(EXAMPLES[:2])
        pairs = zip(shares, answers, strict=True)
        unsent = sum(p * (offered - residual) for p, (_, _, _, offered, residual, *_) in pairs)
        assert torch.allclose(answers[0][5] - answers[0][2].double(), unsent, rtol=1e-5, atol=1e-6)


def blocked():
    """Local steps go on while the network holds everything back."""
    model = small()
    local = around(model, overlap=True)
    free, send = threading.Event(), local._exchange.all_gather

    def held(message):
        assert free.wait(600)
        return send(message)

    local._exchange.all_gather = held
    for step in range(5):
        one_step(model, sgd(model), step)
        local.step()
    during = local.round
    free.set()
    one_step(model, sgd(model), 5)
    local.step()
    return during, local.round


def test_local_steps_go_on_while_the_exchange_is_on_its_way(two):
    assert good(two.run(blocked)) == [(0, 1)] * 2


# The start, and restarts with as many, fewer and more ranks


def different_models(seeds):
    model = small(seeds[dist.get_rank()])
    local = around(model)
    return local.downloaded, weights(model)


def test_only_ranks_with_another_first_model_download_it(four):
    answers = good(four.run(different_models, (0, 0, 5, 6)))
    assert [downloaded for downloaded, _ in answers] == [False, False, True, True]
    assert alike([model for _, model in answers])


def evaluating():
    """A rank's private model, the shared one inside the block, and what comes after the end."""
    model = small()
    with around(model, steps=3) as local:
        for step in range(4):
            one_step(model, sgd(model), step)
            local.step()
        private = weights(model)
        with local.shared_model() as shared:
            assert shared is model
            inside, expected = weights(model), local.shared.clone()
        same = torch.equal(weights(model), private)
    with pytest.raises(InvalidInput, match="this LocalSteps is closed"):
        local.step()
    local.close()
    return private, inside, expected, same, weights(model), local.round


def test_the_shared_model_can_be_evaluated_between_exchanges_and_a_block_ends_with_finish_and_close(two):
    one, other = good(two.run(evaluating))
    assert not torch.equal(one[0], other[0])
    for private, inside, expected, same, _, rounds in (one, other):
        assert not torch.equal(private, inside)
        assert torch.equal(inside, expected)
        assert (same, rounds) == (True, 2)
    assert torch.equal(one[1], other[1])
    assert torch.equal(one[4], other[4])


def test_a_plan_object_stands_for_its_settings(two):
    for answer in two.run(planned):
        assert not isinstance(answer, Exception), answer


def planned():
    plan = Plan(method="dagc-r", ratio=0.05, values="int8")
    local = LocalSteps(small(), examples=1, plan=plan)
    assert local.server.plan.as_dict() == plan.replaced(down="lossless").as_dict()
    with pytest.raises(InvalidInput, match=r"give plan, a dagc\.Plan, or its settings"):
        LocalSteps(small(), examples=1, plan=plan, ratio=0.5)
    with pytest.raises(InvalidInput, match=r"give plan, a dagc\.Plan, or its settings"):
        LocalSteps(small(), examples=1, plan={"ratio": 0.5})
