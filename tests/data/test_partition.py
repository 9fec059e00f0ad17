"""Partitions: sizes, labels, no sample twice, for every request that the data allow."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dagc.data import Partition, by_client, from_sizes, iid, load, make_partition, skewed
from dagc.data.partition import skewed_sizes
from dagc.errors import InvalidInput

FASHION_LABELS = np.repeat(np.arange(10), 6000)


def _disjoint(split: Partition, samples: int) -> None:
    used = np.concatenate(split.indices)
    assert len(np.unique(used)) == len(used) <= samples
    assert used.min() >= 0
    assert used.max() < samples
    assert split.sizes.min() >= 1
    assert split.weights.sum() == pytest.approx(1)


@settings(deadline=None, max_examples=150)
@given(
    pools=st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(lambda pools: sum(pools) > 0),
    clients=st.integers(1, 40),
    ratio=st.one_of(st.integers(1, 60), st.floats(1, 60)),
    alpha=st.sampled_from([1e-3, 0.1, 0.5, 5.0, float("inf")]),
    seed=st.integers(0, 2**32),
)
def test_skewed_meets_its_sizes_or_says_why_not(
    pools: list[int], clients: int, ratio: float, alpha: float, seed: int
) -> None:
    labels = np.repeat(np.arange(len(pools)), pools)
    try:
        split = skewed(labels, clients=clients, skew_ratio=ratio, label_alpha=alpha, seed=seed)
    except InvalidInput:
        rough = clients * ((1 + ratio) / 2 + ratio)  # more than any series of these clients needs
        assert len(labels) < rough or (clients == 1 and ratio != 1)
        return
    _disjoint(split, len(labels))
    assert (np.diff(split.sizes) <= 0).all()
    assert split.sizes[0] == round(ratio * split.sizes[-1]) or clients == 1
    assert (split.label_counts(labels, len(pools)).sum(axis=0) <= pools).all()


@settings(deadline=None, max_examples=60)
@given(
    samples=st.integers(1000, 100_000), clients=st.integers(3, 50), ratio=st.integers(1, 100), seed=st.integers(0, 99)
)
def test_skewed_sizes_use_the_data_and_keep_the_ratio(samples: int, clients: int, ratio: int, seed: int) -> None:
    assume(samples > 8 * clients * (ratio + 1) / 2)
    sizes = skewed_sizes(samples, clients, ratio, np.random.default_rng(seed))
    assert sizes[0] == ratio * sizes[-1]
    if ratio > 1:
        assert sizes.sum() == samples if clients >= 8 else sizes.sum() > 0.9 * samples
    else:
        assert samples - sizes.sum() < clients


def test_sizes_are_an_arithmetic_series_on_average_and_differ_by_seed() -> None:
    drawn = np.array([skewed_sizes(50_000, 10, 100, np.random.default_rng(seed)) for seed in range(300)])
    relative = drawn / drawn[:, :1]
    np.testing.assert_allclose(relative.mean(axis=0), np.linspace(1, 0.01, 10), atol=0.03)
    assert (relative[:, 1:-1].std(axis=0) > 0.02).all()


@pytest.mark.parametrize(("clients", "ratio"), [(10, 10), (10, 100), (10, 1000), (5, 100), (200, 100), (1000, 100)])
def test_the_settings_of_the_paper(clients: int, ratio: int) -> None:
    split = skewed(FASHION_LABELS, clients=clients, skew_ratio=ratio)
    assert len(split) == clients
    assert split.skew_ratio == ratio
    _disjoint(split, len(FASHION_LABELS))
    if clients <= 200:
        assert split.sizes.sum() == 60_000
        mean_steps = np.diff(split.sizes[:: max(1, clients // 5)])
        assert (mean_steps < 0).all()


def test_a_thousand_clients_with_ratio_a_thousand_when_the_data_allow() -> None:
    labels = np.arange(600_000) % 10
    split = skewed(labels, clients=1000, skew_ratio=1000)
    assert (split.skew_ratio, split.sizes.min(), len(split)) == (1000, 1, 1000)
    with pytest.raises(
        InvalidInput, match=r"need 5\d\d,\d\d\d samples.* there are 60,000; lower clients or skew_ratio"
    ):
        skewed(FASHION_LABELS, clients=1000, skew_ratio=1000)


def test_label_mixes_are_as_uneven_as_alpha_says() -> None:
    def unevenness(alpha: float) -> float:
        split = skewed(FASHION_LABELS, clients=20, skew_ratio=10, label_alpha=alpha)
        mix = split.label_counts(FASHION_LABELS, 10) / split.sizes[:, None]
        return float(((mix - 0.1) ** 2).sum(axis=1).mean())

    assert unevenness(float("inf")) < 1e-4
    assert unevenness(100) < unevenness(5) < unevenness(0.5) < unevenness(0.05)
    expected = (1 - 0.1) / (1 + 10 * 0.5)  # Σ var of Dirichlet(0.5) over ten labels
    assert unevenness(0.5) == pytest.approx(expected, rel=0.5)


def test_sizes_and_mixes_do_not_depend_on_the_order_of_the_data() -> None:
    shuffled = np.random.default_rng(1).permutation(FASHION_LABELS)
    for make in (
        lambda labels: skewed(labels, skew_ratio=100, seed=5),
        lambda labels: from_sizes(labels, sizes=[900, 20, 5], label_alpha=0.5, seed=5),
    ):
        one, other = make(FASHION_LABELS), make(shuffled)
        np.testing.assert_array_equal(one.label_counts(FASHION_LABELS, 10), other.label_counts(shuffled, 10))


def test_the_seed_decides() -> None:
    for make in (skewed, iid):
        first, again, other = make(FASHION_LABELS, seed=1), make(FASHION_LABELS, seed=1), make(FASHION_LABELS, seed=2)
        assert all(np.array_equal(a, b) for a, b in zip(first.indices, again.indices, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(first.indices, other.indices, strict=True))
    np.random.seed(0)
    state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    skewed(FASHION_LABELS)
    assert (np.random.get_state()[1] == state).all()  # type: ignore[index]


def test_a_negative_seed_is_refused() -> None:
    for make in (skewed, iid):
        with pytest.raises(InvalidInput, match="seed is -1"):
            make(FASHION_LABELS, seed=-1)


def test_iid_is_even() -> None:
    split = iid(FASHION_LABELS, clients=7)
    assert split.sizes.max() - split.sizes.min() <= 1
    assert split.sizes.sum() == 60_000
    mix = split.label_counts(FASHION_LABELS, 10) / split.sizes[:, None]
    assert abs(mix - 0.1).max() < 0.02


def test_real_size_profiles() -> None:
    hospitals = [12413, 3954, 3363, 2259, 819, 439]
    assert from_sizes(FASHION_LABELS, sizes=hospitals).sizes.tolist() == hospitals
    scaled = from_sizes(FASHION_LABELS, sizes=hospitals, scale=True)
    exact = np.array(hospitals) * 60_000 / sum(hospitals)
    assert abs(scaled.sizes - exact).max() <= 1
    assert scaled.sizes.sum() == 60_000
    lopsided = from_sizes(FASHION_LABELS, sizes=[10_000_000, 1, 1], scale=True)
    assert lopsided.sizes.tolist() == [59_998, 1, 1]
    for bad in ([], [0, 3], [1.5], [-1], [[1]], ["a"]):
        with pytest.raises(InvalidInput, match="sizes"):
            from_sizes(FASHION_LABELS, sizes=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="add up to 60,001"):
        from_sizes(FASHION_LABELS, sizes=[60_000, 1])


def test_by_client_keeps_names_and_filters() -> None:
    owner = np.array([3, 1, 1, 3, 3, 0])
    split = by_client(owner, names=["a", "b", "c", "d"])
    assert split.names == ("d", "b", "a")
    assert [indices.tolist() for indices in split.indices] == [[0, 3, 4], [1, 2], [5]]
    assert by_client(owner, clients=2).names == ("3", "1")
    with pytest.raises(InvalidInput, match="no clients"):
        by_client(None)
    with pytest.raises(InvalidInput, match="0 of 3 clients have 9"):
        by_client(owner, min_size=9)
    with pytest.raises(InvalidInput, match="3 of 3 clients have 1"):
        by_client(owner, clients=4)
    with pytest.raises(InvalidInput, match="clients is -1"):
        by_client(owner, clients=-1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clients": 0}, "clients is 0"),
        ({"clients": 101}, "101 clients cannot each have one of 100"),
        ({"clients": 1}, "with one client"),
        ({"skew_ratio": 0.9}, "skew_ratio is 0.9"),
        ({"skew_ratio": float("nan")}, "skew_ratio is nan"),
        ({"skew_ratio": float("inf")}, "skew_ratio is inf"),
        ({"skew_ratio": 50}, "lower clients or skew_ratio"),
        ({"clients": 2, "label_alpha": 0}, "label_alpha is 0"),
        ({"clients": 2, "label_alpha": -1}, "label_alpha is -1"),
        ({"clients": 2, "label_alpha": float("nan")}, "label_alpha is nan"),
    ],
)
def test_infeasible_requests_are_refused_with_the_reason(options: dict[str, float], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        skewed(np.arange(100) % 3, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [[], [[0, 1]], [0.5, 1.0], [-1, 0], ["a", "b"]])
def test_labels_must_be_whole_numbers(labels: list[object]) -> None:
    with pytest.raises(InvalidInput, match="labels"):
        iid(labels, clients=1)  # type: ignore[arg-type]


def test_partitions_as_text(tmp_path: Path) -> None:
    digits = load("digits")
    split = make_partition("skewed:clients=5, skew_ratio=20,label_alpha=inf", digits, seed=3)
    assert (len(split), split.skew_ratio) == (5, 20)
    assert len(make_partition("iid", digits)) == 10
    assert make_partition("from-sizes:sizes=300/200/10,label_alpha=0.5", digits).sizes.tolist() == [300, 200, 10]
    (tmp_path / "sizes.txt").write_text("30\n20\n10\n")
    assert make_partition(f"from-sizes:sizes={tmp_path / 'sizes.txt'}", digits).sizes.tolist() == [30, 20, 10]
    scaled = make_partition("from-sizes:sizes=30/20/10,scale=true", digits)
    assert scaled.sizes.sum() == len(digits)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "there is no partition '': choose one of skewed, iid"),
        ("random", "there is no partition 'random': choose one of skewed"),
        ("skewed:client=3", "'client=3' is not an option; write option=value with clients, skew_ratio, label_alpha"),
        ("skewed:10", "'10' is not an option"),
        ("skewed:seed=1", "'seed=1' is not an option"),
        ("skewed:clients=ten", "clients is 'ten'; it must be a whole number"),
        ("skewed:clients=3,clients=4", "clients is given twice"),
        ("skewed:label_alpha=x", "label_alpha is 'x'; it must be a number"),
        ("from-sizes", "has no sizes"),
        ("from-sizes:sizes=no-such-file", "whole numbers separated by /, or a file of them .*No such file"),
        ("from-sizes:sizes=3/2,scale=maybe", "it must be true or false"),
        ("by-client", "has no clients"),
        ("by-client:names=3", "'names=3' is not an option"),
    ],
)
def test_wrong_texts_say_what_is_right(spec: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        make_partition(spec, load("digits"))


def test_an_empty_worker_is_no_partition() -> None:
    for indices in ((), (np.array([1]), np.array([], dtype=np.int64))):
        with pytest.raises(InvalidInput, match="at least one sample"):
            Partition(indices)
