"""A budget as a rate: never passed at any time, hardly missed in the end; and clients that take turns."""

import math

import numpy as np
import pytest
import torch

from dagc import InvalidInput
from dagc.policies import Setting, make_policy
from dagc.rate import Rate, make_rate
from dagc.training import Config, Federation, train
from dagc.wire import payload_size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("640/round", Rate(640, "round")),
        (" 1.5 MB / hour ", Rate(1.5e6, "hour")),
        ("2kB/training", Rate(2000, "training")),
        ("3 GB/training^0.5", Rate(3e9, "training", 0.5)),
    ],
)
def test_what_a_text_says(text, rate):
    assert make_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "640", "640/day", "-1/round", "x/round", "1.2.3/round", "5/round^2", "0/round", "9/training^99", "9 mB/hour"],
)
def test_a_text_that_is_no_rate_is_refused(text):
    with pytest.raises(InvalidInput, match="rate"):
        make_rate(text)


def run(rounds=60, **fields):
    settings = {"task": "logistic@digits", "rounds": rounds, "threads": 1, **fields}
    federation = Federation(Config(**settings))
    with federation.running():
        return federation, [federation.step() for _ in range(rounds)]


METHODS = [
    ("dagc-global", {}),
    ("dagc-r", {}),
    ("top-k", {}),
    ("dagc-r", {"turns": 3}),
    ("dagc-r", {"overhead": 0.125}),
]


@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize("fields", [{}, {"values": "sign16", "frames": "compact"}, {"participation": 0.5, "late": 0.2}])
@pytest.mark.parametrize("text", ["250/round", "15 kB/training^0.5", "15 kB/training^2"])
def test_a_rate_is_never_passed_and_hardly_missed(method, options, fields, text):
    federation, rounds = run(method=method, method_options=options, budget_rate=text, **fields)
    rate = make_rate(text)
    for number, result in enumerate(rounds):
        assert result.bytes_up <= rate.allowed(number, 60, 0)
    assert federation.bytes_up > 0.98 * 15_000  # of 60 rounds; what the last one leaves, nobody uses


def test_the_longer_the_less_is_missed():
    federation, _ = run(300, method="dagc-global", budget_rate="200/round", values="sign16", frames="compact")
    assert 0.999 * 60_000 < federation.bytes_up <= 60_000


