"""Who may send how much: Algorithms 2 and 3, caps, byte budgets, integers; what is refused."""

import time
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dagc
from dagc import BudgetWarning, InvalidInput, allocate, entries, payload_size
from dagc.allocation import apportion, apportion_bytes, dagc_r

weights = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40)


def algorithm_2(p, mean):
    """The paper's Algorithm 2, line by line, for weights in descending order: O(n²) and naive."""
    n = len(p)
    if n == 1:
        return [mean]
    total = sum(x ** (2 / 3) for x in p)
    best, result = float("inf"), None
    for j in reversed(range(n)):
        if j != n - 1 and j > 0 and p[j] == p[j - 1]:
            continue
        base = p[n - 2] if j == n - 1 else p[n - 1]
        q = (total - p[j] ** (2 / 3)) / base ** (2 / 3)
        phi = (p[j] * (1 + q) + base * q * (1 + q)) / (n * mean)
        if phi < best:
            best = phi
            smallest = n * mean / (q + 1)
            result = [smallest if i == j else smallest * (p[i] / base) ** (2 / 3) for i in range(n)]
    return result


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=30), st.floats(1e-4, 0.5))
def test_dagc_r_is_algorithm_2_to_the_letter(sizes, mean):
    p = np.sort(np.array(sizes, dtype=float))[::-1] / sum(sizes)
    naive = algorithm_2(p.tolist(), mean)
    ours = dagc_r(p, mean * len(p))
    if len(np.unique(p)) == len(p):
        assert ours == pytest.approx(naive, rel=1e-9)
    assert np.sort(ours) == pytest.approx(np.sort(naive), rel=1e-9)


@given(weights, st.floats(1e-4, 10))
def test_dagc_a_is_algorithm_3(sizes, mean):
    p = np.array(sizes) / sum(sizes)
    expected = [mean * (p ** (2 / 3)).sum() / len(p) * x ** (-2 / 3) for x in p]
    assert allocate(sizes, threshold=mean, method="dagc-a") == pytest.approx(expected, rel=1e-9)


def test_power_with_exponent_0_is_uniform_and_1_is_proportional():
    assert allocate([1, 2, 5], ratio=0.1, method="power", exponent=0) == pytest.approx([0.1, 0.1, 0.1])
    assert allocate([1, 2, 5], ratio=0.1, method="power", exponent=1) == pytest.approx([0.0375, 0.075, 0.1875])


@pytest.mark.parametrize("method", ["uniform", "dagc-r", "power"])
def test_clients_without_data_change_nothing(method):
    with_them = allocate([0, 50, 0, 7, 3, 0], ratio=0.01, method=method)
    without = allocate([50, 7, 3], ratio=0.01, method=method)
    assert with_them[[1, 3, 4]] == pytest.approx(without)
    assert with_them[[0, 2, 5]].tolist() == [0, 0, 0]


