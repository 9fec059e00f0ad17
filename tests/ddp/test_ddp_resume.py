"""The DDP hook: killed, and loaded from checkpoints."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dagc import DagcError, InvalidInput
from tests.ddp.scripts import (
    RESTARTS,
    backward,
    good,
    hooked,
    plain,
    warnings_of_restarts,
    weights,
    wrapped,
)
from tests.helpers.ranks import PATIENCE, Ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


# Checkpoints

TOTAL, SAVED, DEATH = 32, 25, 28  # ACCORDION has changed its mind by then


SAVING = {"method": "accordion", "ratio": None, "threshold": 0.02, "values": "int8"}


def with_checkpoint(folder, last, save=None, die=None, start=False):
    """SGD with momentum up to step `last`, saving after step `save`; rank 1 dies in step `die`, holding its bucket."""
    rank = dist.get_rank()
    path = f"{folder}/{rank}.pt"
    model = wrapped()
    hook = hooked(model, **SAVING)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if start:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        hook.load_state_dict(state["dagc"])
    for step in range(hook.steps, last):
        optimizer.zero_grad()
        if step == die and rank == 1:
            hook.uplink.feedback.step = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        backward(model, step)
        optimizer.step()
        if hook.steps == save:
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dagc": hook.state_dict()}, path
            )
    return weights(model), hook.uplink.feedback.residual


def test_save_kill_load_gives_the_same_as_no_interruption(two, tmp_path):
    doomed = Ranks(2, tmp_path)
    try:
        error, dead = doomed.run(with_checkpoint, tmp_path, TOTAL, SAVED, DEATH)
    finally:
        doomed.kill()
    state = torch.load(tmp_path / "0.pt", weights_only=True)["dagc"]
    assert not state["server"]["budget"]["policy"]["critical"]
    assert dead is None
    assert type(error) is DagcError
    assert f"rank 0 lost the others in step {DEATH}: a rank has died" in str(error)

    resumed = good(two.run(with_checkpoint, tmp_path, TOTAL, None, None, True))
    straight = good(two.run(with_checkpoint, tmp_path, TOTAL))
    for (ours, residual), (expected, kept) in zip(resumed, straight, strict=True):
        assert torch.equal(ours, expected)
        assert torch.equal(residual, kept)

    for answer in two.run(loading_wrongly, tmp_path):
        assert not isinstance(answer, Exception), answer


def loading_wrongly(folder):
    """Every mistake is named, and none leaves a trace."""
    rank = dist.get_rank()
    state = torch.load(f"{folder}/{rank}.pt", weights_only=True)["dagc"]
    hook = hooked(wrapped(), **SAVING)
    before = hook.state_dict()
    uplink, about = state["uplink"], state["about"]
    residual = uplink["residual"]
    mistakes = {
        "world_size 3, here it is 2": {"world_size": 3},
        f"rank {1 - rank}, here it is {rank}": {"rank": 1 - rank},
        "the ranks hold other data": {"examples": [1, 2]},
        "the state has about .*register the model that was saved": {"about": {**about, "sizes": [785]}},
        "the state has about .*: register the model that": {"about": {**about, "method": "dagc-r"}},
        "the state has about .*with the same settings": {"about": {**about, "values": "fp32"}},
        "the residual must be 785 float32": {"uplink": {**uplink, "residual": residual[1:]}},
        "NaN or infinity": {"uplink": {**uplink, "residual": residual * torch.inf}},
        "the state does not fit this": {"server": {**state["server"], "budget": {}}},
        "does not fit this client": {"uplink": {}},
        "does not fit this hook": {"start": "x"},
        "not the state of a dagc.ddp.Hook": {"more": 1},
        "has version 2, this is 1: use the version of dagc": {"version": 2},
    }
    for words, change in mistakes.items():
        with pytest.raises(InvalidInput, match=words):
            hook.load_state_dict({**state, **change})
    with pytest.raises(InvalidInput, match=r"not the state of a dagc.ddp.Hook$"):
        hook.load_state_dict({"residual": residual, "steps": 25})
    assert plain(hook.state_dict()) == plain(before)
    assert hook.steps == 0
    model = wrapped()
    hook = hooked(model, **SAVING)
    if rank == 0:
        hook.load_state_dict(state)
    with pytest.raises(DagcError, match=rf"the ranks are at different steps, \[{SAVED}, 0\] in rank order"):
        backward(model)


def on_two_timelines():
    """Both ranks continue from step 2; rank 1 then loads a state of step 4 from before that."""
    model = wrapped()
    hook = hooked(model)
    states = []
    for step in range(4):
        states.append(hook.state_dict())
        backward(model, step)
    before = hook.state_dict()
    again = wrapped()
    hook = hooked(again)
    hook.load_state_dict(states[2])
    for step in range(2, 4):
        backward(again, step)
    after = hook.state_dict()
    assert hook.steps == 4
    model = wrapped()
    hook = hooked(model)
    hook.load_state_dict(before if dist.get_rank() == 1 else after)
    backward(model)


def test_states_of_one_step_but_of_two_timelines_are_not_mixed(two):
    for answer in two.run(on_two_timelines):
        assert type(answer) is DagcError
        assert "ranks 0 and 1 are both at step 4, but continue different trainings" in str(answer)


def restarted(how):
    """Whether a warning came, for an optimizer with or without a state, and with torchrun's count of restarts."""
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters())
    if how == "optimizer":
        backward(model)
        optimizer.step()
    with warnings_of_restarts(how) as warnings:
        hook = hooked(model)
        for step in range(3):
            backward(model, step)
            optimizer.step()
        if how == "resumed":
            model, state = wrapped(), hook.state_dict()
            optimizer = torch.optim.AdamW(model.parameters())
            backward(model)
            optimizer.step()
            hooked(model).load_state_dict(state)
            backward(model)
            optimizer.step()
    return warnings


@pytest.mark.parametrize(("how", "words"), RESTARTS)
def test_a_training_that_goes_on_without_our_state_warns_once(two, how, words):
    for warnings in good(two.run(restarted, how)):
        assert len(warnings) == bool(words)
        assert not words or words in warnings[0]


def test_the_example_runs_with_torchrun(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [EXAMPLE, "--steps", "20", "--every", "10", "--checkpoint", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "step 20: accuracy" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0-of-2.pt", "rank-1-of-2.pt"]
