"""Local steps, the server's optimizers, schedules, thresholds, value codecs and the clock."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dagc
from dagc import data, models
from dagc.training import Federation, iterate
from tests.training.runs import config, final, threads


@pytest.mark.parametrize(("optimizer", "options"), [("SGD", {"momentum": 0.9}), ("Adam", {"betas": [0.8, 0.9]})])
def test_any_torch_optimizer_on_the_server(optimizer, options):
    rounds = list(
        iterate(config("power", optimizer=optimizer, optimizer_options=options, learning_rate=0.02, rounds=25))
    )
    assert rounds[-1].score > 0.5
    assert rounds[-1].loss < rounds[0].loss


def test_local_steps_send_the_difference_of_the_model():
    one, _ = final(config("none", local_steps=1, rounds=6))
    one_as_difference, _ = final(config("none", epochs=1e-6, rounds=6))  # a single step each
    assert torch.allclose(one.vector, one_as_difference.vector, atol=1e-6)
    assert torch.equal(*(final(config("dagc-r", local_steps=2, threads=n))[0].vector for n in (1, 4)))
    five = list(iterate(config("dagc-r", local_steps=5, rounds=12)))
    assert five[-1].score > list(iterate(config("dagc-r", rounds=12)))[-1].score


def own_steps(settings, rounds):
    """Local steps written down once more, with torch's own optimizers and no compression."""
    digits = data.load("digits")
    partition = data.make_partition(settings.partition_spec, digits, settings.seed)
    batches = data.Batches(digits, partition, settings.batch_size, settings.seed)
    server = models.build("logistic", digits, seed=settings.seed)
    vector = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(server.parameters()).detach())
    kind = getattr(torch.optim, settings.optimizer)
    optimizer = kind([vector], lr=settings.server_rate, **settings.optimizer_options)
    p = (partition.sizes / partition.sizes.sum()).astype(np.float32)
    for t in range(rounds):
        total = torch.zeros_like(vector)
        linear, cosine = 1 - t / settings.rounds, (1 + np.cos(np.pi * t / settings.rounds)) / 2
        for i, size in enumerate(partition.sizes):
            client = models.build("logistic", digits)
            torch.nn.utils.vector_to_parameters(vector.detach().clone(), client.parameters())
            options = {"weight_decay": settings.client_weight_decay}
            if settings.client_momentum:
                options["momentum"] = settings.client_momentum
            kind = getattr(torch.optim, settings.client_optimizer)
            own = kind(client.parameters(), lr=settings.learning_rate * linear, **options)
            steps = settings.local_steps
            if settings.epochs is not None:
                steps = int(np.ceil(settings.epochs * max(1, size / settings.batch_size)))
            for step in range(steps):
                x, y = batches.batch(i, t * steps + step)
                own.zero_grad()
                cross_entropy(client(x), y).backward()
                own.step()
            after = torch.nn.utils.parameters_to_vector(client.parameters()).detach()
            total += float(p[i]) * (vector.detach() - after)
        for group in optimizer.param_groups:
            group["lr"] = settings.server_rate * cosine
        vector.grad = total
        optimizer.step()
    return vector.detach()


STEPS = {
    "learning_rate": 0.2,
    "schedule": "linear",
    "client_momentum": 0.9,
    "client_weight_decay": 0.01,
    "server_rate": 0.03,
    "server_schedule": "cosine",
    "optimizer": "Adam",
    "optimizer_options": {"betas": [0.8, 0.95]},
}


ADAMW = {"client_optimizer": "AdamW", "client_momentum": 0.0, "learning_rate": 0.01}


@pytest.mark.parametrize("steps", [{"local_steps": 4}, {"epochs": 1.5}, {"local_steps": 4, **ADAMW}])
def test_local_steps_are_those_of_torchs_optimizers(steps):
    settings = config("none", rounds=5, **{**STEPS, **steps})
    with threads(1):
        expected = own_steps(settings, settings.rounds)
    assert torch.equal(final(settings)[0].vector, expected)


