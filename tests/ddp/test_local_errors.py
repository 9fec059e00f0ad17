"""Local steps on gloo processes: an error of one rank is clear on all of them."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

from dagc import DagcError, InvalidInput, NonFiniteGradient
from dagc.ddp import LocalSteps, rank
from dagc.protocol import Uplink
from tests.ddp.scripts import around, good, one_step, sgd, small, weights

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
        (({"steps": 0},) * 2, "steps is 0: it must be an integer at least 1"),
        (({"steps": 2.5},) * 2, "steps is 2.5: it must be an integer"),
        (({"seconds": 0},) * 2, "seconds is 0: it must be a number above 0"),
        (({"momentum": 1},) * 2, "momentum is 1: it must be a number at least 0 and below 1"),
        (({"outer_rate": "fast"},) * 2, "outer_rate is 'fast': it must be a number above 0"),
        (({"timeout": 0},) * 2, "timeout is 0: it must be a number of seconds above 0"),
        (({"local": "2.*"},) * 2, r"give a list of patterns, e.g. ['2.*']"),
        (({"local": ["head.*"]},) * 2, "no trainable parameter is called 'head.*'"),
        (({"local": ["*"]},) * 2, "there is nothing to exchange"),
        (({"down": 100},) * 2, "DDP has no server that sends a model down"),
        (({"first_model": "drawn"},) * 2, "DDP sends the first model itself"),
        (({"caps": {"7": 0.1}},) * 2, "caps: there is no rank '7'"),
        (({"ratio": None, "rate": "1 MB/training"},) * 2, "a rate per training needs rounds"),
        (({"ratio": None, "bytes": 0.1, "rounds": 3},) * 2, "nobody sends anything in 3 rounds of 0.1 bytes"),
        (({}, {"examples": -1}), "rank 1: examples is -1: it must be an integer, 0 or more"),
        (({}, {"steps": 0}), "rank 1: steps is 0: it must be an integer at least 1"),
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
            rank.Uplink = out_of_memory
    try:
        return around(model)
    finally:
        rank.Uplink = Uplink


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


def sharded(how):
    """A model of which each rank has only a part: averaged entry by entry, the parts would mix."""
    model, mesh = small(), init_device_mesh("cpu", (dist.get_world_size(),))
    if how == "FSDP2":
        fully_shard(model, mesh=mesh)
    elif how == "tensor parallel":
        parallelize_module(model[0], mesh, ColwiseParallel())
    else:
        model = FullyShardedDataParallel(model, use_orig_params=how == "FSDP1, names", device_id=torch.device("cpu"))
    return around(model)


@pytest.mark.parametrize("how", ["FSDP2", "tensor parallel", "FSDP1", "FSDP1, names"])
def test_a_sharded_model_is_refused_on_all_ranks(two, how):
    for answer in two.run(sharded, how):
        assert isinstance(answer, InvalidInput)
        assert "the model is sharded, it has a " in str(answer)
        assert "every rank must hold the whole model" in str(answer)


def in_ddp():
    return around(DDP(small()))


def test_a_model_in_ddp_or_without_ranks_is_refused(two):
    with pytest.raises(InvalidInput, match="there are no ranks yet"):
        LocalSteps(small(), examples=1, ratio=0.5)
    for answer in two.run(in_ddp):
        assert isinstance(answer, InvalidInput)
        assert "give the module itself" in str(answer)
