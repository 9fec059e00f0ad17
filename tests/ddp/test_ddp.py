"""The DDP hook on 1, 2 and 4 gloo processes: exact, and equal to the local engine."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import dagc.ddp
from dagc import InvalidInput
from dagc.models import build
from dagc.training import Config, Federation
from tests.ddp.scripts import (
    EXAMPLES,
    alike,
    as_rank,
    backward,
    good,
    gradient,
    hooked,
    inputs,
    train,
    weights,
    wrapped,
)

# The same training as in the local engine


def as_engine(config, optimizer):
    """A DDP script for a configuration of the local engine, where rank i is client i."""
    module, examples, batch = as_rank(config)
    model = DDP(module, bucket_cap_mb=0.01)
    hook = dagc.ddp.register(model, examples=examples, plan=config.plan())
    steps = getattr(torch.optim, config.optimizer)(model.parameters(), lr=config.learning_rate, **optimizer)
    for step in range(config.rounds):
        x, y = batch(step)
        steps.zero_grad()
        cross_entropy(model(x), y).backward()
        steps.step()
    return weights(model), hook.uplink.feedback.residual


@pytest.mark.parametrize(
    ("world", "method", "budget", "values", "optimizer"),
    [
        (2, "dagc-r", {"ratio": 0.01}, "fp32", {}),
        (4, "dagc-r", {"ratio": 0.001}, "fp32", {}),
        (4, "dagc-r", {"ratio": 0.01}, "int8", {"momentum": 0.9}),
        (4, "dagc-a", {"threshold": 0.01}, "int8", {}),
        (4, "accordion", {"ratio": 0.01}, "fp32", {}),
        (4, "random-k", {"ratio": 0.05}, "int8", {}),
        (4, "power", {"bytes": 750}, "sign", {}),
        (4, "dagc-r", {"bytes": 100}, "sign", {"momentum": 0.9}),
        (2, "none", {}, "fp32", {}),
    ],
)
def test_replicas_and_the_local_engine_are_bit_identical_after_50_steps(
    two, four, world, method, budget, values, optimizer
):
    config = Config(
        task="mlp@digits", method=method, **budget, values=values, clients=world, skew_ratio=10, rounds=50,
        learning_rate=0.1, optimizer_options=optimizer, threads=1,
    )  # fmt: skip
    answers = good({2: two, 4: four}[world].run(as_engine, config, optimizer))
    engine = Federation(config)
    for _ in range(config.rounds):
        engine.step()
    start = weights(build(config.model, engine.data, seed=config.seed))
    assert alike([model for model, _ in answers])
    assert not torch.equal(answers[0][0], start)
    assert torch.equal(answers[0][0], engine.optimizer.vector)
    for (_, residual), name in zip(answers, engine.names, strict=True):
        assert torch.equal(residual, engine.uplinks[name].feedback.residual)


# One step


def dense_average(options):
    model, plain = wrapped(), wrapped(process_group=dist.new_group([dist.get_rank()], use_local_synchronization=True))
    hooked(model, **options)
    backward(model)
    backward(plain)
    own = gradient(plain)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    shares = torch.tensor(EXAMPLES[: len(every)], dtype=torch.float64)
    return gradient(model), torch.stack(every).double().t() @ (shares / shares.sum())


@pytest.mark.parametrize("options", [{"method": "top-k", "ratio": 1.0}, {"method": "none", "ratio": None}])
def test_ratio_1_is_the_dense_average_weighted_by_data(four, options):
    for ours, dense in good(four.run(dense_average, options)):
        assert torch.allclose(ours.double(), dense, rtol=1e-6, atol=1e-8)
        assert ours.count_nonzero() > 300


def with_ddp_options(options, method="dagc-r"):
    return train(6, register={"method": method}, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 1e-4},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
    ],
)
@pytest.mark.parametrize("method", ["dagc-r", "random-k"])
def test_how_ddp_lays_out_and_looks_for_gradients_does_not_matter(two, options, method):
    one = good(two.run(with_ddp_options, {}, method))
    other = good(two.run(with_ddp_options, options, method))
    for (ours, residual), (theirs, kept) in zip(one, other, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(residual, kept)


def accumulated():
    model, once = wrapped(), wrapped()
    hook, _ = hooked(model), hooked(once)
    with model.no_sync():
        backward(model, 0)
        backward(model, 1)
    assert hook.last is None
    backward(model, 2)
    sum(once(inputs(step)).square().mean() for step in range(3)).backward()
    return gradient(model), gradient(once), hook.steps


def test_gradients_accumulated_under_no_sync_are_one_step(two):
    answers = good(two.run(accumulated))
    assert alike([ours for ours, _, _ in answers])
    for ours, once, steps in answers:
        assert steps == 1
        assert torch.allclose(ours, once, rtol=1e-5, atol=1e-7)


class Branches(nn.Module):
    """Uses one of two layers, or neither; a parameter is frozen and a convolution is channels-last."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 6, 1).to(memory_format=torch.channels_last)
        self.frozen = nn.Parameter(torch.ones(30), requires_grad=False)
        self.branches = nn.ModuleList([nn.Linear(30, 7), nn.Linear(30, 7)])
        self.used = None

    def forward(self, x):
        x = self.convolution(x.view(8, 4, 5, 1)).flatten(1) * self.frozen
        return x if self.used is None else self.branches[self.used](x)


