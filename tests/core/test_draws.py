"""Random numbers: SplitMix64 as published, and indices drawn as the wire format says, however many."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagc import InvalidInput
from dagc.draws import draw, scramble, splitmix64

SEEDS = st.integers(0, 2**64 - 1)


def test_splitmix64_gives_the_published_numbers():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert splitmix64(1234567, 4).tolist() == published


@given(SEEDS, st.integers(0, 50))
def test_one_number_is_the_one_of_the_array(seed, count):
    assert splitmix64(seed, count).tolist() == [scramble(seed, i) for i in range(count)]


@given(SEEDS, st.integers(1, 300) | st.integers(1, 1 << 48), st.data())
def test_indices_are_the_first_different_draws(seed, size, data):
    count = data.draw(st.integers(0, min(size, 300)))
    fewer = min(count, size - count)
    drawn, i = set(), 0
    while len(drawn) < fewer:
        drawn.add(scramble(seed, i) % size)
        i += 1
    expected = sorted(drawn if fewer == count else set(range(size)) - drawn)
    assert draw(seed, size, count).tolist() == expected


@pytest.mark.parametrize(
    ("size", "count", "digest"),
    [
        (2_000_000, 1_000_000, "7b6004cf70103b3c"),
        (2_000_000, 1_500_000, "a48df6804d15e4ec"),
        (3_200_000, 200_000, "a0e802409bc26b54"),
        (3_200_001, 200_000, "fc2f159b0b3c11b8"),
        (1 << 48, 200_000, "68c483c37a369c24"),
    ],
)
def test_many_indices_are_what_they_always_were(size, count, digest):
    drawn = draw(2**63 + 5, size, count)
    assert drawn.dtype == np.int64
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize(("size", "count"), [(3, 4), (3, -1)])
def test_more_than_there_are_cannot_be_drawn(size, count):
    with pytest.raises(InvalidInput, match=f"cannot draw {count} different indices below 3"):
        draw(0, size, count)
