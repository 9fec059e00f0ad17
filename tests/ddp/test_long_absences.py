"""Ranks: two leave after 15 exchanges of 100 and come back after 60, and all restart in between.

Ranks of the hook are those of one process group: they can restart together, but none can leave or join.
"""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dagc.ddp
from tests.ddp.scripts import EXAMPLES, alike, backward, good, one_step, sgd, small, weights, wrapped

LEAVE, RESTART, RETURN, END = 15, 60, 75, 100
PLANS = {
    "dagc": {"momentum": 0.0},
    "with momentum": {},
    "thrifty": {"method": "thrifty"},
}


def exchanged(states, until, settings):
    """Local steps from these states up to this exchange: the states at the beginning and at the end."""
    model = small()
    local = dagc.ddp.LocalSteps(model, examples=EXAMPLES[dist.get_rank()], steps=2, resume=states, **settings)
    begun, optimizer = local.state_dict(), sgd(model)
    while local.round < until:
        one_step(model, optimizer, 2 * local.round)
        local.step()
    return begun, local.state_dict()


def not_sent(states):
    """What all ranks have not sent, weighted by data."""
    shares = np.array(EXAMPLES[: len(states)]) / sum(EXAMPLES[: len(states)])
    return sum(p * state["uplink"]["residual"].double() for p, state in zip(shares, states, strict=True))


@pytest.mark.parametrize("plan", PLANS)
def test_books_and_bits_of_local_steps(two, four, plan):
    settings = PLANS[plan]

    def through(*parts):
        states = []
        for ranks, until in parts:
            begun, ended = zip(*good(ranks.run(exchanged, states, until, settings)), strict=True)
            if states:
                assert torch.allclose(not_sent(begun), not_sent(states), rtol=1e-5, atol=1e-7)
            assert alike([state["shared"] for state in (*begun, *states)])
            states = list(ended)
        assert not_sent(states).any()
        return states

    straight = through((four, LEAVE), (two, RETURN), (four, END))
    restarted = through((four, LEAVE), (two, RESTART), (two, RETURN), (four, END))
    for one, other in zip(straight, restarted, strict=True):
        assert torch.equal(one["shared"], other["shared"])
        assert torch.equal(one["uplink"]["residual"], other["uplink"]["residual"])


def stepped(saved, until, settings):
    """Steps with the hook from what was saved, if anything was, up to this one: everything at the end."""
    model = wrapped()
    hook = dagc.ddp.register(model, examples=EXAMPLES[dist.get_rank()], **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if saved:
        about = saved[dist.get_rank()]
        model.load_state_dict(about["model"])
        optimizer.load_state_dict(about["optimizer"])
        hook.load_state_dict(about["dagc"])
    for step in range(hook.steps, until):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dagc": hook.state_dict()}
    return state, weights(model), hook.uplink.feedback.residual


@pytest.mark.parametrize("settings", [{}, {"method": "thrifty"}], ids=str)
def test_bits_of_the_hook(two, settings):
    saved = [state for state, *_ in good(two.run(stepped, [], RESTART, settings))]
    restarted = good(two.run(stepped, saved, END, settings))
    straight = good(two.run(stepped, [], END, settings))
    assert alike([model for _, model, _ in (*straight, *restarted)])
    for (*_, one), (*_, other) in zip(straight, restarted, strict=True):
        assert torch.equal(one, other)
