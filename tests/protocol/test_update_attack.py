"""Thousands of hostile updates through a server and a client: only the library's own errors, and no trace of them."""

import pytest

from benchmarks.update_attack import Attack

MOST_SECONDS, MOST_KB = 2.0, 2000


@pytest.mark.parametrize("seed", range(3))
def test_hostile_updates_with_right_checksums_are_refused_or_read_within_bounds(seed):
    attack = Attack(seed)
    attack.run(60)  # compiles the kernels
    attack.slowest = attack.memory = 0.0
    counts = attack.run(2000)
    attack.check()
    assert counts["refused"] > 500
    assert counts["read"] > 200
    assert attack.slowest < MOST_SECONDS
    assert attack.memory < MOST_KB


@pytest.mark.slow
def test_a_million_of_them():
    attack = Attack(99)
    attack.run(1_000_000)
    attack.check()
