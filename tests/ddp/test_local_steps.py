"""Local steps on 1 to 4 gloo processes: exact, equal to the local engine, elastic, and clear when something breaks."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from dagc import DagcError, InvalidInput, NonFiniteGradient
from dagc.data import Batches, load, make_partition
from dagc.ddp import LocalSteps, local_steps
from dagc.models import build
from dagc.protocol import Plan, Uplink
from dagc.training import Config, Federation
from tests.helpers.ranks import PATIENCE, Ranks

EXAMPLES = (700, 200, 90, 10)
EXAMPLE = Path(__file__).parents[2] / "examples" / "internet.py"


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.kill()


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("four"))
    yield ranks
    ranks.kill()


def good(answers):
    """The answers, none of which may be an exception."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    assert None not in answers, "a rank has died"
    return answers


def alike(tensors):
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))


def weights(model):
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def around(model, ratio=0.05, **options):
    usual = {"examples": EXAMPLES[dist.get_rank()], "steps": 3, "method": "dagc-r", "ratio": ratio}
    return LocalSteps(model, **{**usual, **options})


def one_step(model, optimiser, step):
    """A step towards a target that all ranks share, on this rank's own inputs; returns the loss."""
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    x = torch.randn(8, 20, generator=generator).to(next(model.parameters()).dtype)
    optimiser.zero_grad()
    loss = (model(x).float() - x[:, :5].float()).square().mean()
    loss.backward()
    optimiser.step()
    return loss.item()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def counting(local):
    """The sum of all that the client's half was offered; it grows with every upload."""
    offered = torch.zeros(local.uplink.size, dtype=torch.float64)
    upload = local.uplink.upload

    def counted(moved, order):
        offered.add_(torch.cat([part.flatten() for part in moved]))
        return upload(moved, order)

    local.uplink.upload = counted
    return offered


# The same training as in the local engine


def as_engine(config, options):
    """A script for a configuration of the local engine, where rank i is client i."""
    rank = dist.get_rank()
    data = load(config.data)
    partition = make_partition(config.partition_spec, data, config.seed)
    batches = Batches(data, partition, config.batch_size, config.seed)
    model = build(config.model, data, seed=config.seed)
    plan, examples = config.plan(), int(partition.sizes[rank])
    local = LocalSteps(
        model, plan=plan.replaced(first_model="sent"), examples=examples, steps=config.local_steps,
        rounds=config.rounds, **{"momentum": 0, **options},
    )  # fmt: skip
    optimiser = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    models, payload = [], 0
    for step in range(config.rounds * config.local_steps):
        x, y = batches.batch(rank, step)
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
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
        (4, {"method": "dagc", "down": "lossless", "first_model": "drawn"}, {"momentum": 0.9}),
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
def test_the_outer_optimiser_is_plain_or_nesterov(two, rate, momentum):
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
    return local.momentum, local._replica.velocity is not None


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
        assert free.wait(60)
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


def saving(folder, settings, rounds, die=None):
    """A training that saves after every exchange; rank 1 dies in the exchange `die`."""
    rank = dist.get_rank()
    model = small()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    files = [torch.load(path, weights_only=True) for path in sorted(Path(folder).glob("*.pt"))]
    local = around(model, resume=[state["dagc"] for state in files], **settings)
    for state in files:
        at = {name: state["dagc"][name] for name in ("round", "rank", "world_size")}
        if at == {"round": local.round, "rank": rank, "world_size": dist.get_world_size()}:
            optimiser.load_state_dict(state["optimiser"])
    begun = local.uplink.feedback.residual.clone(), local.shared.clone()
    step, losses = 3 * local.round, []
    while local.round < rounds:
        if die is not None and step == 3 * die and rank == 1:
            local.uplink.upload = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        losses.append(one_step(model, optimiser, step))
        step += 1
        if local.step() is not None:
            path = Path(folder) / f"{local.round:03d}-{rank}-of-{dist.get_world_size()}.pt"
            torch.save({"optimiser": optimiser.state_dict(), "dagc": local.state_dict()}, path)
    end = weights(model), local.uplink.feedback.residual, local.shared.clone()
    return {"begun": begun, "end": end, "losses": losses, "missing": local.missing, "downloaded": local.downloaded}


