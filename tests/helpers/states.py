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
    """Whether two states are equal, to the bit."""
    if isinstance(one, np.ndarray):
        alike = isinstance(other, np.ndarray) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other)


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


def check_all_or_nothing(half, fits=()):
    """Damage at any place is refused and changes nothing.

    Args:
        half: Has a state.
        fits: Ends of places at which some other value is as good.
    """
    good = copied(half)
    for place, broken in damaged(good):
        try:
            half.load_state_dict(broken)
        except InvalidInput:
            assert same(copied(half), good), f"damage at {place} was refused, but left a trace"
        else:
            loaded = copied(half)
            assert place[-1] in fits or same(loaded, good), f"damage at {place} was loaded"
            half.load_state_dict(good)
            assert same(copied(half), good)
    with pytest.raises(InvalidInput):
        half.load_state_dict({})