def test_epochs_are_passes_over_a_clients_own_data():
    federation = Federation(config("none", epochs=2, batch_size=16))
    sizes = federation.partition.sizes
    seen = dict.fromkeys(range(len(sizes)), 0)
    together = federation.gradients.batches.together

    def count(workers, number):
        found = together(workers, number)
        seen[workers[0]] += len(found[0][1])
        return found

    federation.gradients.batches.together = count
    federation.step()
    assert all(2 * size <= seen[i] < 2 * size + 16 for i, size in enumerate(sizes))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_with_one_local_step_the_schedule_is_the_servers(schedule):
    rates, federation = [], Federation(config("top-k", schedule=schedule, rounds=8))
    step = federation.optimizer.step
    federation.optimizer.step = lambda total, rate: (rates.append(rate), step(total, rate))
    for _ in range(8):
        federation.step()
    assert rates[0] == 0.1
    assert all(before > after > 0 for before, after in pairwise(rates))
    assert rates[4] == pytest.approx(0.05)
    assert rates[2] == pytest.approx(0.075 if schedule == "linear" else 0.0854, abs=1e-4)


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("StepLR", {"step_size": 2, "gamma": 0.5}),
        ("CosineAnnealingLR", {"T_max": 3}),
        ("MultiStepLR", {"milestones": [1, 4]}),
    ],
)
def test_schedules_of_torch_take_a_step_per_round(schedule, options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, expected = getattr(torch.optim.lr_scheduler, schedule)(optimizer, **options), []
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    both = {"server_schedule": schedule, "server_rate": 0.1, "local_steps": 2}
    federation = Federation(config("top-k", schedule=schedule, schedule_options=options, rounds=6, **both))
    rates = [federation._rates(round) for round in range(6)]
    assert rates == [(rate, rate) for rate in expected]


def test_thresholds_in_units_of_the_update_or_of_the_gradient():
    in_update = final(config("hard-threshold", threshold=0.02, learning_rate=0.1))[1]
    in_gradient = final(config("hard-threshold", threshold=0.2, threshold_units="gradient", learning_rate=0.1))[1]
    other = final(config("hard-threshold", threshold=0.02, threshold_units="gradient", learning_rate=0.1))[1]
    assert in_update == in_gradient != other
    assert config("dagc-a", threshold=0.5, threshold_units="gradient", local_steps=3).plan().threshold == 0.05


def test_a_budget_in_bytes_is_kept_at_any_time_and_nearly_spent():
    _, rounds = final(config("dagc-r", ratio=None, bytes=150, values="int8"))
    assert all(r.up > 0.85 * 1500 for r in rounds)
    assert all(r.bytes_up <= 1500 * r.round for r in rounds)
    assert rounds[-1].bytes_up > 0.99 * 1500 * len(rounds)


def test_a_budget_too_small_for_everybody_makes_clients_wait():
    _, rounds = final(config("dagc-r", ratio=1e-4, rounds=40))
    assert sum(r.entries for r in rounds) == 26  # of 650 entries, ten clients, forty rounds
    assert {r.entries for r in rounds} == {0, 1}


@pytest.mark.parametrize("values", dagc.VALUE_CODECS)
def test_every_value_codec_trains(values):
    rounds = list(iterate(config("dagc-r", values=values, rounds=60, evaluate_every=60)))
    assert rounds[-1].score > 0.85


def test_the_clock_is_that_of_the_slowest_client():
    slow = final(config("top-k", network="constant:up=1,down=1", rounds=3))[1]
    fast = final(config("top-k", network="constant:up=10,down=10", rounds=3))[1]
    assert slow[-1].seconds == pytest.approx(10 * fast[-1].seconds)
    waiting = final(config("top-k", network="constant:up=10,down=10,latency=1", compute_seconds=0.5, rounds=3))[1]
    assert waiting[-1].seconds == pytest.approx(fast[-1].seconds + 3 * (2 + 0.5))
    assert final(config("top-k", compute_seconds="measured", rounds=3))[1][-1].seconds > 0
    seconds = [r.seconds for r in final(config("top-k", network="random:mean=0.1", rounds=6))[1]]
    assert seconds == sorted(set(seconds))