@pytest.mark.parametrize(
    "settings",
    [
        {"values": "int8", "momentum": 0.9, "outer_rate": 0.7, "step_ahead": 0.5},
        {"method": "accordion", "ratio": None, "threshold": 0.002, "values": "int8"},
        {"overlap": True, "values": "sign", "step_ahead": 0.5},
        {"overlap": True, "values": "int8", "frames": "coded"},
    ],
)
def test_killed_and_resumed_with_the_same_ranks_is_as_if_nothing_had_happened(two, tmp_path, settings):
    for name in ("store", "killed", "straight"):
        (tmp_path / name).mkdir()
    doomed = Ranks(2, tmp_path / "store")
    try:
        error, dead = doomed.run(saving, tmp_path / "killed", settings, 9, 4)
    finally:
        doomed.kill()
    assert dead is None
    assert type(error) is DagcError
    assert "rank 0 lost the others in exchange" in str(error)
    assert "a rank has died" in str(error)
    resumed = good(two.run(saving, tmp_path / "killed", settings, 9))
    straight = good(two.run(saving, tmp_path / "straight", settings, 9))
    for ours, expected in zip(resumed, straight, strict=True):
        assert ours["begun"][1].any()
        assert not torch.equal(ours["begun"][1], expected["begun"][1])
        for one, other in zip(ours["end"], expected["end"], strict=True):
            assert torch.equal(one, other)


def books(states, examples):
    """The shared model and what was not sent to it, weighted by data."""
    shares = np.array(examples) / sum(examples)
    return sum(p * residual.double() for p, residual in zip(shares, states, strict=True))


def saved(folder, world):
    """The states of the newest round of which all are there."""
    every = [torch.load(path, weights_only=True)["dagc"] for path in sorted(folder.glob(f"*-of-{world}.pt"))]
    newest = max(state["round"] for state in every if state["rank"] == 1)
    return sorted((state for state in every if state["round"] == newest), key=lambda state: state["rank"])


@pytest.mark.parametrize("overlap", [False, True])
def test_killed_and_resumed_with_fewer_and_then_more_ranks_the_books_balance(four, two, tmp_path, overlap):
    settings = {"values": "int8", "frames": "coded", "overlap": overlap}
    (tmp_path / "store").mkdir()
    doomed = Ranks(4, tmp_path / "store")
    try:
        answers = doomed.run(saving, tmp_path, settings, 30, 8)
    finally:
        doomed.kill()
    assert [answer is None for answer in answers] == [False, True, False, False]
    assert all(type(answer) is DagcError for answer in answers if answer is not None)
    states = saved(tmp_path, 4)
    assert len(states) == 4

    fewer = good(two.run(saving, tmp_path, settings, 16))
    kept = books([state["uplink"]["residual"] for state in states], EXAMPLES)
    assert torch.allclose(books([one["begun"][0] for one in fewer], EXAMPLES[:2]), kept, rtol=1e-5, atol=1e-7)
    assert kept.any()
    for one in fewer:
        assert torch.equal(one["begun"][1], states[0]["shared"])
        assert (one["missing"], one["downloaded"]) == ([], False)
    assert alike([one["end"][2] for one in fewer])

    more = good(four.run(saving, tmp_path, settings, 40))
    kept = books([one["end"][1] for one in fewer], EXAMPLES[:2])
    assert torch.allclose(books([one["begun"][0] for one in more], EXAMPLES), kept, rtol=1e-5, atol=1e-7)
    assert alike([fewer[0]["end"][2], *(one["begun"][1] for one in more)])
    assert alike([one["end"][2] for one in more])
    for one, later in zip(fewer, more, strict=False):
        assert np.mean(later["losses"][-9:]) < np.mean(one["losses"][:9])


def each_its_own(folder, world, settings, allow_missing):
    """Every rank finds its own files only, as on hosts that share nothing."""
    rank = dist.get_rank()
    paths = sorted(Path(folder).glob(f"*-{rank}-of-{world}.pt"))
    states = [torch.load(path, weights_only=True)["dagc"] for path in paths]
    local = around(small(1), resume=states, allow_missing=allow_missing, **settings)
    return local.downloaded, local.missing, local.round, local.shared.clone(), local.uplink.feedback.residual


