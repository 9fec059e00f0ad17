"""Allocators of the experiments keep the contracts, and the schemes are the paper's."""

import pytest
from hypothesis import strategies as st

from dagc import ALLOCATORS
from dagc.policies import Plan, Situation
from dagc.testing import check_allocator
from research.allocators import RULES

weights = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=40)


@pytest.mark.parametrize("name", RULES)
def test_allocators_of_the_experiments_keep_the_contract(name):
    check_allocator(ALLOCATORS[name], name)


def test_schemes_are_the_papers():
    eleven = {str(i): share for i, share in enumerate([0.5, *[0.05] * 10])}
    situation = Situation(0, list(eleven), eleven, (), None)

    def counts(method):
        return Plan(method=method, ratio=0.001).policy(1_000_000).decide(situation)

    assert counts("scheme-i") == [10_000, *[100] * 10]
    assert counts("scheme-ii") == [100, *[1090] * 10]
