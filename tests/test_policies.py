"""Policies: one parameter per client present, the budget kept in every round, ACCORDION's regimes."""

import numpy as np
import pytest

from dagc import InvalidInput
from dagc.policies import POLICIES, Report, Setting, make_policy

WEIGHTS = np.linspace(1000, 10, 10)


RELATIVE = [name for name, kind in POLICIES.items() if "ratio" in kind.budgets and name != "accordion"]


@pytest.mark.parametrize("method", RELATIVE)
def test_the_budget_holds_for_whoever_is_present(method):
    policy = make_policy(method, Setting(WEIGHTS, size=100_000, ratio=0.01))
    assert sum(policy.parameters(0, range(10), [])) == 10_000
    assert sum(policy.parameters(1, [2, 4, 9], [])) == 3_000


def test_accordion_is_gentle_while_the_norm_changes_and_aggressive_otherwise():
    policy = make_policy("accordion", Setting(WEIGHTS, size=100_000, ratio=0.01))
    gentle, aggressive = policy.gentle, policy.aggressive
    assert gentle > 1000 > aggressive

    def after(norm):
        return {policy.parameters(0, [0], [Report(0, norm, 1, 1)])[0] for _ in range(10)}

    assert after(8.0) == {gentle}
    assert after(4.0) == {gentle}, "a fall by a half is a critical regime"
    after(4.0)
    assert after(3.9) == {aggressive}
    assert gentle in after(9.0), "and so is a rise"


def test_accordion_bounds_are_dagcs_smallest_and_largest():
    policy = make_policy("accordion", Setting(WEIGHTS, size=100_000, threshold=0.05))
    dagc_a = make_policy("dagc-a", Setting(WEIGHTS, size=100_000, threshold=0.05)).parameters(0, range(10), [])
    assert (policy.gentle, policy.aggressive) == pytest.approx((min(dagc_a), max(dagc_a)))


def test_accordion_knows_compact_frames():
    small = {"size": 1000, "bytes": 120, "values": "sign16"}
    assert make_policy("accordion", Setting(WEIGHTS, **small, compact=True)).aggressive >= 1
    with pytest.raises(InvalidInput, match="too few for 10 clients"):
        make_policy("accordion", Setting(WEIGHTS, **small))


def test_accordion_takes_options_and_others_do_not():
    options = {"interval": 2, "change": 0.1, "gentle": 0.5, "aggressive": 0.001}
    policy = make_policy("accordion", Setting(WEIGHTS, size=1000, ratio=0.01, options=options))
    assert (policy.interval, policy.gentle, policy.aggressive) == (2, 500, 1)
    for options, says in (({"speed": 1}, "no option speed"), ({"interval": 0}, "interval"), ({"gentle": 2}, "bounds")):
        with pytest.raises(InvalidInput, match=says):
            make_policy("accordion", Setting(WEIGHTS, size=1000, ratio=0.01, options=options))
    with pytest.raises(InvalidInput, match="'top-k' has no option interval; its options: turns"):
        make_policy("top-k", Setting(WEIGHTS, size=1000, ratio=0.01, options={"interval": 3}))


def test_schemes_are_the_papers():
    setting = Setting(np.array([0.5, *[0.05] * 10]), size=1_000_000, ratio=0.001)
    assert make_policy("scheme-i", setting).parameters(0, range(11), []) == [10_000, *[100] * 10]
    assert make_policy("scheme-ii", setting).parameters(0, range(11), []) == [100, *[1090] * 10]


@pytest.mark.parametrize(
    ("method", "budget", "says"),
    [
        ("magic", {"ratio": 0.1}, "'magic': choose one of none, top-k"),
        ("top-k", {}, "takes one budget, ratio or bytes; given: none"),
        ("top-k", {"threshold": 1.0}, "given: threshold"),
        ("dagc-a", {"ratio": 0.1}, "takes one budget, threshold; given: ratio"),
        ("dagc-r", {"ratio": 0.1, "bytes": 1000}, "given: ratio, bytes"),
        ("none", {"ratio": 0.1}, "takes no budget; given: ratio"),
        ("dagc-r", {"ratio": 1e-7}, "at least one"),
    ],
)
def test_a_budget_that_does_not_fit_is_refused_before_any_work(method, budget, says):
    with pytest.raises(InvalidInput, match=says):
        make_policy(method, Setting(WEIGHTS, size=1000, **budget))


def test_a_third_party_can_register_one(monkeypatch):
    from dagc.policies import Fixed, Method
    from dagc.training import Config, train

    class Halving(Fixed):
        """Uniform, and half as much from the third round on."""

        def parameters(self, round, present, reports):
            return [count // (2 if round > 1 else 1) for count in super().parameters(round, present, reports)]

    from dagc import top_k

    monkeypatch.setitem(POLICIES, "halving", Method(("ratio",), lambda setting: Halving(setting, "uniform", top_k)))
    rounds = list(train(Config(task="logistic@digits", method="halving", ratio=0.04, rounds=3)))
    assert [r.entries for r in rounds] == [260, 260, 130]


def test_auto_takes_the_codec_that_was_measured_to_be_best():
    from dagc.policies import chosen_values

    assert chosen_values("fp16", WEIGHTS, 1000, ratio=0.001) == "fp16"
    assert chosen_values("auto", WEIGHTS, 1000, ratio=0.001) == "sign16"
    assert chosen_values("auto", WEIGHTS, 1000, bytes=100) == "sign16"
    assert chosen_values("auto", WEIGHTS, 1000, ratio=0.9) == "int8"
    assert chosen_values("auto", WEIGHTS, 1000) == "fp32"


def test_auto_trains_as_what_it_stands_for():
    import torch

    from dagc.training import Config, Federation

    one, other = (Federation(Config(task="logistic@digits", ratio=0.01, values=v)) for v in ("auto", "sign16"))
    with one.running():
        for _ in range(5):
            one.step()
            other.step()
    assert torch.equal(one.server.vector, other.server.vector)
    assert one.values == "sign16"
