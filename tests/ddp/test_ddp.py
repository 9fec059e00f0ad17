"""The DDP hook on 1, 2 and 4 gloo processes: exact, equal to the local engine, and clear when something breaks."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import dagc.ddp
from dagc import DagcError, InvalidInput, MalformedPayload, NonFiniteGradient
from dagc.data import Batches, load, make_partition
from dagc.models import build
from dagc.training import Config, Federation
from tests.helpers.ranks import PATIENCE, Ranks

EXAMPLES = (700, 200, 90, 10)
EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


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


def wrapped(module=None, seed=0, **options):
    """A small model in DDP, the same on every rank."""
    torch.manual_seed(seed)
    return DDP(module or nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), **options)


def hooked(model, ratio=0.05, **options):
    return dagc.ddp.register(model, examples=EXAMPLES[dist.get_rank()], ratio=ratio, **{"method": "dagc-r", **options})


def inputs(step):
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(8, 20, generator=generator)


def backward(model, step=0, spoil=None):
    """A backward pass on this rank's batch; `spoil` multiplies the loss."""
    loss = model(inputs(step)).square().mean()
    (loss if spoil is None else loss * spoil).backward()


def gradient(model):
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def weights(model):
    return torch.cat([p.detach().flatten().float() for p in model.parameters()])


def train(steps, register=None, each=None, **options):
    """Weights and residual after SGD."""
    model = wrapped(**options)
    hook = hooked(model, **(register or {}))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        backward(model, step)
        optimiser.step()
        if each:
            each(step, hook)
    return weights(model), hook.uplink.feedback.residual


# The same training as in the local engine


def as_engine(config, optimiser):
    """A DDP script for a configuration of the local engine, where rank i is client i."""
    rank = dist.get_rank()
    digits = load(config.data)
    partition = make_partition(config.partition_spec, digits, config.seed)
    batches = Batches(digits, partition, config.batch_size, config.seed)
    model = DDP(build(config.model, digits, seed=config.seed), bucket_cap_mb=0.01)
    hook = dagc.ddp.register(model, examples=len(partition.indices[rank]), plan=config.plan())
    steps = getattr(torch.optim, config.optimizer)(model.parameters(), lr=config.learning_rate, **optimiser)
    for step in range(config.rounds):
        x, y = batches.batch(rank, step)
        steps.zero_grad()
        cross_entropy(model(x), y).backward()
        steps.step()
    return weights(model), hook.uplink.feedback.residual


@pytest.mark.parametrize(
    ("world", "method", "budget", "values", "optimiser"),
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
    two, four, world, method, budget, values, optimiser
):
    config = Config(
        task="mlp@digits", method=method, **budget, values=values, clients=world, skew_ratio=10, rounds=50,
        learning_rate=0.1, optimizer_options=optimiser, threads=1,
    )  # fmt: skip
    answers = good({2: two, 4: four}[world].run(as_engine, config, optimiser))
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
    """What the optimiser got in all, and what is kept and was offered."""
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
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    skipped = []
    for step in range(8):
        optimiser.zero_grad()
        loss = model(inputs(step)).square().mean()
        if scaler is None:
            if step != inf_at:
                loss.backward()
                optimiser.step()
            continue
        scaler.scale(loss * (torch.inf if step == inf_at and dist.get_rank() == 1 else 1)).backward()
        scaler.step(optimiser)
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
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(steps[dist.get_rank()]):
            optimiser.zero_grad()
            backward(model, step)
            optimiser.step()
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
        assert [step.step for step in steps] == list(range(12))
        assert steps[0].exchanges == 2  # nobody knows the others' lengths yet
        assert sum(step.exchanges for step in steps[1:]) < 14
        assert all(step.sent < 3 * (1.1 * step.payload + 120) for step in steps[1:])
    budget = int(0.05 * (20 * 30 + 30 + 30 * 5 + 5) * 4)
    assert sum(steps[-1].entries for steps in answers) == budget


# Errors