def test_a_late_rank_downloads_the_model_and_a_lost_one_is_named(two, four, tmp_path):
    settings = {"values": "sign"}
    good(two.run(saving, tmp_path, settings, 4))
    answers = good(four.run(each_its_own, tmp_path, 2, settings, False))
    assert [downloaded for downloaded, *_ in answers] == [False, False, True, True]
    assert alike([shared for *_, shared, _ in answers])
    assert [round for _, _, round, *_ in answers] == [4] * 4
    assert [bool(residual.any()) for *_, residual in answers] == [True, True, False, False]
    for path in tmp_path.glob("*-1-of-2.pt"):
        path.unlink()
    for answer in four.run(each_its_own, tmp_path, 2, settings, False):
        assert isinstance(answer, InvalidInput)
        assert "of the 2 states of round 4, those of the ranks [1] are on no rank" in str(answer)
    answers = good(four.run(each_its_own, tmp_path, 2, settings, True))
    assert [(missing, round) for _, missing, round, *_ in answers] == [([1], 4)] * 4


def test_the_newest_round_that_is_complete_is_resumed(two, tmp_path):
    good(two.run(saving, tmp_path, {}, 4))
    (tmp_path / "004-1-of-2.pt").unlink()
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [3, 3]


def damage(path):
    """A NaN in the residual of a saved state."""
    saved = torch.load(path, weights_only=True)
    saved["dagc"]["uplink"]["residual"][3] = torch.nan
    torch.save(saved, path)


def test_the_next_older_round_is_resumed_if_the_newest_is_damaged(two, tmp_path):
    good(two.run(saving, tmp_path, {}, 4))
    damage(tmp_path / "004-1-of-2.pt")
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [3, 3]


def test_states_of_a_round_that_two_timelines_reached_are_never_mixed(two, tmp_path):
    """The training is continued from round 2 without what came after it; then the lost files come back."""
    good(two.run(saving, tmp_path, {}, 4))
    lost = {path: path.read_bytes() for path in tmp_path.glob("00[34]-*")}
    for path in lost:
        path.unlink()
    good(two.run(saving, tmp_path, {}, 3))
    (tmp_path / "003-1-of-2.pt").unlink()  # rank 1's state of the new round 3 is lost
    for path, content in lost.items():
        if path.name != "003-0-of-2.pt":
            path.write_bytes(content)
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [4, 4], "round 3 is of both timelines, round 4 of one"
    assert alike([shared for *_, shared, _ in answers])
    for path in tmp_path.glob("004-*"):
        path.unlink()
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [2, 2]


