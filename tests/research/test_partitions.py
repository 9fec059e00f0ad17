"""The split of the paper's motivation."""

import numpy as np
import pytest

from dagc.data import load, make_partition
from dagc.errors import InvalidInput
from research.partitions import one_large

LABELS = np.repeat(np.arange(10), 6000)


def test_one_large_is_figure_2():
    split = one_large(LABELS, share=0.5, clients=11)
    assert split.sizes.tolist() == [30_000] + [3_000] * 10
    assert len(np.unique(np.concatenate(split.indices))) == 60_000
    for bad in ({"share": 0.0}, {"share": 1.0}, {"share": float("nan")}, {"clients": 1}, {"share": 0.99999}):
        with pytest.raises(InvalidInput, match="share"):
            one_large(LABELS, **bad)


def test_it_has_a_text_and_depends_on_the_seed_alone():
    digits = load("digits")
    split = make_partition("one_large:share=0.4,clients=3", digits, seed=1)
    assert split.sizes[0] == round(0.4 * len(digits))
    same, other = (make_partition("one-large:share=0.4,clients=3", digits, seed=seed) for seed in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(split.indices, same.indices, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(split.indices, other.indices, strict=True))
    shuffled = np.random.default_rng(1).permutation(LABELS)
    counts = [one_large(labels, seed=5).label_counts(labels, 10) for labels in (LABELS, shuffled)]
    np.testing.assert_array_equal(*counts)
    with pytest.raises(InvalidInput, match="seed is -1"):
        one_large(LABELS, seed=-1)