def plain(state):
    """A state without tensors, so that it can be compared."""
    if isinstance(state, dict):
        return {name: plain(leaf) for name, leaf in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


def nan_on(rank, settings):
    model = wrapped()
    hook = hooked(model, **settings)
    backward(model, 0)
    before = plain(hook.state_dict())
    model.zero_grad()
    try:
        backward(model, 1, spoil=torch.nan if dist.get_rank() == rank else None)
        message = None
    except NonFiniteGradient as error:
        message = str(error)
    same = plain(hook.state_dict()) == before
    poisoned = bool(gradient(model).isnan().all())
    model.zero_grad()
    backward(model, 1)
    went_on = gradient(model)
    straight = wrapped()
    hooked(straight, **settings)
    for step in range(2):
        straight.zero_grad()
        backward(straight, step)
    return message, same, poisoned, torch.equal(went_on, gradient(straight))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "random-k"},
        {"method": "random-k", "values": "int8"},
        {"ratio": None, "bytes": 20, "values": "sign", "frames": "compact", "overhead": 0.25},
    ],
)
def test_a_nan_on_one_rank_raises_the_same_error_on_all_and_changes_nothing(four, settings):
    answers = good(four.run(nan_on, 2, settings))
    assert len({message for message, *_ in answers}) == 1
    assert answers[0][0].startswith("rank 2: entry 0 of 785 is nan: the gradient was refused")
    assert [rest for _, *rest in answers] == [[True, True, True]] * 4


def damaged_on(rank):
    """That rank's payload is damaged on its way to everybody, once."""
    model = wrapped()
    hook = hooked(model)
    backward(model, 0)
    before = plain(hook.state_dict())
    usual = hook._exchange.all_gather

    def damaging(packet):
        flipped = bytes([*packet.body[:-1], packet.body[-1] ^ 1])
        return usual(packet._replace(body=flipped) if dist.get_rank() == rank else packet)

    hook._exchange.all_gather = damaging
    model.zero_grad()
    with pytest.raises(MalformedPayload, match=f"rank {rank}: the checksum does not match"):
        backward(model, 1)
    same = plain(hook.state_dict()) == before
    hook._exchange.all_gather = usual
    model.zero_grad()
    backward(model, 1)
    straight = wrapped()
    hooked(straight)
    for step in range(2):
        straight.zero_grad()
        backward(straight, step)
    return same, torch.equal(gradient(model), gradient(straight))


def test_a_damaged_payload_raises_the_same_error_on_all_and_changes_nothing(four):
    assert good(four.run(damaged_on, 2)) == [(True, True)] * 4


def too_large_on(rank, at):
    """That rank's loss is ten thousand times as large in one step."""
    model = wrapped()
    hook = hooked(model, norm_bound=20)
    computed, left_out = [], []
    feedback = hook.uplink.feedback
    for step in range(6):
        model.zero_grad()
        kept = feedback.residual.clone()
        large = dist.get_rank() == rank and step == at
        backward(model, step, spoil=1e4 if large else None)
        left_out.append([name for name, member in hook.server.members.items() if member.accepted_round != step + 1])
        computed.append((kept, feedback.residual.clone(), gradient(model)))
    return computed, left_out


def test_an_upload_far_larger_than_most_is_left_out_and_stays_with_its_rank(four):
    answers = good(four.run(too_large_on, 2, 3))
    assert [left_out for _, left_out in answers] == [[[], [], [], ["2"], ["2"], ["2"]]] * 4, "it tries again"
    assert alike([steps[3][2] for steps, _ in answers])
    _, kept, _ = answers[2][0][3]
    assert kept.abs().max() > 100 * answers[1][0][3][1].abs().max(), "it has all of its gradient still"
    assert all(steps[3][2].abs().max() < 10 for steps, _ in answers)


def registering(cases):
    rank = dist.get_rank()
    model = wrapped()
    if cases == "twice":
        hooked(model)
    options = {"ratio": 0.05, "examples": EXAMPLES[rank], **(cases[rank] if isinstance(cases, tuple) else {})}
    if "scaler" in options:
        options["scaler"] = torch.amp.GradScaler("cpu")
    return dagc.ddp.register(model, **options)


def failing_alone(how):
    """Rank 1 fails while it prepares itself; the others must not wait for it."""
    model = wrapped()
    if how == "twice":
        model.register_comm_hook(None, lambda state, bucket: None) if dist.get_rank() == 1 else None
    elif dist.get_rank() == 1:
        if how == "bare":
            model = model.module
        elif how == "frozen":
            model.module.requires_grad_(False)
    return hooked(model)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("bare", "rank 1: the model is a Sequential: wrap it in DistributedDataParallel first"),
        ("frozen", "rank 1: the trainable parameters must be on one device, not on []"),
        ("twice", "rank 1: this model already has a communication hook"),
    ],
)
def test_a_rank_that_fails_in_the_constructor_is_an_error_on_all(two, how, words):
    for answer in two.run(failing_alone, how):
        assert isinstance(answer, InvalidInput)
        assert words in str(answer)