def test_states_of_different_trainings_are_refused(two, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        good(two.run(saving, tmp_path / name, {}, 2))
    for path in (tmp_path / "b").iterdir():
        path.rename(tmp_path / "a" / f"b-{path.name}")
    for answer in two.run(saving, tmp_path / "a", {}, 3):
        assert isinstance(answer, InvalidInput)
        assert "the states are of 2 different trainings" in str(answer)


def wrong_states(folder):
    rank = dist.get_rank()
    state = torch.load(f"{folder}/002-{rank}-of-2.pt", weights_only=True)["dagc"]
    uplink = state["uplink"]
    pending = {"indices": torch.tensor([9, 3]), "values": torch.ones(2)}
    mistakes = {
        "has version 2, this is 1: use the version of dagc": {"version": 2},
        "not the state of a dagc.ddp.LocalSteps: it holds": {"more": 1},
        "use the model and settings of it": {"about": {**state["about"], "ratio": 0.5}},
        "its residual is not 785 float32 numbers": {"uplink": {**uplink, "residual": uplink["residual"][1:]}},
        "its shared holds NaN": {"shared": state["shared"] * torch.nan},
        "are not numbers": {"round": -1},
        "it has no examples or no start": {"start": None},
        "start or examples are not numbers": {"start": [1, -1, 1]},
        "its ranks and examples do not fit": {"rank": 2},
        "a state is damaged": {"server": {}},
        "its residual is not": {"uplink": {}},
        "its residual is not 785": {"uplink": 5},
        "due or seconds is invalid": {"seconds": float("nan")},
        "a state is damaged: due": {"due": 0},
        "a state is damaged: .*indices must ascend": {"uplink": {**uplink, "pending": pending}},
        "a state is damaged: .*must be a mapping": {"uplink": {**uplink, "pending": "x"}},
    }
    for wrong in (0, 1):
        for words, change in mistakes.items():
            if wrong and "server" in change:  # that of rank 0 is used everywhere
                continue
            states = [{**state, **change}] if rank == wrong else [state]  # wrong on one rank: an error on all
            with pytest.raises(InvalidInput, match=words):
                around(small(), resume=states, timeout=PATIENCE)
    with pytest.raises(InvalidInput, match=r"not the state of a dagc.ddp.LocalSteps$"):
        around(small(), resume=[{"residual": 1}])
    if rank == 0:
        state = {**state, "shared": state["shared"] + 1}
    with pytest.raises(DagcError, match="ranks 0 and 1 have different shared models after 2 exchanges"):
        around(small(), resume=[state])
    local = around(small(), resume=[])
    local.step()
    with pytest.raises(InvalidInput, match="1 steps were made since the last exchange"):
        local.state_dict()


def test_states_that_cannot_be_used_are_refused_on_all_ranks(two, tmp_path):
    good(two.run(saving, tmp_path, {}, 2))
    for answer in two.run(wrong_states, tmp_path):
        assert not isinstance(answer, Exception), answer


# Errors


def spoilt(overlap, step_ahead):
    """Rank 1's model becomes NaN before the second exchange."""
    model = small()
    local = around(model, overlap=overlap, values="int8", frames="coded", step_ahead=step_ahead)
    messages = []
    for step in range(12):
        if step == 3:
            begun = weights(model)
        one_step(model, sgd(model), step)
        if step == 4:
            before, residual = local.shared.clone(), local.uplink.feedback.residual.clone()
            if dist.get_rank() == 1:
                model[0].weight.data[0, 0] = torch.nan
        try:
            local.step()
        except NonFiniteGradient as error:
            messages.append(str(error))
            same = torch.equal(weights(model), begun if step_ahead else local.shared)
            if not overlap:
                same &= torch.equal(local.shared, before) & torch.equal(local.uplink.feedback.residual, residual)
    local.finish()
    return messages, same, weights(model), local.round


@pytest.mark.parametrize(("overlap", "step_ahead"), [(False, 0.0), (True, 0.0), (False, 0.5)])
def test_a_nan_on_one_rank_is_an_error_on_all_and_they_go_on_from_where_they_began(two, overlap, step_ahead):
    answers = good(two.run(spoilt, overlap, step_ahead))
    assert len({tuple(messages) for messages, *_ in answers}) == 1
    assert len(answers[0][0]) == 1
    assert answers[0][0][0].startswith("rank 1: entry 0 of 785 is nan")
    assert [same for _, same, *_ in answers] == [True, True]
    assert torch.equal(answers[0][2], answers[1][2])
    assert torch.isfinite(answers[0][2]).all()
    assert answers[0][3] == answers[1][3] == (2 if overlap else 3)


def hanging():
    """Rank 1 does not come to the second exchange."""
    model = small()
    local = around(model, timeout=5)
    for step in range(6 - dist.get_rank()):
        one_step(model, sgd(model), step)
        try:
            local.step()
        except DagcError as error:
            return str(error), torch.equal(weights(model), local.shared)
    return None


def test_a_rank_that_hangs_is_given_up_after_the_timeout(two):
    (words, back), _ = two.run(hanging)
    assert "rank 0 lost the others in exchange 1: a rank has died, hangs or is slower" in words
    assert back


def differing():
    """Rank 1's shared model is not the others'."""
    model = small()
    local = around(model)
    if dist.get_rank() == 1:
        local._checksum += 1
    for _ in range(3):
        local.step()


def test_ranks_whose_shared_models_differ_find_out_at_the_next_exchange(two):
    for answer in two.run(differing):
        assert type(answer) is DagcError
        assert "ranks 0 and 1 have different shared models after 0 exchanges" in str(answer)


def making(cases):
    return around(small(), **cases[dist.get_rank()])


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        (({"method": "magic"},) * 2, "there is no method 'magic'"),
        (({"ration": 0.05},) * 2, "there is no setting 'ration': did you mean 'ratio'"),
        (({"steps": 0},) * 2, "steps is 0: it must be an integer of at least 1"),
        (({"steps": 2.5},) * 2, "steps is 2.5: it must be an integer"),
        (({"seconds": 0},) * 2, "seconds is 0: it must be a number above 0"),
        (({"momentum": 1},) * 2, "momentum is 1: it must be a number from 0 to below 1"),
        (({"outer_rate": "fast"},) * 2, "outer_rate is 'fast': it must be a number above 0"),
        (({"timeout": 0},) * 2, "timeout is 0: it must be a number of seconds above 0"),
        (({"local": "2.*"},) * 2, r"give a list of patterns, e.g. ['2.*']"),
        (({"local": ["head.*"]},) * 2, "no trainable parameter is called 'head.*'"),
        (({"local": ["*"]},) * 2, "there is nothing to exchange"),
        (({"down": 100},) * 2, "DDP has no server that sends a model down"),
        (({"first_model": "drawn"},) * 2, "DDP sends the first model itself"),
        (({"caps": {"7": 0.1}},) * 2, "caps: there is no rank '7'"),
        (({"ratio": None, "rate": "1 MB/training"},) * 2, "a rate per training needs rounds"),
        (({}, {"examples": -1}), "rank 1: examples is -1: it must be an integer, 0 or more"),
        (({}, {"steps": 0}), "rank 1: steps is 0: it must be an integer of at least 1"),
        (({}, {"timeout": -1}), "rank 1: timeout is -1: it must be a number of seconds above 0"),
        (({}, {"local": ["head.*"]}), "rank 1: local: no trainable parameter is called 'head.*'"),
        (({"examples": 0},) * 2, "examples is 0 on all ranks"),
        (({}, {"steps": 4}), "ranks 0 and 1 differ in steps; this rank has {'steps': "),
        (({}, {"overlap": True}), "ranks 0 and 1 differ in overlap"),
    ],
)
def test_wrong_arguments_are_refused_on_all_ranks(two, cases, words):
    for answer in two.run(making, cases):
        assert isinstance(answer, InvalidInput)
        assert words in str(answer)


