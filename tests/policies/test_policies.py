"""Plans and policies: one parameter per client present, the budget kept in every round, ACCORDION's regimes."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from dagc import BudgetWarning, InvalidInput, payload_size
from dagc.policies import POLICIES, Allocated, Method, Plan, Report, Situation
from dagc.policies.allocated import most_bytes, worth_a_frame
from dagc.policies.plan import level_bytes, local_steps_bytes, usual_bytes
from dagc.training import Config, Federation, iterate

NAMES = [f"client {i}" for i in range(10)]
EXAMPLES = dict(zip(NAMES, np.linspace(1000, 10, 10), strict=True))
RELATIVE = [name for name, kind in POLICIES.items() if "ratio" in kind.budgets and name not in ("accordion", "dagc")]
"""Methods that divide entries by data; dagc divides bytes."""


def policy(method, size=100_000, **fields):
    return Plan(method=method, **fields).policy(size)


def now(present=NAMES, reports=(), allowance=None, examples=EXAMPLES):
    return Situation(0, list(present), examples, reports, allowance)


# Plans


def test_a_plan_is_the_same_from_its_settings():
    plan = Plan(method="power", bytes=64, caps={"a": 0.1}, values="sign", exponent=0.5, overhead=0.25, seed=3)
    assert Plan(**json.loads(json.dumps(plan.changed()))) == plan
    assert Plan(ratio=0.1).changed() == {"method": "dagc", "ratio": 0.1}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "best", "ratio": 0.1}, "no method 'best': choose one of none, top-k"),
        ({"method": "dagcr", "ratio": 0.1}, "no method 'dagcr': did you mean 'dagc-r'"),
        ({"method": "accordion"}, "'accordion' needs a budget: give ratio or threshold, e.g. ratio 0.001"),
        ({"method": "dagc-a"}, "'dagc-a' needs a budget: give threshold, e.g. threshold 0.05"),
        ({"method": "top-k", "threshold": 1.0}, "'top-k' takes no threshold: give its budget as ratio, bytes or rate"),
        ({"method": "dagc-a", "ratio": 0.1}, "'dagc-a' takes no ratio: give its budget as threshold"),
        ({"ratio": 0.1, "bytes": 1000}, "give one budget, not ratio and bytes"),
        ({"method": "none", "ratio": 0.1}, "takes no budget, but ratio is given"),
        ({"method": "top-k", "ratio": 0.1, "exponent": 1}, "exponent belongs to the methods power and dagc"),
        ({"method": "accordion", "ratio": 0.1, "overhead": 0.1}, "'accordion' cannot wait: leave overhead out"),
        ({"method": "power", "threshold": 0.1, "overhead": 0.1}, "cannot wait"),
        ({"method": "dagc-a", "threshold": 0.1, "caps": {"a": 0.5}}, "caps limit how many entries are sent"),
        ({"method": "none", "caps": {"a": 0.5}}, "caps limit how many entries are sent"),
        ({"ratio": "much"}, "ratio is 'much': it must be a number"),
        ({"ratio": 0.1, "caps": {3: 0.1}}, "caps is .*: it must map names to finite numbers"),
        ({"ratio": 0.1, "seed": -1}, "seed is -1"),
        ({"ratio": 0.1, "per_tensor": "yes"}, "per_tensor is 'yes'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Plan(**fields)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"ratio": 0.001, "values": "int8"}, "int8"),
        ({"ratio": 0.001, "values": "auto"}, "sign"),
        ({"bytes": 10, "values": "auto"}, "sign"),
        ({"rate": "1 kB/training", "values": "auto"}, "sign"),
        ({"ratio": 0.9, "values": "auto"}, "int8"),
        ({"bytes": 900, "values": "auto"}, "int8"),
        ({"method": "none", "values": "auto"}, "fp32"),
        ({"method": "dagc-a", "threshold": 0.1, "values": "auto"}, "fp32"),
    ],
)
def test_auto_takes_the_codec_that_was_measured_to_be_best(fields, values):
    assert Plan(**{"method": "power", **fields}).for_size(1000).values == values


def test_auto_trains_as_what_it_stands_for():
    one, other = (
        Federation(Config(task="logistic@digits", method="power", ratio=0.01, values=v)) for v in ("auto", "sign")
    )
    for _ in range(5):
        assert one.step() == other.step()
    assert torch.equal(one.vector, other.vector)


# Policies


@pytest.mark.parametrize("method", RELATIVE)
def test_the_budget_holds_for_whoever_is_present(method):
    made = policy(method, ratio=0.01)
    assert sum(made.decide(now())) == 10_000
    assert sum(made.decide(now([NAMES[2], NAMES[4], NAMES[9]]))) == 3_000


@pytest.mark.parametrize("method", RELATIVE)
@pytest.mark.parametrize("budget", [{"ratio": 0.01}, {"bytes": 800}])
def test_caps_are_kept_by_name_and_what_they_cut_off_goes_to_the_others(method, budget):
    caps = {NAMES[0]: 0.001, "somebody else": 0.5}
    allowance = None if "ratio" in budget else 8_000
    for overhead in (None, 0.01) if POLICIES[method].waits else (None,):
        free = policy(method, overhead=overhead, **budget).decide(now(allowance=allowance))
        capped = policy(method, overhead=overhead, caps=caps, **budget).decide(now(allowance=allowance))
        assert capped[0] <= 100 < free[0]
        if "ratio" in budget:
            assert sum(capped) == sum(free)
    waits = "overhead" in POLICIES[method].defaults  # what cannot be spent now is saved up
    with nullcontext() if waits else pytest.warns(BudgetWarning):
        assert sum(policy(method, ratio=0.01, caps=dict.fromkeys(NAMES, 0.001)).decide(now())) == 1_000


@pytest.mark.parametrize("size", [1, 3, 20, 36, 100])
def test_clients_of_a_tiny_model_do_not_wait_forever(size):
    """Where a frame is worth it only with everything, everything has to be enough."""
    plan = Plan(method="thrifty", bytes=12).for_size(size)
    waiting, account, sent = plan.policy(size), plan.account(), set()
    for _ in range(200):
        account.earn(len(NAMES))
        counts = waiting.decide(now(allowance=account.balance))
        account.spend(int(payload_size(size, [c for c in counts if c], plan.values).sum()))
        assert account.balance >= 0
        sent |= {name for name, count in zip(NAMES, counts, strict=True) if count}
    assert sent == set(NAMES)


# ACCORDION


def test_accordion_is_gentle_while_the_norm_changes_and_aggressive_otherwise():
    made = policy("accordion", ratio=0.01)
    gentle, aggressive = (int(bound * 100_000) for bound in made.bounds(now()))
    assert gentle > 1000 > aggressive

    def after(norm):
        report = Report(NAMES[0], norm, 1, 1)
        return {made.decide(now(NAMES[:1], [report]))[0] for _ in range(10)}

    assert after(8.0) == {gentle}
    assert after(4.0) == {gentle}, "a fall by a half is a critical regime"
    after(4.0)
    assert after(3.9) == {aggressive}
    assert gentle in after(9.0), "and so is a rise"


def test_accordion_bounds_are_dagcs_smallest_and_largest():
    dagc_a = policy("dagc-a", threshold=0.05).decide(now())
    assert policy("accordion", threshold=0.05).bounds(now()) == pytest.approx((min(dagc_a), max(dagc_a)))


def test_accordion_follows_the_clients_that_it_knows():
    made = policy("accordion", ratio=0.01)
    alone = made.bounds(now(["a"], examples={"a": 5}))
    assert alone == pytest.approx((0.01, 0.01))
    assert made.bounds(now(["a"], examples={"a": 5, "b": 500, "c": 7}))[0] > 0.01


def test_accordion_never_refuses_a_small_budget():
    assert policy("accordion", 1000, ratio=1e-9).decide(now()) == [1] * 10


def test_accordion_takes_options_and_others_do_not():
    options = {"interval": 2, "change": 0.1, "gentle": 0.5, "aggressive": 0.001}
    made = policy("accordion", 1000, ratio=0.01, options=options)
    assert (made.interval, made.change, made.bounds(now())) == (2, 0.1, (0.5, 0.001))
    for options, says in (
        ({"speed": 1}, "no option of accordion 'speed'"),
        ({"intervall": 1}, "did you mean 'interval'"),
        ({"interval": 0}, "interval ≥ 1"),
        ({"gentle": 2}, "gentle is 2: it must be a ratio"),
    ):
        with pytest.raises(InvalidInput, match=says):
            policy("accordion", 1000, ratio=0.01, options=options)
    with pytest.raises(InvalidInput, match="method 'top-k' takes no options"):
        policy("top-k", 1000, ratio=0.01, options={"interval": 3})


def test_a_third_party_can_register_one(monkeypatch):
    class Halving(Allocated):
        """Uniform, and half as much from the third round on."""

        def decide(self, now):
            return [count // (2 if now.round > 1 else 1) for count in super().decide(now)]

    def make(plan, size):
        return Halving(plan, size, "uniform", "top-k")

    monkeypatch.setitem(POLICIES, "halving", Method(("ratio",), make))
    rounds = list(iterate(Config(task="logistic@digits", method="halving", ratio=0.04, rounds=3)))
    assert [r.entries for r in rounds] == [260, 260, 130]


def test_stc_is_top_k_as_signs_both_ways_unless_something_else_is_said():
    plan = Plan(method="stc", ratio=0.01)
    assert (plan.values, plan.frames, plan.down) == ("sign", "compact", "same")
    assert plan.changed() == {"method": "stc", "ratio": 0.01}
    assert plan.downward().changed() == {"method": "top-k", "ratio": 0.01, "values": "sign"}
    other = Plan(method="stc", bytes=40, values="fp32", down="lossless")
    assert other.changed() == {"method": "stc", "bytes": 40, "values": "fp32", "down": "lossless"}
    assert Plan(**other.changed()) == other
    now = Situation(0, ["a", "b"], {"a": 900, "b": 100})
    assert plan.policy(10_000).decide(now) == Plan(method="top-k", ratio=0.01).policy(10_000).decide(now)
    with pytest.raises(InvalidInput, match="clients of method 'stc' cannot wait: leave overhead out"):
        Plan(method="stc", ratio=0.01, overhead=0.1)
    assert Plan(method="stc").for_size(7850).bytes == 44


def test_what_a_frame_is_worth_and_what_it_can_use():
    assert worth_a_frame(Plan(method="power", bytes=13, values="sign", overhead=0.125), 7850) == 37
    assert most_bytes(Plan(caps={"ann": 0.01}), 1000, "ann") == 40
    assert most_bytes(Plan(), 1000, "bob") == 2064


def test_what_follows_from_a_plan():
    assert (usual_bytes(7850), level_bytes(7850), local_steps_bytes(7850)) == (44, 785, 3140)
    assert (usual_bytes(236_000), level_bytes(236_000), local_steps_bytes(236_000)) == (243, 9716, 38864)
    thrifty = Plan(method="thrifty", bytes=64)
    assert thrifty.for_size(7850).values == "sign"
    shares = thrifty.replaced(down=64).down_share(0.02), thrifty.down_share(0.02), Plan().down_share(0.04)
    assert shares == (0.02, 0.125, 0.2)
    downward = Plan(method="dagc-r", bytes=64, values="sign", down="same").downward()
    assert downward.changed() == {"method": "top-k", "bytes": 64, "values": "sign"}
