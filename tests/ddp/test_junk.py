"""Junk at any place of a hook's state is refused, and leaves no trace."""

import copy
import json

import pytest
import torch

import dagc.ddp
from dagc import InvalidInput


@pytest.fixture(params=["compact", "coded"])
def hook(request):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 10))
    settings = {
        "method": "thrifty",
        "bytes": 40,
        "overhead": 0.25,
        "values": "sign",
        "norm_bound": 5,
        "frames": request.param,
    }
    hook = dagc.ddp.register(model, examples=50, **settings)
    for _ in range(3):
        model(torch.ones(4, 20)).sum().backward()
    yield hook
    torch.distributed.destroy_process_group()


def places(state, before=()):
    """Every place in a state."""
    found = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in found:
        yield (*before, key)
        yield from places(value, (*before, key))


def as_text(state):
    """Everything but the start, which changes with every state that is loaded."""
    return json.dumps({**state, "start": 0}, sort_keys=True, default=torch.Tensor.tolist)


def test_junk_at_any_place_of_a_state_is_refused_or_fits_and_a_refused_one_leaves_no_trace(hook):
    good, refused = hook.state_dict(), 0
    before = as_text(good)
    for place in places(good):
        for junk in (None, "x", [], {"a": 1}, float("nan"), -5, torch.zeros(3)):
            state = copy.deepcopy(good)
            at = state
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = junk
            try:
                hook.load_state_dict(state)
            except InvalidInput:
                refused += 1
            else:
                hook.load_state_dict(good)
            assert as_text(hook.state_dict()) == before, place
    assert refused > 100