@given(weights, st.floats(0.001, 1), st.data())
def test_caps_are_kept_and_the_budget_is_still_spent(sizes, ratio, data):
    caps = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=len(sizes), max_size=len(sizes))))
    for method in ("uniform", "dagc-r", "power"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            given_out = allocate(sizes, ratio=ratio, method=method, caps=caps)
        assert np.all(given_out <= caps * (1 + 1e-12))
        if caps.sum() < ratio * len(sizes) * (1 - 1e-6):
            assert given_out == pytest.approx(caps)
            assert [warning.category for warning in caught] == [BudgetWarning]
        elif caps.sum() > ratio * len(sizes) * (1 + 1e-6):
            assert given_out.sum() == pytest.approx(ratio * len(sizes))
            assert not caught


def test_what_a_cap_cuts_off_goes_to_the_others_by_the_same_rule():
    free = allocate([80, 10, 10, 5], ratio=0.01, method="power")
    capped = allocate([80, 10, 10, 5], ratio=0.01, method="power", caps=[0.01, 1, 1, 1])
    assert capped[0] == 0.01
    assert capped[1:] / capped[1] == pytest.approx(free[1:] / free[1])
    assert capped.sum() == pytest.approx(0.04)


@example([121.0, 2090.0], 2651, 0.53125)  # what rounding down the sum takes away, no client may lose beside its own
@given(weights, st.integers(1, 10_000), st.floats(0.001, 1))
def test_entries_add_up_exactly(sizes, size, ratio):
    ratios = allocate(sizes, ratio=ratio, method="power")
    budget = int(np.floor(ratio * len(sizes) * size * (1 + 1e-12) + 1e-9))
    if budget < len(sizes):
        with pytest.raises(InvalidInput, match="at least one"):
            entries(ratios, size)
        return
    counts = entries(ratios, size)
    assert counts.sum() == budget
    assert counts.min() >= 1
    assert counts.max() <= size
    wanted = ratios * size
    if wanted.min() >= 1:
        assert np.all(np.abs(counts - wanted) < 1 + 1e-6)


@given(
    st.lists(st.tuples(st.floats(1e-6, 1), st.integers(1, 50)), min_size=1, max_size=30), st.integers(0, 1), st.data()
)
def test_apportion_keeps_its_bounds(clients, least, data):
    quota, most = np.array([c[0] for c in clients]), np.array([c[1] for c in clients])
    total = data.draw(st.integers(least * len(clients), int(most.sum())))
    counts = apportion(quota, total, most, least)
    assert counts.sum() == total
    assert np.all((counts >= least) & (counts <= most))


def test_entries_respect_caps_and_largest_remainders():
    assert entries([0.26, 0.26, 0.48], 10).tolist() == [3, 2, 5]
    assert entries([0.25, 0.25, 0.25], 10, caps=[0.2, 1, 1]).tolist() == [2, 3, 2]
    assert entries([0.0, 0.5], 10).tolist() == [0, 5]


@pytest.mark.parametrize("values", dagc.VALUE_CODECS)
@pytest.mark.parametrize("method", ["uniform", "dagc-r", "power"])
def test_a_byte_budget_is_never_passed_and_nearly_spent(method, values):
    size, budget = 235_690, 40_000
    ratios = allocate(np.linspace(1000, 10, 10), bytes=budget, size=size, values=values, method=method)
    counts = entries(ratios, size)
    assert 0.99 * budget < payload_size(size, counts, values).sum() <= budget
    rng = np.random.default_rng(0)
    real = 0
    for count in counts:  # random places are the hardest to code that are likely
        sparse = dagc.Sparse(size, np.sort(rng.choice(size, count, replace=False)), rng.standard_normal(count))
        real += len(dagc.encode(sparse, values, round=9999))
    assert 0.9 * budget < real <= budget


def test_if_all_caps_together_take_less_than_the_bytes_there_is_a_warning():
    with pytest.warns(BudgetWarning, match="every client gets its cap"):
        assert allocate([1, 2], bytes=10**7, size=1000, caps=[0.1, 0.2]).tolist() == [0.1, 0.2]
    assert allocate([1, 2], bytes=10**7, size=1000).tolist() == [1, 1]


def test_a_million_clients_in_a_second():
    sizes = np.random.default_rng(0).lognormal(sigma=2, size=1_000_000)
    for method in ("uniform", "dagc-r", "power"):
        began = time.process_time()
        allocate(sizes, ratio=0.001, method=method)
        assert time.process_time() - began < 1, method
    began = time.process_time()
    allocate(sizes, threshold=0.05, method="dagc-a")
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: allocate([], ratio=0.1), "one number per client"),
        (lambda: allocate([[1, 2]], ratio=0.1), "shape"),
        (lambda: allocate([1, float("nan")], ratio=0.1), "client 1 has weight nan"),
        (lambda: allocate([1, float("inf")], ratio=0.1), "client 1 has weight inf"),
        (lambda: allocate([-1, 1], ratio=0.1), "client 0 has weight -1"),
        (lambda: allocate([0, 0], ratio=0.1), "all weights are 0"),
        (lambda: allocate(["many"], ratio=0.1), "list of numbers"),
        (lambda: allocate([1]), "exactly one budget"),
        (lambda: allocate([1], ratio=0.1, threshold=1), "exactly one budget"),
        (lambda: allocate([1], ratio=0), "above 0 and at most 1, not 0"),
        (lambda: allocate([1], ratio=1.5), "not 1.5"),
        (lambda: allocate([1], ratio=float("nan")), "not nan"),
        (lambda: allocate([1], threshold=-1, method="dagc-a"), "not -1"),
        (lambda: allocate([1], ratio=0.1, method="best"), "'best': choose one of"),
        (lambda: allocate([1], ratio=0.1, method="dagc-a"), "give threshold="),
        (lambda: allocate([1], threshold=0.1, method="dagc-r"), "give ratio="),
        (lambda: allocate([1], threshold=0.1, method="dagc-a", caps=[1]), "caps limit ratios"),
        (lambda: allocate([1], ratio=0.1, exponent=1), "belongs to the method 'power'"),
        (lambda: allocate([1], ratio=0.1, method="power", exponent=-1), "not -1"),
        (lambda: allocate([1, 1], ratio=0.1, caps=[1]), "each of the 2 clients"),
        (lambda: allocate([1, 1], ratio=0.1, caps=[1, 0]), "client 1 has cap 0"),
        (lambda: allocate([1, 1], bytes=100), "needs size="),
        (lambda: allocate([1, 1], bytes=10, size=1000), "too few for 2 clients"),
        (lambda: allocate([1, 1], bytes=4000, size=1000, caps=[1, 1e-6]), "cap of 1e-06 is below one entry of 1000"),
        (lambda: allocate([1, 1], bytes=100, size=1000, values="fp64"), "there is no value codec 'fp64'"),
        (lambda: entries([0.1, 2], 10), "from 0 to 1"),
        (lambda: entries([], 10), "from 0 to 1"),
        (lambda: entries([0.5], 0), "at least 1, not 0"),
        (lambda: entries([0.001, 0.001], 100), "raise the mean ratio to 0.01"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


def test_bytes_are_divided_in_proportion():
    counts = apportion_bytes(np.array([3.0, 1.0, 0.0]), 500, np.array([9000, 9000, 9000]), 10_000, "int8")
    assert counts.tolist() == [179, 60, 0]
    assert payload_size(10_000, counts[:2], "int8").sum() == 499
