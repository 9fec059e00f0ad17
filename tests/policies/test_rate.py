"""Budgets over time: never exceeded at any time, nearly spent in the end; and clients that wait."""

import json

import numpy as np
import pytest
import torch

from dagc import InvalidInput
from dagc.policies import Account, Plan, Rate, Situation, make_rate
from dagc.training import Config, Federation, iterate
from dagc.wire import payload_size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("640/training", Rate(640, "training")),
        (" 1.5 MB / hour ", Rate(1.5e6, "hour")),
        ("2kB/training", Rate(2000, "training")),
        ("3 GB/training", Rate(3e9, "training")),
    ],
)
def test_what_a_text_says(text, rate):
    assert make_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "640", "640/day", "640/round", "-1/hour", "x/hour", "1.2.3/hour", "5/training^2", "0/training", "9 mB/hour"],
)
def test_a_text_that_is_no_rate_is_refused(text):
    with pytest.raises(InvalidInput, match="rate is"):
        make_rate(text)


# The account


def test_every_client_that_takes_part_earns_its_bytes_and_what_is_left_stays():
    account = Account(bytes=20)
    spent, earned = 0, 0
    for clients, used in ((3, 60), (300, 5_000), (1, 900), (2, 0), (5, 1_000)):
        account.earn(clients)
        earned += 20 * clients
        assert account.balance == earned - spent
        account.spend(min(used, account.balance))
        spent += min(used, earned - spent)
    account.spend(10**6)
    assert account.balance == 0, "an upload that was larger than allowed is paid for later"


def test_a_rate_per_training_is_earned_in_equal_parts():
    account = Account(rate=make_rate("600/training"), rounds=3)
    balances = []
    for _ in range(3):
        account.earn(clients=2)
        balances.append(account.balance)
    assert balances == [400, 800, 1200]
    with pytest.raises(InvalidInput, match="needs rounds"):
        Account(rate=make_rate("600/training"))


def test_a_rate_per_hour_is_earned_by_the_clock_and_bounds_the_bytes_of_a_round():
    account = Account(bytes=100, rate=make_rate("3600/hour"))
    account.earn(clients=2, seconds=0.0)
    assert account.balance == 0
    assert account.wait(clients=2, seconds=0.0) == pytest.approx(100)
    account.earn(clients=2, seconds=50.0)
    assert account.balance == 100
    assert account.wait(clients=2, seconds=60.0) == pytest.approx(40)
    account.earn(clients=2, seconds=1e6)
    assert account.balance == 600, "three rounds' bytes: the clock has earned more"
    assert account.wait(clients=2, seconds=1e6) == 0


def test_the_account_continues_from_its_state():
    one, other = (Account(bytes=10.3, rate=make_rate("1 kB/hour")) for _ in range(2))
    for second in range(1, 20):
        one.earn(3, second * 7.0)
        one.spend(2)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert other.balance == one.balance
        assert other.wait(3, second * 7.0) == one.wait(3, second * 7.0)


# In training


def run(rounds=60, **fields):
    federation = Federation(Config(**{"task": "logistic@digits", "rounds": rounds, "threads": 1, **fields}))
    return federation, [federation.step() for _ in range(rounds)]


METHODS = [("dagc-r", {}), ("power", {}), ("top-k", {}), ("dagc-r", {"overhead": 0.125})]
BUDGETS = [{"bytes": 25}, {"rate": "1500/training"}]


@pytest.mark.parametrize(("method", "waiting"), METHODS)
@pytest.mark.parametrize("fields", [{}, {"values": "sign"}, {"participation": 0.5, "late": 0.2}])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_is_never_exceeded_and_nearly_spent(method, waiting, fields, budget):
    federation, rounds = run(method=method, **waiting, **budget, **fields)
    asked = 10 * fields.get("participation", 1)
    for result in rounds:
        assert result.bytes_up <= 25 * asked * result.round
    assert federation.bytes_up > 0.97 * 25 * asked * 60  # what the last round leaves, nobody uses


def test_the_longer_the_less_is_left():
    federation, _ = run(300, method="dagc-r", bytes=20, values="sign")
    assert 0.999 * 60_000 < federation.bytes_up <= 60_000