def test_a_rate_of_time_makes_rounds_wait():
    fields = {"method": "dagc-r", "budget_bytes": 600, "network": "constant:up=8,down=8"}
    federation, rounds = run(20, budget_rate="1 MB/hour", **fields)
    for result in rounds:
        assert result.bytes_up <= 1e6 * result.seconds / 3600
    assert federation.bytes_up > 0.9 * 1e6 * federation.seconds / 3600
    freely, _ = run(20, **fields)
    assert freely.seconds < 0.01 * federation.seconds
    fast, _ = run(20, budget_rate="100 GB/hour", **fields)
    assert fast.seconds == pytest.approx(freely.seconds, rel=0.3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "dagc-r", "budget_rate": "1 MB/hour"}, "needs budget_bytes"),
        ({"method": "dagc-r", "budget_rate": "600/round", "budget_bytes": 600}, "stand alone"),
        ({"method": "none", "budget_rate": "600/round"}, "none and accordion take none"),
        ({"method": "accordion", "budget_rate": "600/round"}, "none and accordion take none"),
        ({"method": "dagc-r", "budget_rate": "600"}, "is written like"),
        ({"method": "dagc-r", "budget_rate": "600/round", "ratio": 0.1}, "given: ratio, bytes"),
        ({"method": "dagc-a", "budget_rate": "600/round"}, "takes one budget, threshold"),
    ],
)
def test_a_rate_that_does_not_fit_is_refused_before_any_work(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Federation(Config(task="logistic@digits", **fields))


def test_fields_at_their_defaults_do_not_change_a_runs_name():
    assert Config(task="mlp@digits", ratio=0.01).key() == Config(task="mlp@digits", ratio=0.01, frames="plain").key()
    assert Config(task="mlp@digits", ratio=0.01).key() != Config(task="mlp@digits", ratio=0.01, frames="compact").key()


# Turns

WEIGHTS = np.linspace(1000, 10, 10)


def turns(number=5, *, options=None, **budget):
    return make_policy("dagc-r", Setting(WEIGHTS, 10_000, options=options or {"turns": number}, **budget))


def test_each_sends_its_part_in_the_long_run_and_few_at_a_time():
    policy, fixed = turns(ratio=0.01), make_policy("dagc-r", Setting(WEIGHTS, 10_000, ratio=0.01))
    rounds = [policy.parameters(t, range(10), []) for t in range(300)]
    assert all(sum(counts) == 1000 and sum(k > 0 for k in counts) == 2 for counts in rounds)
    part = np.sum(rounds, 0) / 300
    assert part == pytest.approx(fixed.parameters(0, range(10), []), rel=0.1)


def test_turns_keep_a_budget_in_bytes_and_fit_where_frames_for_all_would_not():
    policy = turns(bytes=60, values="sign16", compact=True)
    for t in range(20):
        counts = [k for k in policy.parameters(t, range(10), []) if k]
        assert 45 < payload_size(10_000, counts, "sign16", compact=True).sum() <= 60
    with pytest.raises(InvalidInput, match="too few for 10 clients"):
        make_policy("dagc-r", Setting(WEIGHTS, 10_000, bytes=60, values="sign16", compact=True))


@pytest.mark.parametrize(("bytes", "fewest", "most"), [(60, 1, 1), (130, 1, 3), (4_000, 10, 10)])
def test_who_has_too_little_for_a_frame_waits(bytes, fewest, most):
    policy = turns(options={"overhead": 0.125}, bytes=bytes, values="sign16", compact=True)
    sent = np.zeros(10)
    for t in range(300):
        counts = np.array(policy.parameters(t, range(10), []))
        taken = payload_size(10_000, counts[counts > 0], "sign16", compact=True)
        assert 0.75 * bytes < taken.sum() <= bytes
        assert fewest <= len(taken) <= most
        assert len(taken) == 1 or min(counts[counts > 0]) > 30  # 35 are worth a frame if the frames are alike
        sent += counts
    fixed = make_policy("dagc-r", Setting(WEIGHTS, 10_000, ratio=0.01)).parameters(0, range(10), [])
    assert sent / sent.sum() == pytest.approx(np.array(fixed) / sum(fixed), rel=0.1)


def test_nobody_waits_while_others_cannot_use_the_budget():
    setting = {"bytes": 4_000, "caps": [0.002] * 10, "values": "sign16", "compact": True}
    assert turns(options={"overhead": 0.125}, **setting).parameters(0, range(10), []) == [20] * 10


def test_a_round_that_is_too_small_for_a_frame_leaves_the_savings_alone():
    policy, other = (turns(options={"overhead": 0.125}, bytes=130, values="sign16", compact=True) for _ in range(2))
    policy.allow(1)
    for t in range(100):
        assert policy.parameters(t, range(10), []) == [0] * 10
    policy.allow(130)
    assert policy.parameters(100, range(10), []) == other.parameters(0, range(10), [])


def test_asked_twice_in_a_round_it_answers_alike_and_its_state_carries_all():
    policy, twice, resumed = turns(ratio=0.01), turns(ratio=0.01), turns(ratio=0.01)
    for t in range(30):
        twice.parameters(t, [0, 1], [])
        resumed.load_state_dict(policy.state_dict())
        here = [1, 4, 5, 8] if t % 3 else range(10)
        one, two, three = (p.parameters(t, here, []) for p in (policy, twice, resumed))
        assert one == two == three
        assert sum(one) == 100 * len(here)


def test_turns_end_with_the_same_bits_when_resumed(tmp_path):
    fields = {"task": "logistic@digits", "method": "dagc-r", "method_options": {"turns": 3}, "rounds": 12}
    config = Config(**fields, budget_rate="300/round", participation=0.7, threads=1, checkpoint_every=4)
    straight = list(train(config))
    for result in train(config, tmp_path / "run"):
        if result.round == 7:
            break
    rest = list(train(config, tmp_path / "run"))
    assert rest == straight[7:]


def test_who_waits_keeps_everything():
    federation, rounds = run(8, method="dagc-r", method_options={"turns": 5}, ratio=0.02)
    assert all(result.entries == 130 for result in rounds)
    sent = [report.entries for report in federation.reports]
    assert sum(k > 0 for k in sent) == 2
    assert all(report.bytes == 0 for report in federation.reports if not report.entries)
    assert all(torch.isfinite(client.feedback.residual).all() for client in federation.clients)


@pytest.mark.parametrize("wrong", [0, -1, 5000])
def test_turns_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput, match="turns must be from 1"):
        turns(wrong, ratio=0.01)
    with pytest.raises(InvalidInput, match="overhead must be above 0 and at most 1"):
        turns(options={"overhead": wrong or math.nan}, ratio=0.01)
    with pytest.raises(InvalidInput, match="give one of them"):
        turns(options={"overhead": 0.1, "turns": 2}, ratio=0.01)