def failing_alone(how):
    """Rank 1 fails while it prepares itself; the others must not wait for it."""
    model = small()
    if dist.get_rank() == 1:
        if how == "devices":
            model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5, device="meta"))
        elif how == "frozen":
            model.requires_grad_(False)
        elif how == "module":
            model = model.state_dict()
        else:
            local_steps.begin.__globals__["Uplink"] = out_of_memory
    try:
        return around(model)
    finally:
        local_steps.begin.__globals__["Uplink"] = Uplink


def out_of_memory(*_):
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("devices", "rank 1: the trainable parameters must be on one device, not on ['cpu', 'meta']"),
        ("frozen", "rank 1: there is nothing to exchange"),
        ("module", "rank 1: the model is a OrderedDict"),
        ("memory", "rank 1: RuntimeError: out of memory"),
    ],
)
def test_a_rank_that_fails_in_the_constructor_is_an_error_on_all(two, how, words):
    for answer in two.run(failing_alone, how):
        assert isinstance(answer, DagcError)
        assert words in str(answer)


def growing(how):
    """Rank 1's model is changed between two exchanges."""
    model = small()
    local = around(model, steps=1)
    one_step(model, sgd(model), 0)
    local.step()
    if dist.get_rank() == 1:
        if how == "replaced":
            model[2] = nn.Linear(30, 6)
        elif how == "frozen":
            model[2].requires_grad_(False)
        else:
            model[2].bias.data = torch.zeros(4)
    local.step()


@pytest.mark.parametrize("how", ["replaced", "frozen", "resized"])
def test_a_model_that_changes_after_the_construction_is_refused_on_all_ranks(two, how):
    for answer in two.run(growing, how):
        assert isinstance(answer, InvalidInput)
        assert "rank 1: the model's trainable parameters have changed since LocalSteps was made" in str(answer)


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


