"""States for tests: copies as from disk, comparison to the bit, and damage at every place."""

import copy
import json

import numpy as np
import pytest

from dagc import InvalidInput

JUNK = (None, "x", "7", True, [], {}, {"a": 1}, float("nan"), float("inf"), -5, 2.5, 1 << 70, np.zeros(3), b"x")


def copied(half):
    """The state as it would come back from disk."""
    return _copied(half.state_dict())


def _copied(state):
    if isinstance(state, dict):
        return {key: _copied(value) for key, value in state.items()}
    return state.copy() if isinstance(state, np.ndarray) else json.loads(json.dumps(state))


def same(one, other):
    """Whether two states are equal, to the bit; the second may have a float in place of an integer."""
    if isinstance(one, np.ndarray):
        alike = isinstance(other, np.ndarray) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return one == other and (type(one) is type(other) or (type(one), type(other)) == (int, float))


def places(state, before=()):
    """Every place in a state."""
    children = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in children:
        yield (*before, key)
        yield from places(value, (*before, key))


def damaged(state):
    """The state with something else at each place, or with the place gone: pairs of a place and a state."""
    for place in places(state):
        for junk in (*JUNK, KeyError):
            broken = copy.deepcopy(state)
            parent = broken
            for key in place[:-1]:
                parent = parent[key]
            if junk is KeyError:
                del parent[place[-1]]
            else:
                parent[place[-1]] = junk
            yield place, broken


MEMORY = ("clocks", "signs", "frames", "fingerprint", "mean", "now")
"""Fields of a coder's memory, which `tests/wire` tests: it takes whatever can be made a number of the right kind."""


def check_all_or_nothing(half):
    """What is put at any place is loaded as it is, if it is a possible value, or refused; then nothing changes."""
    good, refused = copied(half), 0
    for place, broken in damaged(good):
        before = copy.deepcopy(broken)
        try:
            half.load_state_dict(broken)
        except InvalidInput:
            refused += 1
            assert same(good, copied(half)), f"damage at {place} was refused, but left a trace"
        else:
            assert place[-1] in MEMORY or same(before, copied(half)), f"damage at {place} was loaded as something else"
            half.load_state_dict(good)
            assert same(good, copied(half))
    assert refused
    with pytest.raises(InvalidInput):
        half.load_state_dict({})
