"""One threshold for all: the pass over the entries, what clients tell, and what the server makes of it."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagc import ErrorFeedback, InvalidInput, MalformedPayload, NonFiniteGradient, top_k
from dagc.compressors import histogram as passes
from dagc.policies import Setting, make_policy
from dagc.testing import vectors
from dagc.training import Config, Federation
from dagc.wire import payload_size
from dagc.wire.outline import read_outline, write_outline

DOCUMENT = Path(__file__).parent.parent / "docs" / "wire-format.md"


# The pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", vectors())
def test_the_kernel_counts_like_the_reference(name, dtype, monkeypatch):
    vector = vectors()[name].clamp(-60_000, 60_000)
    parts = [part.to(dtype) for part in (vector[: len(vector) // 3], vector[len(vector) // 3 :]) if len(part)]
    residual = torch.linspace(-1, 1, len(vector)) * 1e-3
    for bins in (1, 4, 16):
        fast = passes.histogram(parts, residual, bins)
        with monkeypatch.context() as patch:
            patch.setattr(passes, "compiled", lambda: False)
            assert np.array_equal(fast, passes.histogram(parts, residual, bins))
        assert fast.sum() == len(vector)
        for floor in (1, int(np.flatnonzero(fast)[-1]), len(fast) - 1):
            above = passes.histogram(parts, residual, bins, floor)
            assert np.array_equal(above, np.where(np.arange(len(fast)) >= floor, fast, 0))


def test_bins_are_those_of_the_magnitudes():
    vector = vectors()["heavy tails"]
    counts = passes.histogram([vector], torch.zeros(len(vector)), bins=4)
    edges = (np.arange(len(counts) + 1, dtype=np.int32) << 21).view(np.float32)
    assert np.array_equal(counts, np.histogram(vector.abs().numpy(), edges)[0])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kernels", [True, False])
def test_what_is_not_finite_is_refused_and_nothing_changes(bad, kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(passes, "compiled", lambda: False)
    feedback = ErrorFeedback(top_k, 200)
    feedback.step(torch.arange(200.0), 2)
    before = feedback.residual.clone()
    for place in (4, 70, 199):  # within whole blocks, and in the rest
        gradient = torch.zeros(200)
        gradient[place] = bad
        with pytest.raises(NonFiniteGradient, match=f"entry {place} of 200"):
            feedback.histogram(gradient)
    feedback.histogram(torch.ones(200))
    assert torch.equal(feedback.residual, before)
    with pytest.raises(InvalidInput, match="has 8 entries"):
        feedback.histogram(torch.ones(8))


# The message


def expected(counts, floor, reach):
    largest = [bin for bin in np.repeat(np.arange(len(counts)), counts)[::-1].tolist() if bin >= floor]
    return [largest[(1 << j) - 1] for j in range(reach.bit_length()) if 1 << j <= len(largest)]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 70), st.integers(1, 300), st.integers(4, 9)
)
def test_an_outline_tells_where_the_ranks_are(counts, floor, reach, longest):
    message = write_outline(np.array(counts), floor, reach, longest)
    bins, found = expected(counts, floor, reach), read_outline(message, floor, reach, len(counts)).tolist()
    assert found == bins[: len(found)]
    assert (message == b"") == (bins == [])
    if bins:
        bits = 2 * (bins[0] - floor + 1).bit_length() - 1 + bins[0] - bins[-1] + len(bins) - 1
        assert len(message) == -(-bits // 8) if found == bins else bits > 8 * longest


@given(st.binary(max_size=12), st.integers(1, 200), st.integers(1, 100))
@settings(max_examples=500)
def test_arbitrary_bytes_never_crash_the_reader_and_what_it_takes_is_canonical(message, floor, reach):
    with contextlib.suppress(MalformedPayload):
        bins = read_outline(message, floor, reach, 300)
        assert np.all(np.diff(bins) <= 0)
        assert not len(bins) or floor <= bins[-1] <= bins[0] < 300
        # The same bins come of one histogram at least, and that writes the same bytes.
        counts = np.zeros(300, dtype=np.int64)
        for rank, bin in enumerate(bins):
            counts[bin] += max(1, 1 << rank >> 1)
        assert write_outline(counts, floor, 1 << max(0, len(bins) - 1)) == bytes(message)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\0", "first bin of the outline is too large"),
        (bytes(2) + b"\1", "first bin of the outline is too large"),
        (b"\x80", "first bin of the outline is too large"),
        (b"\1\0", "does not end with its last byte"),
        (write_outline(np.array([0] * 350 + [1]), 10), "bins 350 to 350, not of 10 to 299"),
        (b"\x01\x01", "bins 3 to 10, not of 10 to 299"),
        (b"\xff\x0f", "tells of 12 ranks; 7 are within 100"),
        (bytes(10_000), "at most 64 bytes here, not 10000"),
    ],
)
def test_malformed_outlines_are_refused_each_with_its_own_words(message, says):
    with pytest.raises(MalformedPayload, match=says):
        read_outline(message, 10, 100, 300)


class TestDocumentedBytes:
    LINES = re.findall(r"```text\n(.*?)```", DOCUMENT.read_text(), re.S)[2].splitlines()

    @pytest.mark.parametrize("line", LINES)
    def test_vector(self, line):
        floor, reach, bins, message = (part.strip() for part in line.split("|"))
        found = read_outline(bytes.fromhex(message), int(floor), int(reach))
        assert found.tolist() == [int(bin) for bin in bins.split()]


# The policy

WEIGHTS = np.linspace(1000, 10, 10)
SIZE = 20_000


def gradients(seed, clients=10, size=SIZE):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).pow(3) * (1 + i % 3) for i in range(clients)]


def exchanged(policy, present, vectors):
    floors = policy.ask(present)
    empty = torch.zeros(len(vectors[0]))
    messages = [
        policy.tell(passes.histogram([vectors[i]], empty, policy.bins), floor)
        for i, floor in zip(present, floors, strict=True)
    ]
    return policy.answer(present, floors, messages), messages


@pytest.mark.parametrize("exponent", [0.0, 2 / 3, 1.0])
@pytest.mark.parametrize("ratio", [0.0005, 0.01, 0.3])
def test_nearly_the_largest_of_all_clients_are_chosen(exponent, ratio):
    policy = make_policy("dagc-global", Setting(WEIGHTS, SIZE, ratio=ratio, exponent=exponent))
    for seed in range(4):
        found = gradients(seed)
        counts, _ = exchanged(policy, range(10), found)
        weighted = torch.stack([p**exponent * g.abs() for p, g in zip(WEIGHTS, found, strict=True)])
        best = weighted.flatten().topk(sum(counts)).values.sum()
        got = sum(row.topk(count).values.sum() for row, count in zip(weighted, counts, strict=True))
        assert sum(counts) == int(ratio * SIZE * 10)
        assert got > (0.985 if ratio < 0.1 else 0.97) * best


def test_the_number_of_entries_is_met_exactly_whoever_is_there_and_whatever_they_have():
    policy = make_policy("dagc-global", Setting(WEIGHTS, SIZE, ratio=0.001))
    same = [torch.ones(SIZE)] * 10
    nothing = [torch.zeros(SIZE)] * 10
    one = [torch.zeros(SIZE)] * 9 + [torch.ones(SIZE)]
    for vectors_ in (gradients(0), same, nothing, one, gradients(1)):
        for present in (range(10), [0, 3, 9], [5]):
            counts, _ = exchanged(policy, present, vectors_)
            assert sum(counts) == 20 * len(counts)
    exchanged(policy, range(10), one)  # far below the last threshold: nobody speaks, and all are asked anew
    counts, _ = exchanged(policy, range(10), one)
    assert counts[-1] == 200, "the only one with anything to send gets it all"


@given(st.integers(400, 20_000), st.sampled_from(["fp32", "int8", "sign16"]), st.booleans(), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_a_budget_in_bytes_is_never_passed_and_hardly_missed(budget, values, compact, seed):
    setting = Setting(WEIGHTS, SIZE, bytes=budget, values=values, compact=compact)
    policy = make_policy("dagc-global", setting)
    for round in range(3):
        counts, messages = exchanged(policy, range(10), gradients(seed + round))
        frames = payload_size(SIZE, [k for k in counts if k], values, compact=compact)
        taken = int(frames.sum()) + sum(map(len, messages))
        assert taken <= budget
        assert taken >= budget - max(0.01 * budget, 14)


def test_caps_are_respected_and_what_they_cut_off_goes_to_the_others():
    caps = [0.0002] + [1.0] * 9
    free = make_policy("dagc-global", Setting(WEIGHTS, SIZE, ratio=0.001))
    capped = make_policy("dagc-global", Setting(WEIGHTS, SIZE, ratio=0.001, caps=caps))
    before, after = exchanged(free, range(10), gradients(0))[0], exchanged(capped, range(10), gradients(0))[0]
    assert before[0] > after[0] == 4
    assert sum(before) == sum(after) == 200
    tight = make_policy("dagc-global", Setting(WEIGHTS, SIZE, ratio=0.001, caps=[0.0005] * 10))
    assert exchanged(tight, range(10), gradients(0))[0] == [10] * 10


def test_who_has_too_little_for_a_frame_says_nothing_and_waits():
    policy = make_policy("dagc-global", Setting(WEIGHTS, SIZE, bytes=150, values="sign16", compact=True))
    assert 10 < policy.least < 40
    for seed in range(3):
        counts, messages = exchanged(policy, range(10), gradients(seed))
    assert 1 <= sum(k > 0 for k in counts) <= 5
    assert min(k for k in counts if k) >= 0.7 * policy.least
    assert sum(map(len, messages)) <= 30
    assert 2 <= sum(message == b"" for message in messages) < 10


def test_a_fall_of_all_gradients_is_followed():
    policy = make_policy("dagc-global", Setting(WEIGHTS, SIZE, ratio=0.001))
    exchanged(policy, range(10), gradients(0))
    small = [gradient * 1e-6 for gradient in gradients(1)]
    _, silent = exchanged(policy, range(10), small)
    counts, messages = exchanged(policy, range(10), small)
    assert silent == [b""] * 10
    assert all(messages)
    assert counts == exchanged(make_policy("dagc-global", policy.setting), range(10), small)[0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ratio": 0.001, "options": {"bins": 3}}, "bins must be 1, 2, 4, 8 or 16"),
        ({"ratio": 0.001, "options": {"overhead": 0}}, "overhead must be above 0 and at most 1"),
        ({"ratio": 0.001, "options": {"speed": 2}}, "no option speed"),
        ({"ratio": 0.001, "caps": [0.5]}, "caps must hold"),
        ({"ratio": 0.001, "caps": [0.0] * 10}, "caps must hold"),
        ({"bytes": 50}, "50 bytes a round are too few for 10 clients"),
        ({"ratio": 1e-6}, "too small"),
        ({"threshold": 0.1}, "takes one budget, ratio or bytes"),
    ],
)
def test_a_bad_setting_is_refused_before_any_work(fields, says):
    with pytest.raises(InvalidInput, match=says):
        make_policy("dagc-global", Setting(WEIGHTS, SIZE, **fields))


def test_an_outline_that_lies_gets_at_most_the_budget_and_one_that_is_too_long_is_refused():
    policy = make_policy("dagc-global", Setting(WEIGHTS, SIZE, bytes=400))
    floors = policy.ask(range(10))
    huge = write_outline(np.array([0] * 500 + [SIZE]), 1, 1)
    counts = policy.answer(range(10), floors, [huge] * 10)
    assert int(payload_size(SIZE, [k for k in counts if k]).sum()) + 10 * len(huge) <= 400
    with pytest.raises(MalformedPayload, match="at most 5 bytes here, not 6"):
        policy.answer(range(10), floors, [b"\1" * 6] * 10)


def test_clients_without_data_get_nothing():
    policy = make_policy("dagc-global", Setting(np.array([0.0, 5.0, 3.0]), SIZE, ratio=0.001))
    counts, _ = exchanged(policy, [1, 2], gradients(0, 3))
    assert sum(counts) == 40


# The engine


def run(rounds=30, **fields):
    settings_ = {"task": "logistic@digits", "method": "dagc-global", "rounds": rounds, "threads": 1, **fields}
    federation = Federation(Config(**settings_))
    with federation.running():
        return federation, [federation.step() for _ in range(rounds)]


@pytest.mark.parametrize("fields", [{}, {"values": "sign16", "frames": "compact"}, {"values": "int8"}])
def test_every_byte_is_counted_and_the_budget_holds_in_every_round(fields):
    federation, rounds = run(budget_bytes=400, **fields)
    assert all(0.6 * 400 < result.up <= 400 for result in rounds)
    assert sum(result.up for result in rounds) == federation.bytes_up


def test_what_is_told_is_counted_beside_the_frames(monkeypatch):
    told = []
    from dagc.policies.one_threshold import OneThreshold

    tell = OneThreshold.tell
    monkeypatch.setattr(OneThreshold, "tell", lambda *args: told.append(tell(*args)) or told[-1])
    federation, rounds = run(ratio=0.01, frames="compact", rounds=5)
    frames = sum(report.bytes for report in federation.reports)
    assert rounds[-1].up == frames
    last = told[-10:]
    from dagc.wire import encode  # noqa: F401

    assert 0 < sum(map(len, last)) < 0.2 * frames


def test_the_exchange_is_on_the_clock():
    network = "constant:up=1000,down=1000,latency=0.1"
    _, without = run(method="top-k", ratio=0.01, network=network, rounds=3)
    _, with_exchange = run(ratio=0.01, network=network, rounds=3)
    assert without[0].seconds == pytest.approx(0.2, rel=0.01)
    assert with_exchange[0].seconds == pytest.approx(0.4, rel=0.01)


def test_absent_and_late_clients_keep_their_residuals_and_nothing_is_lost():
    fields = {"ratio": 0.01, "participation": 0.5, "late": 0.3, "rounds": 1}
    federation, _ = run(**fields)
    residuals = [client.feedback.residual.clone() for client in federation.clients]
    with federation.running():
        present = federation._present(1)
        computed = federation.gradients(1, present)
        before = federation.server.vector.detach().clone()
        federation.step()
    for i, client in enumerate(federation.clients):
        if i not in present:
            assert torch.equal(client.feedback.residual, residuals[i])
    sums = {
        i: residuals[i] + torch.cat([g.flatten() for g in gradient])
        for i, (_, gradient) in zip(present, computed, strict=True)
    }
    taken = [i for i in present if federation._chance(1, i, "late") >= 0.3]
    for i in set(present) - set(taken):
        assert torch.equal(federation.clients[i].feedback.residual, sums[i])
    assert not torch.equal(federation.server.vector, before) or not taken


def test_plain_and_compact_frames_train_alike():
    one, _ = run(ratio=0.01)
    other, _ = run(ratio=0.01, frames="compact")
    assert torch.equal(one.server.vector, other.server.vector)
    assert other.bytes_up < one.bytes_up


def test_without_kernels_the_bits_are_the_same(monkeypatch):
    one, rounds = run(ratio=0.01, rounds=8)
    import sys

    for module in ("dagc.compressors.histogram", "dagc.compressors.top_k", "dagc.feedback", "dagc.sparse"):
        monkeypatch.setattr(sys.modules[module], "compiled", lambda: False)
    other, same = run(ratio=0.01, rounds=8)
    assert torch.equal(one.server.vector, other.server.vector)
    assert rounds == same