def frozen_between():
    """A parameter that DDP knows is not trainable any more when the hook is registered."""
    model = wrapped()
    last = model.module[2]
    last.requires_grad_(False)
    hook = hooked(model)
    last.requires_grad_(True)
    try:
        backward(model)
    except InvalidInput as error:
        return str(error), hook.steps
    return None


def test_a_parameter_that_was_not_trainable_when_the_hook_was_registered_is_named(two):
    for words, steps in good(two.run(frozen_between)):
        assert "rank 0: a parameter of shape (5" in words
        assert "was not trainable, or had another shape, when the hook was registered" in words
        assert steps == 0


def with_a_plan():
    plan = dagc.Plan(method="dagc-r", ratio=0.05)
    hook = dagc.ddp.register(wrapped(), examples=5, plan=plan)
    assert hook.server.plan == plan.replaced(down="lossless")
    with pytest.raises(InvalidInput, match=r"give plan, a dagc\.Plan, or its settings"):
        dagc.ddp.register(wrapped(), examples=5, plan=plan, ratio=0.05)


def test_a_plan_object_stands_for_its_settings(two):
    for answer in two.run(with_a_plan):
        assert not isinstance(answer, Exception), answer


def sparse_gradient():
    model = DDP(nn.Embedding(10, 3, sparse=True))
    hooked(model)
    model(torch.tensor([1, 2])).sum().backward()


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ("twice", "already has a communication hook"),
        (({"method": "magic"},) * 2, "there is no method 'magic'"),
        (({"values": "fp8"},) * 2, "there is no value codec 'fp8'"),
        (({"ratio": 1.5},) * 2, "ratio is 1.5: it must be a number above 0 and at most 1"),
        (({"ratio": None, "method": "dagc-a"},) * 2, "method 'dagc-a' needs a budget"),
        (({"ration": 0.05},) * 2, "there is no setting 'ration': did you mean 'ratio'"),
        (({"ratio": None, "bytes": 20, "rate": "1 MB/hour"},) * 2, "DDP keeps no rate per hour"),
        (({"ratio": None, "rate": "1 MB/training"},) * 2, "a rate per training needs rounds"),
        (({}, {"examples": -1}), "rank 1: examples is -1: it must be an integer, 0 or more"),
        (({"examples": 0},) * 2, "examples is 0 on all ranks"),
        (({}, {"ratio": 0.06}), "ranks 0 and 1 differ in ratio; this rank has {'ratio': 0.0"),
        (({}, {"scaler": True}), "ranks 0 and 1 differ in scaler"),
        (({}, {"ratio": 1.5}), "rank 1: ratio is 1.5: it must be a number above 0 and at most 1"),
        (({}, {"examples": "many"}), "rank 1: examples is 'many'"),
    ],
)
def test_wrong_arguments_are_refused_on_all_ranks(two, cases, words):
    for answer in two.run(registering, cases):
        assert isinstance(answer, InvalidInput)
        assert words in str(answer)


def test_sparse_gradients_and_models_outside_ddp_are_refused(two):
    for answer in two.run(sparse_gradient):
        assert isinstance(answer, InvalidInput)
        assert "sparse=False" in str(answer)
    with pytest.raises(InvalidInput, match="wrap it in DistributedDataParallel"):
        dagc.ddp.register(nn.Linear(2, 2), examples=1, ratio=0.5)


def hanging():
    """Rank 1 does not come to step 2, in a group whose patience is two seconds."""
    model = wrapped(process_group=dist.new_group(timeout=timedelta(seconds=2)))
    hooked(model)
    for step in range(3 - dist.get_rank()):
        backward(model, step)


def test_a_rank_that_hangs_is_given_up_after_the_timeout(two):
    error, _ = two.run(hanging)
    assert type(error) is DagcError
    assert "rank 0 lost the others in step 2" in str(error)


# Checkpoints

TOTAL, SAVED, DEATH = 32, 25, 28  # ACCORDION has changed its mind by then
SAVING = {"method": "accordion", "ratio": None, "threshold": 0.02, "values": "int8"}


def with_checkpoint(folder, last, save=None, die=None, start=False):
    """SGD with momentum up to step `last`, saving after step `save`; rank 1 dies in step `die`, holding its bucket."""
    rank = dist.get_rank()
    path = f"{folder}/{rank}.pt"
    model = wrapped()
    hook = hooked(model, **SAVING)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if start:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        hook.load_state_dict(state["dagc"])
    for step in range(hook.steps, last):
        optimiser.zero_grad()
        if step == die and rank == 1:
            hook.uplink.feedback.step = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        backward(model, step)
        optimiser.step()
        if hook.steps == save:
            torch.save(
                {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "dagc": hook.state_dict()}, path
            )
    return weights(model), hook.uplink.feedback.residual


