"""The DDP hook on gloo processes: an error of one rank is clear on all of them."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import dagc.ddp
from dagc import DagcError, InvalidInput, MalformedPayload, NonFiniteGradient
from tests.ddp.scripts import EXAMPLES, alike, backward, good, gradient, hooked, plain, wrapped

# Errors


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


class Unknown(DDP):
    """As torchft's DDP: its group is one that torch.distributed does not know."""

    def __init__(self):
        nn.Module.__init__(self)
        self.module, self.process_group = nn.Linear(2, 2), dist.ProcessGroup(0, 1)


def registering_unknown():
    dagc.ddp.register(Unknown(), examples=1)


def test_a_group_that_torch_does_not_know_is_refused(two):
    for answer in two.run(registering_unknown):
        assert isinstance(answer, InvalidInput)
        assert "torch.distributed does not know the model's group, a ProcessGroup: wrap the module in" in str(answer)


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