def test_a_rate_of_time_makes_rounds_wait():
    fields = {"method": "dagc-r", "bytes": 60, "network": "constant:up=8,down=8"}
    federation, rounds = run(20, rate="100 kB/hour", **fields)
    for result in rounds:
        assert result.bytes_up <= 10 * 100e3 * result.seconds / 3600
    assert federation.bytes_up > 0.9 * 10 * 100e3 * federation.seconds / 3600
    freely, _ = run(20, **fields)
    assert freely.seconds < 0.01 * federation.seconds
    fast, _ = run(20, rate="10 GB/hour", **fields)
    assert fast.seconds == pytest.approx(freely.seconds, rel=0.3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "dagc-r", "rate": "1 MB/hour"}, "also needs bytes"),
        ({"method": "dagc-r", "rate": "600/training", "bytes": 600}, "give one budget, not bytes and rate"),
        ({"method": "none", "rate": "600/training"}, "'none' takes no budget, but rate is given"),
        ({"method": "accordion", "rate": "600/training"}, "'accordion' takes no rate: give its budget as ratio"),
        ({"method": "dagc-r", "rate": "600"}, "write bytes per client, like 200 kB/training"),
        ({"method": "dagc-r", "rate": "600/training", "ratio": 0.1}, "give one budget, not ratio and rate"),
        ({"method": "dagc-a", "rate": "600/training"}, "'dagc-a' takes no rate: give its budget as threshold"),
    ],
)
def test_a_rate_that_does_not_fit_is_refused_before_any_work(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Config(task="logistic@digits", **fields)


def test_fields_at_their_defaults_do_not_change_a_runs_name():
    usual = Config(task="mlp@digits", method="thrifty", ratio=0.01)
    assert usual.key() == Config(task="mlp@digits", ratio=0.01, frames="auto", method="thrifty").key()
    assert usual.key() != Config(task="mlp@digits", ratio=0.01).key()


# Waiting

NAMES = [f"client {i}" for i in range(10)]
EXAMPLES = dict(zip(NAMES, np.linspace(1000, 10, 10), strict=True))


def policy(size=10_000, method="dagc-r", **fields):
    return Plan(method=method, **fields).policy(size)


def now(round=0, present=NAMES, allowance=None):
    return Situation(round, list(present), EXAMPLES, allowance=allowance)


def test_each_sends_its_part_in_the_long_run_and_few_at_a_time():
    waiting, usual = policy(ratio=0.001, overhead=0.03), policy(ratio=0.001)
    rounds = np.array([waiting.decide(now(t)) for t in range(600)])
    assert set(rounds.sum(axis=1)) == {100}
    assert np.count_nonzero(rounds, axis=1).max() < 5
    assert rounds.sum(axis=0) / 600 == pytest.approx(usual.decide(now()), rel=0.1)


def test_a_budget_that_is_too_small_for_everybody_is_shared_in_turns():
    usual = policy(bytes=6, values="sign")
    sent = np.zeros(10)
    for t in range(300):
        counts = np.array(usual.decide(now(t, allowance=60)))
        taken = payload_size(10_000, counts[counts > 0], "sign").sum()
        assert 45 < taken <= 60
        sent += counts
    assert np.all(sent > 0), "everybody has a turn"


@pytest.mark.parametrize(("bytes", "fewest", "most"), [(2, 0, 1), (6, 0, 2), (13, 1, 3), (400, 10, 10)])
def test_who_has_too_little_for_a_frame_waits(bytes, fewest, most):
    waiting, account = policy(bytes=bytes, values="sign", overhead=0.125), Account(bytes)
    sent = np.zeros(10)
    for t in range(600):
        account.earn(10)
        counts = np.array(waiting.decide(now(t, allowance=account.balance)))
        taken = payload_size(10_000, counts[counts > 0], "sign")
        assert taken.sum() <= account.balance
        account.spend(taken.sum())
        assert np.all(counts[counts > 0] >= 0.75 * waiting.least), "worth a frame, if the frames are alike"
        assert fewest <= len(taken) <= most
        sent += counts
    assert account.balance < 0.01 * 600 * 10 * bytes, "nearly all is spent"
    usual = np.array(policy(ratio=0.01).decide(now()))
    assert sent / sent.sum() == pytest.approx(usual / usual.sum(), rel=0.15)


def test_nobody_waits_while_others_cannot_use_the_budget():
    caps = dict.fromkeys(NAMES, 0.002)
    waiting = policy(bytes=400, caps=caps, values="sign", overhead=0.125)
    assert waiting.decide(now(allowance=4_000)) == [20] * 10


def test_a_round_that_is_too_small_for_a_frame_leaves_the_savings_alone():
    waiting, other = (policy(bytes=13, values="sign", overhead=0.125) for _ in range(2))
    for t in range(100):
        assert waiting.decide(now(t, allowance=1)) == [0] * 10
    assert waiting.decide(now(100, allowance=130)) == other.decide(now(allowance=130))


def test_savings_are_kept_by_name_and_the_state_carries_all():
    one, resumed = (policy(ratio=0.001, overhead=0.1) for _ in range(2))
    for t in range(30):
        resumed.load_state_dict(json.loads(json.dumps(one.state_dict())))
        present = [NAMES[i] for i in (8, 1, 4, 5)] if t % 3 else NAMES
        counts = one.decide(now(t, present))
        assert counts == resumed.decide(now(t, present))
        assert sum(counts) == 10 * len(present)


def test_waiting_ends_with_the_same_bits_when_resumed(tmp_path):
    fields = {"task": "logistic@digits", "method": "dagc-r", "overhead": 0.125, "rounds": 12}
    config = Config(**fields, rate="360/training", participation=0.7, threads=1, checkpoint_every=4)
    straight = list(iterate(config))
    for result in iterate(config, tmp_path / "run"):
        if result.round == 7:
            break
    rest = list(iterate(config, tmp_path / "run"))
    assert rest == straight[7:]


def test_who_waits_keeps_everything():
    federation, rounds = run(8, method="dagc-r", overhead=0.05, ratio=0.02)
    assert all(result.entries == 130 for result in rounds)
    sent = [report.entries for report in federation.server.budget.reports]
    assert 0 < sum(k > 0 for k in sent) < 5
    assert all(report.bytes == 0 for report in federation.server.budget.reports if not report.entries)
    assert all(uplink.feedback.steps == 8 for uplink in federation.uplinks.values())
    assert all(torch.isfinite(uplink.feedback.residual).all() for uplink in federation.uplinks.values())


@pytest.mark.parametrize("wrong", [-1, 5000, float("nan"), "much"])
def test_an_overhead_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"overhead is .*: it must be a number from 0"):
        Plan(ratio=0.01, overhead=wrong)