def branching(settings):
    """What the optimizer got in all, and what is kept and was offered."""
    model = wrapped(Branches(), find_unused_parameters=True)
    alone = Branches()
    alone.load_state_dict(model.module.state_dict())
    hook = hooked(model, **settings)
    parts = [p for p in model.parameters() if p.requires_grad]
    got, offered = (
        torch.zeros(hook.uplink.feedback.size, dtype=torch.float64),
        torch.zeros(hook.uplink.feedback.size).double(),
    )
    for step, used in enumerate([0, 1, None, 0, None, None, 1, 0, None, None]):
        for module in (model.module, alone):
            module.used = used if dist.get_rank() == 0 or used is None else 1
            module.zero_grad()
        backward(model, step)
        backward(alone, step)
        for total, parameters in ((got, parts), (offered, [p for p in alone.parameters() if p.requires_grad])):
            total += torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters])
    return got, hook.uplink.feedback.residual.double(), offered


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "top-k", "ratio": 0.02, "values": "int8"},
        {"method": "top-k", "ratio": 0.3, "values": "sign"},  # more entries than some steps have that are not 0
        {"method": "random-k", "ratio": 0.1, "values": "sign"},
        {"method": "dagc-r", "ratio": 0.1, "values": "sign", "per_tensor": True},
        {"method": "none", "ratio": None, "values": "sign"},
    ],
)
def test_nothing_sent_is_lost_where_no_rank_used_a_parameter(two, settings):
    answers = good(two.run(branching, settings))
    shares = np.array(EXAMPLES[:2]) / sum(EXAMPLES[:2])
    assert alike([got for got, _, _ in answers])
    kept = sum(p * residual for p, (_, residual, _) in zip(shares, answers, strict=True))
    offered = sum(p * everything for p, (_, _, everything) in zip(shares, answers, strict=True))
    assert torch.allclose(answers[0][0] + kept, offered, rtol=1e-5, atol=1e-6)


def in_bf16():
    model = wrapped(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 5)).to(torch.bfloat16))
    hook = hooked(model, values="int8", per_tensor=True)
    for step in range(5):
        model.zero_grad()
        model(inputs(step).bfloat16()).float().square().mean().backward()
    return gradient(model), (model.module[0].weight.grad.dtype, hook.uplink.feedback.residual.dtype)


def test_a_bf16_model_keeps_its_residual_in_float32(two):
    answers = good(two.run(in_bf16))
    assert alike([ours for ours, _ in answers])
    assert answers[0][0].any()
    assert [dtypes for _, dtypes in answers] == [(torch.bfloat16, torch.float32)] * 2


# Mixed precision with a scaler