def test_save_kill_load_gives_the_same_as_no_interruption(two, tmp_path):
    doomed = Ranks(2, tmp_path)
    try:
        error, dead = doomed.run(with_checkpoint, tmp_path, TOTAL, SAVED, DEATH)
    finally:
        doomed.kill()
    state = torch.load(tmp_path / "0.pt", weights_only=True)["dagc"]
    assert not state["server"]["budget"]["policy"]["critical"]
    assert dead is None
    assert type(error) is DagcError
    assert f"rank 0 lost the others in step {DEATH}: a rank has died" in str(error)

    resumed = good(two.run(with_checkpoint, tmp_path, TOTAL, None, None, True))
    straight = good(two.run(with_checkpoint, tmp_path, TOTAL))
    for (ours, residual), (expected, kept) in zip(resumed, straight, strict=True):
        assert torch.equal(ours, expected)
        assert torch.equal(residual, kept)

    for answer in two.run(loading_wrongly, tmp_path):
        assert not isinstance(answer, Exception), answer


def loading_wrongly(folder):
    """Every mistake is named, and none leaves a trace."""
    rank = dist.get_rank()
    state = torch.load(f"{folder}/{rank}.pt", weights_only=True)["dagc"]
    hook = hooked(wrapped(), **SAVING)
    before = hook.state_dict()
    uplink, about = state["uplink"], state["about"]
    residual = uplink["residual"]
    mistakes = {
        "world_size 3, here it is 2": {"world_size": 3},
        f"rank {1 - rank}, here it is {rank}": {"rank": 1 - rank},
        "the ranks hold other data": {"examples": [1, 2]},
        "the state has about .*register the model that was saved": {"about": {**about, "sizes": [785]}},
        "the state has about .*: register the model that": {"about": {**about, "method": "dagc-r"}},
        "the state has about .*with the same settings": {"about": {**about, "values": "fp32"}},
        "the residual must be 785 float32": {"uplink": {**uplink, "residual": residual[1:]}},
        "NaN or infinity": {"uplink": {**uplink, "residual": residual * torch.inf}},
        "the state does not fit this": {"server": {**state["server"], "budget": {}}},
        "does not fit this client": {"uplink": {}},
        "does not fit this hook": {"start": "x"},
        "not the state of a dagc.ddp.Hook": {"more": 1},
        "has version 2, this is 1: use the version of dagc": {"version": 2},
    }
    for words, change in mistakes.items():
        with pytest.raises(InvalidInput, match=words):
            hook.load_state_dict({**state, **change})
    with pytest.raises(InvalidInput, match=r"not the state of a dagc.ddp.Hook$"):
        hook.load_state_dict({"residual": residual, "steps": 25})
    assert plain(hook.state_dict()) == plain(before)
    assert hook.steps == 0
    model = wrapped()
    hook = hooked(model, **SAVING)
    if rank == 0:
        hook.load_state_dict(state)
    with pytest.raises(DagcError, match=rf"the ranks are at different steps, \[{SAVED}, 0\] in rank order"):
        backward(model)


def on_two_timelines():
    """Both ranks continue from step 2; rank 1 then loads a state of step 4 from before that."""
    model = wrapped()
    hook = hooked(model)
    states = []
    for step in range(4):
        states.append(hook.state_dict())
        backward(model, step)
    before = hook.state_dict()
    again = wrapped()
    hook = hooked(again)
    hook.load_state_dict(states[2])
    for step in range(2, 4):
        backward(again, step)
    after = hook.state_dict()
    assert hook.steps == 4
    model = wrapped()
    hook = hooked(model)
    hook.load_state_dict(before if dist.get_rank() == 1 else after)
    backward(model)


def test_states_of_one_step_but_of_two_timelines_are_not_mixed(two):
    for answer in two.run(on_two_timelines):
        assert type(answer) is DagcError
        assert "ranks 0 and 1 are both at step 4, but continue different trainings" in str(answer)


def test_the_example_runs_with_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [EXAMPLE, "--steps", "20", "--every", "10", "--checkpoint", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "step 20: accuracy" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-of-2.pt", "rank-1-of-2.pt"]