def restarted(how):
    """Whether a warning came, for an optimizer with or without a state, and with torchrun's count of restarts."""
    model, records = small(), []
    optimizer = torch.optim.AdamW(model.parameters())
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("dagc.ddp").addHandler(handler)
    if how == "optimizer":
        one_step(model, optimizer, 0)
    if how == "torchrun":
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    try:
        local = around(model, steps=1)
        for step in range(3):
            one_step(model, optimizer, step)
            state = local.state_dict() if local.step() else None
        if how == "resumed":
            optimizer = torch.optim.AdamW(model.parameters())
            one_step(model, optimizer, 0)
            local = around(model, steps=1, resume=[state])
            one_step(model, optimizer, 1)
        return [record.getMessage() for record in records if record.levelno == logging.WARNING]
    finally:
        os.environ.pop("TORCHELASTIC_RESTART_COUNT", None)
        logging.getLogger("dagc.ddp").removeHandler(handler)


@pytest.mark.parametrize(
    ("how", "words"),
    [("optimizer", "the optimizer has a state"), ("torchrun", "torchrun has restarted"), ("new", ""), ("resumed", "")],
)
def test_a_training_that_goes_on_without_our_state_warns_once(two, how, words):
    for warnings in good(two.run(restarted, how)):
        assert [warning.partition(",")[0] for warning in warnings] == ([warnings[0].partition(",")[0]] if words else [])
        assert not words or words in warnings[0]


def in_ddp():
    return around(DDP(small()))


def test_a_model_in_ddp_or_without_ranks_is_refused(two):
    with pytest.raises(InvalidInput, match="there are no ranks yet"):
        LocalSteps(small(), examples=1, ratio=0.5)
    for answer in two.run(in_ddp):
        assert isinstance(answer, InvalidInput)
        assert "give the module itself" in str(answer)


def run_example(ranks, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), EXAMPLE]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs_with_torchrun_and_resumes_with_fewer_ranks(tmp_path):
    text, folder = tmp_path / "a.txt", tmp_path / "checkpoints"
    text.write_text("All that glitters is not gold; often have you heard that told. " * 200)
    small = ("--text", text, "--checkpoint", folder, "--local-steps", "2", "--every", "1", "--batch-size", "2")
    assert "step 6: loss" in run_example(2, "--steps", "6", *small)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))
    assert names == [f"round-0000000{round}/rank-{rank}-of-2.pt" for round in (2, 3) for rank in (0, 1)]
    again = run_example(1, "--steps", "8", *small)
    assert "resumed after 3 exchanges and 6 steps: loss" in again
    assert "step 8: loss" in again


KILLED_ONCE = """
import os, signal
from pathlib import Path

import torch
import torch.distributed as dist

import dagc.ddp

dist.init_process_group("gloo")
rank, world, first = dist.get_rank(), dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(0)
model = torch.nn.Linear(20, 5)
states = [torch.load(path, weights_only=True) for path in sorted(Path(".").glob("*.pt"))]
local = dagc.ddp.LocalSteps(model, examples=10 + rank, steps=2, ratio=0.1, values="int8", timeout=30, resume=states)
print(f"rank {rank} begins after {local.round} exchanges", flush=True)
while local.round < 8:
    for parameter in model.parameters():
        parameter.data.sub_(0.1 * (parameter.data - rank))
    if first and rank == 1 and local.round == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if local.step():
        torch.save(local.state_dict(), f"{local.round}-{rank}.unfinished")
        os.replace(f"{local.round}-{rank}.unfinished", f"{local.round}-{rank}.pt")
print(f"rank {rank} ends after {local.round} exchanges", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank_and_the_training_goes_on(tmp_path):
    (tmp_path / "script.py").write_text(KILLED_ONCE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command += ["--max-restarts", "1", "script.py"]
    # Without it, ranks that start again find the addresses of the dead ones: pytorch/pytorch#135712.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"rank {rank} begins after 0 exchanges" in done.stdout
        assert f"rank {rank} begins after 5 exchanges" in done.stdout
        assert f"rank {rank} ends after 8 exchanges" in done.stdout
    final = [torch.load(tmp_path / f"8-{rank}.pt", weights_only=True) for rank in range(3)]
    assert alike([state["shared"] for state in final])