def scaled(inf_at, scale):
    """Weights, residual, scale and what was skipped. Rank 1 overflows in a step; without a scaler all leave it out."""
    model = wrapped()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3) if scale else None
    hook = hooked(model, values="int8", scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = []
    for step in range(8):
        optimizer.zero_grad()
        loss = model(inputs(step)).square().mean()
        if scaler is None:
            if step != inf_at:
                loss.backward()
                optimizer.step()
            continue
        scaler.scale(loss * (torch.inf if step == inf_at and dist.get_rank() == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(hook.last.skipped)
    return weights(model), hook.uplink.feedback.residual, scaler and scaler.get_scale(), skipped


def test_all_scalers_skip_a_step_together_and_the_scale_leaves_no_trace(two):
    plain = good(two.run(scaled, 4, None))
    ours = good(two.run(scaled, 4, 1024.0))
    for (expected, kept, _, _), (got, residual, scale, skipped) in zip(plain, ours, strict=True):
        assert torch.equal(got, expected)
        assert torch.equal(residual, kept)
        assert scale == 1024 * 2 / 2 * 2
        assert skipped == [step == 4 for step in range(8)]


# Ranks that hold more, less or nothing


def uneven(steps):
    model = wrapped()
    hook = hooked(model, method="top-k")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(steps[dist.get_rank()]):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    return weights(model), hook.steps


def test_ranks_that_run_out_of_data_join(four):
    answers = good(four.run(uneven, (9, 5, 0, 7)))
    assert alike([model for model, _ in answers])
    assert [steps for _, steps in answers] == [9] * 4


def without_data(examples):
    rank = dist.get_rank()
    model = wrapped()
    hook = dagc.ddp.register(model, examples=examples[rank], method="dagc-r", ratio=0.05)
    for step in range(3):
        model.zero_grad()
        backward(model, step, spoil=torch.nan if examples[rank] == 0 else None)
    return gradient(model), hook.uplink.feedback.residual, hook.last.entries


def test_a_rank_without_data_has_no_say_even_if_its_loss_is_nan(four):
    answers = good(four.run(without_data, (0, 50, 30, 0)))
    assert alike([ours for ours, _, _ in answers])
    assert answers[0][0].isfinite().all()
    assert answers[0][0].any()
    for rank, (_, residual, entries) in enumerate(answers):
        assert (entries > 0) == (rank in (1, 2))
        assert bool(residual.any()) == (rank in (1, 2))


def test_one_rank_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = wrapped()
        hook = hooked(model)
        expected = dagc.ErrorFeedback(dagc.top_k, hook.uplink.feedback.size)
        alone = wrapped()
        for step in range(3):
            for one in (model, alone):
                one.zero_grad()
                backward(one, step)
            sparse = expected.step(gradient(alone), hook.last.entries)
            assert torch.equal(gradient(model), sparse.dense())
        assert hook.last.sent == hook.last.received == 0
    finally:
        dist.destroy_process_group()


# What it took


def traffic():
    steps = []
    train(12, each=lambda step, hook: steps.append(hook.last), register={"values": "int8"})
    return steps


def test_bytes_and_seconds_of_every_step(four):
    answers = good(four.run(traffic))
    for steps in zip(*answers, strict=True):
        for step in steps:
            assert step.sent % 3 == 0
            assert step.received == sum(other.sent for other in steps) // 3 - step.sent // 3
            assert step.sent >= 3 * step.payload
            assert min(step.compress, step.exchange, step.decode) > 0
            assert not step.skipped
    for steps in answers:
        assert [step.round for step in steps] == list(range(1, 13))
        assert steps[0].exchanges == 2  # nobody knows the others' lengths yet
        assert sum(step.exchanges for step in steps[1:]) < 14
        assert all(step.sent < 3 * (1.1 * step.payload + 120) for step in steps[1:])
    budget = int(0.05 * (20 * 30 + 30 + 30 * 5 + 5) * 4)
    assert sum(steps[-1].entries for steps in answers) == budget


def with_a_plan():
    plan = dagc.Plan(method="dagc-r", ratio=0.05)
    hook = dagc.ddp.register(wrapped(), examples=5, plan=plan)
    assert hook.server.plan == plan.replaced(down="lossless")
    with pytest.raises(InvalidInput, match=r"give plan, a dagc\.Plan, or its settings"):
        dagc.ddp.register(wrapped(), examples=5, plan=plan, ratio=0.05)


def test_a_plan_object_stands_for_its_settings(two):
    for answer in two.run(with_a_plan):
        assert not isinstance(answer, Exception), answer


CODED = {"method": "dagc-r", "ratio": 0.01, "values": "int8", "frames": "coded"}
COMPILED = """
import gc, sys

import torch
import torch.distributed as dist
from numba.core.dispatcher import Dispatcher

import dagc.ddp

def compiled():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {(kernel.py_func.__name__, str(types)) for kernel in kernels for types in kernel.signatures}

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(200, 300)
local = dagc.ddp.LocalSteps(model, examples=5, steps=1, **eval(sys.argv[1]))
before = compiled()
for _ in range(2):
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape))
    local.step()
print("compiled in a step:", compiled() - before)
"""


@pytest.mark.parametrize(
    "plan", [{}, {"method": "top-k", "ratio": 0.01}, {"method": "thrifty"}, {"method": "none"}, CODED], ids=str
)
def test_no_step_waits_for_the_compiler(plan):
    pytest.importorskip("numba", reason="without numba there is nothing to compile")
    done = subprocess.run([sys.executable, "-c", COMPILED, str(plan)], capture_output=True, text=True, check=False)
    assert done.stdout == "compiled in a step: set()\n", done.stderr
