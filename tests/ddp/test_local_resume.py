"""Local steps that are killed, resumed with fewer or more ranks, or started without their states."""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dagc import DagcError, InvalidInput
from tests.ddp.scripts import (
    EXAMPLES,
    RESTARTS,
    alike,
    around,
    good,
    one_step,
    small,
    warnings_of_restarts,
    weights,
)
from tests.helpers.ranks import PATIENCE, Ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "internet.py"


def saving(folder, settings, rounds, die=None):
    """A training that saves after every exchange; rank 1 dies in the exchange `die`."""
    rank = dist.get_rank()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    files = [torch.load(path, weights_only=True) for path in sorted(Path(folder).glob("*.pt"))]
    local = around(model, resume=[state["dagc"] for state in files], **settings)
    for state in files:
        at = {name: state["dagc"][name] for name in ("round", "rank", "world_size")}
        if at == {"round": local.round, "rank": rank, "world_size": dist.get_world_size()}:
            optimizer.load_state_dict(state["optimizer"])
    begun = local.uplink.feedback.residual.clone(), local.shared.clone()
    step, losses = 3 * local.round, []
    while local.round < rounds:
        if die is not None and step == 3 * die and rank == 1:
            local.uplink.upload = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        losses.append(one_step(model, optimizer, step))
        step += 1
        if local.step() is not None:
            path = Path(folder) / f"{local.round:03d}-{rank}-of-{dist.get_world_size()}.pt"
            torch.save({"optimizer": optimizer.state_dict(), "dagc": local.state_dict()}, path)
    end = weights(model), local.uplink.feedback.residual, local.shared.clone()
    return {"begun": begun, "end": end, "losses": losses, "missing": local.missing, "downloaded": local.downloaded}


@pytest.mark.parametrize(
    "settings",
    [
        {"values": "int8", "momentum": 0.9, "outer_rate": 0.7, "step_ahead": 0.5},
        {"method": "accordion", "ratio": None, "threshold": 0.002, "values": "int8"},
        {"overlap": True, "values": "sign", "step_ahead": 0.5},
        {"overlap": True, "values": "int8", "frames": "coded"},
    ],
)
def test_killed_and_resumed_with_the_same_ranks_is_as_if_nothing_had_happened(two, tmp_path, settings):
    for name in ("store", "killed", "straight"):
        (tmp_path / name).mkdir()
    doomed = Ranks(2, tmp_path / "store")
    try:
        error, dead = doomed.run(saving, tmp_path / "killed", settings, 9, 4)
    finally:
        doomed.kill()
    assert dead is None
    assert type(error) is DagcError
    assert "rank 0 lost the others in exchange" in str(error)
    assert "a rank has died" in str(error)
    resumed = good(two.run(saving, tmp_path / "killed", settings, 9))
    straight = good(two.run(saving, tmp_path / "straight", settings, 9))
    for ours, expected in zip(resumed, straight, strict=True):
        assert ours["begun"][1].any()
        assert not torch.equal(ours["begun"][1], expected["begun"][1])
        for one, other in zip(ours["end"], expected["end"], strict=True):
            assert torch.equal(one, other)


def books(states, examples):
    """The shared model and what was not sent to it, weighted by data."""
    shares = np.array(examples) / sum(examples)
    return sum(p * residual.double() for p, residual in zip(shares, states, strict=True))


def saved(folder, world):
    """The states of the newest round of which all are there."""
    every = [torch.load(path, weights_only=True)["dagc"] for path in sorted(folder.glob(f"*-of-{world}.pt"))]
    newest = max(state["round"] for state in every if state["rank"] == 1)
    return sorted((state for state in every if state["round"] == newest), key=lambda state: state["rank"])


@pytest.mark.parametrize("overlap", [False, True])
def test_killed_and_resumed_with_fewer_and_then_more_ranks_the_books_balance(four, two, tmp_path, overlap):
    settings = {"values": "int8", "frames": "coded", "overlap": overlap}
    (tmp_path / "store").mkdir()
    doomed = Ranks(4, tmp_path / "store")
    try:
        answers = doomed.run(saving, tmp_path, settings, 30, 8)
    finally:
        doomed.kill()
    assert [answer is None for answer in answers] == [False, True, False, False]
    assert all(type(answer) is DagcError for answer in answers if answer is not None)
    states = saved(tmp_path, 4)
    assert len(states) == 4

    fewer = good(two.run(saving, tmp_path, settings, 16))
    kept = books([state["uplink"]["residual"] for state in states], EXAMPLES)
    assert torch.allclose(books([one["begun"][0] for one in fewer], EXAMPLES[:2]), kept, rtol=1e-5, atol=1e-7)
    assert kept.any()
    for one in fewer:
        assert torch.equal(one["begun"][1], states[0]["shared"])
        assert (one["missing"], one["downloaded"]) == ([], False)
    assert alike([one["end"][2] for one in fewer])

    more = good(four.run(saving, tmp_path, settings, 40))
    kept = books([one["end"][1] for one in fewer], EXAMPLES[:2])
    assert torch.allclose(books([one["begun"][0] for one in more], EXAMPLES), kept, rtol=1e-5, atol=1e-7)
    assert alike([fewer[0]["end"][2], *(one["begun"][1] for one in more)])
    assert alike([one["end"][2] for one in more])
    for one, later in zip(fewer, more, strict=False):
        assert np.mean(later["losses"][-9:]) < np.mean(one["losses"][:9])


def each_its_own(folder, world, settings, allow_missing):
    """Every rank finds its own files only, as on hosts that share nothing."""
    rank = dist.get_rank()
    paths = sorted(Path(folder).glob(f"*-{rank}-of-{world}.pt"))
    states = [torch.load(path, weights_only=True)["dagc"] for path in paths]
    local = around(small(1), resume=states, allow_missing=allow_missing, **settings)
    return local.downloaded, local.missing, local.round, local.shared.clone(), local.uplink.feedback.residual


def test_a_late_rank_downloads_the_model_and_a_lost_one_is_named(two, four, tmp_path):
    settings = {"values": "sign"}
    good(two.run(saving, tmp_path, settings, 4))
    answers = good(four.run(each_its_own, tmp_path, 2, settings, False))
    assert [downloaded for downloaded, *_ in answers] == [False, False, True, True]
    assert alike([shared for *_, shared, _ in answers])
    assert [round for _, _, round, *_ in answers] == [4] * 4
    assert [bool(residual.any()) for *_, residual in answers] == [True, True, False, False]
    for path in tmp_path.glob("*-1-of-2.pt"):
        path.unlink()
    for answer in four.run(each_its_own, tmp_path, 2, settings, False):
        assert isinstance(answer, InvalidInput)
        assert "of the 2 states of round 4, those of the ranks [1] are on no rank" in str(answer)
    answers = good(four.run(each_its_own, tmp_path, 2, settings, True))
    assert [(missing, round) for _, missing, round, *_ in answers] == [([1], 4)] * 4


def test_the_newest_round_that_is_complete_is_resumed(two, tmp_path):
    good(two.run(saving, tmp_path, {}, 4))
    (tmp_path / "004-1-of-2.pt").unlink()
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [3, 3]


def damage(path):
    """A NaN in the residual of a saved state."""
    saved = torch.load(path, weights_only=True)
    saved["dagc"]["uplink"]["residual"][3] = torch.nan
    torch.save(saved, path)


def test_the_next_older_round_is_resumed_if_the_newest_is_damaged(two, tmp_path):
    good(two.run(saving, tmp_path, {}, 4))
    damage(tmp_path / "004-1-of-2.pt")
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [3, 3]


def test_a_file_that_was_cut_short_is_left_out_by_the_example(tmp_path, capsys):
    states = runpy.run_path(str(EXAMPLE))["states"]
    for rank in (0, 1):
        path = tmp_path / "round-00000001" / f"rank-{rank}-of-2.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save({"dagc": {"rank": rank, "residual": torch.ones(1000)}}, path)
    content = path.read_bytes()
    for length in (0, 10, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert [state["dagc"]["rank"] for state in states(tmp_path)] == [0]
        assert f"{path} is left out: " in capsys.readouterr().out


def test_states_of_a_round_that_two_timelines_reached_are_never_mixed(two, tmp_path):
    """The training is continued from round 2 without what came after it; then the lost files come back."""
    good(two.run(saving, tmp_path, {}, 4))
    lost = {path: path.read_bytes() for path in tmp_path.glob("00[34]-*")}
    for path in lost:
        path.unlink()
    good(two.run(saving, tmp_path, {}, 3))
    (tmp_path / "003-1-of-2.pt").unlink()  # rank 1's state of the new round 3 is lost
    for path, content in lost.items():
        if path.name != "003-0-of-2.pt":
            path.write_bytes(content)
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [4, 4], "round 3 is of both timelines, round 4 of one"
    assert alike([shared for *_, shared, _ in answers])
    for path in tmp_path.glob("004-*"):
        path.unlink()
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [2, 2]


def test_states_of_two_restarts_from_one_round_are_never_mixed(two, tmp_path):
    """Both restarts are the first one, and both have reached round 3."""
    good(two.run(saving, tmp_path, {}, 2))
    kept = []
    for rank in (0, 1):
        good(two.run(saving, tmp_path, {}, 3))
        kept.append((tmp_path / f"003-{rank}-of-2.pt").read_bytes())
        for path in tmp_path.glob("003-*"):
            path.unlink()
    for rank, content in enumerate(kept):
        (tmp_path / f"003-{rank}-of-2.pt").write_bytes(content)
    answers = good(two.run(each_its_own, tmp_path, 2, {}, False))
    assert [round for _, _, round, *_ in answers] == [2, 2]


def test_states_of_different_trainings_are_refused(two, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        good(two.run(saving, tmp_path / name, {}, 2))
    for path in (tmp_path / "b").iterdir():
        path.rename(tmp_path / "a" / f"b-{path.name}")
    for answer in two.run(saving, tmp_path / "a", {}, 3):
        assert isinstance(answer, InvalidInput)
        assert "the states are of 2 different trainings" in str(answer)


def wrong_states(folder):
    rank = dist.get_rank()
    state = torch.load(f"{folder}/002-{rank}-of-2.pt", weights_only=True)["dagc"]
    uplink = state["uplink"]
    pending = {"indices": torch.tensor([9, 3]), "values": torch.ones(2)}
    mistakes = {
        "has version 2, this is 1: use the version of dagc": {"version": 2},
        "not the state of a dagc.ddp.LocalSteps: it holds": {"more": 1},
        "use the model and settings of it": {"about": {**state["about"], "ratio": 0.5}},
        "its residual is not 785 float32 numbers": {"uplink": {**uplink, "residual": uplink["residual"][1:]}},
        "its shared holds NaN": {"shared": state["shared"] * torch.nan},
        "its round is -1": {"round": -1},
        "its start is None": {"start": None},
        "its start is .1, -1, 1.": {"start": [1, -1, 1]},
        "its ranks and examples do not fit": {"rank": 2},
        "a state is damaged": {"server": {}},
        "its residual is not": {"uplink": {}},
        "its residual is not 785": {"uplink": 5},
        "its seconds is nan": {"seconds": float("nan")},
        "a state is damaged: its due is 0": {"due": 0},
        "a state is damaged: .*indices must ascend": {"uplink": {**uplink, "pending": pending}},
        "a state is damaged: .*must be a mapping": {"uplink": {**uplink, "pending": "x"}},
    }
    for wrong in (0, 1):
        for words, change in mistakes.items():
            if wrong and "server" in change:  # that of rank 0 is used everywhere
                continue
            states = [{**state, **change}] if rank == wrong else [state]  # wrong on one rank: an error on all
            with pytest.raises(InvalidInput, match=words):
                around(small(), resume=states, timeout=PATIENCE)
    with pytest.raises(InvalidInput, match=r"not the state of a dagc.ddp.LocalSteps$"):
        around(small(), resume=[{"residual": 1}])
    if rank == 0:
        state = {**state, "shared": state["shared"] + 1}
    with pytest.raises(DagcError, match="ranks 0 and 1 have different shared models after 2 exchanges"):
        around(small(), resume=[state])
    local = around(small(), resume=[])
    local.step()
    with pytest.raises(InvalidInput, match="1 steps were made since the last exchange"):
        local.state_dict()


def test_states_that_cannot_be_used_are_refused_on_all_ranks(two, tmp_path):
    good(two.run(saving, tmp_path, {}, 2))
    for answer in two.run(wrong_states, tmp_path):
        assert not isinstance(answer, Exception), answer


def restarted(how):
    """Whether a warning came, for an optimizer with or without a state, and with torchrun's count of restarts."""
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    if how == "optimizer":
        one_step(model, optimizer, 0)
    with warnings_of_restarts(how) as warnings:
        local = around(model, steps=1)
        for step in range(3):
            one_step(model, optimizer, step)
            state = local.state_dict() if local.step() else None
        if how == "resumed":
            optimizer = torch.optim.AdamW(model.parameters())
            one_step(model, optimizer, 0)
            local = around(model, steps=1, resume=[state])
            one_step(model, optimizer, 1)
    return warnings


@pytest.mark.parametrize(("how", "words"), RESTARTS)
def test_a_training_that_goes_on_without_our_state_warns_once(two, how, words):
    for warnings in good(two.run(restarted, how)):
        assert len(warnings) == bool(words)
        assert not words or words in warnings[0]


def run_example(ranks, *options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), EXAMPLE]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_runs_with_torchrun_and_resumes_with_fewer_ranks(tmp_path):
    text, folder = tmp_path / "a.txt", tmp_path / "checkpoints"
    text.write_text("All that glitters is not gold; often have you heard that told. " * 200)
    small = ("--text", text, "--checkpoint", folder, "--local-steps", "2", "--every", "1", "--batch-size", "2")
    assert "step 6: loss" in run_example(2, "--steps", "6", *small)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pt"))
    assert names == [f"round-0000000{round}/rank-{rank}-of-2.pt" for round in (2, 3) for rank in (0, 1)]
    again = run_example(1, "--steps", "8", *small)
    assert "resumed after 3 exchanges and 6 steps: loss" in again
    assert "step 8: loss" in again


KILLED_ONCE = """
import os, signal
from pathlib import Path

import torch
import torch.distributed as dist

import dagc.ddp

dist.init_process_group("gloo")
rank, world, first = dist.get_rank(), dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
torch.manual_seed(0)
model = torch.nn.Linear(20, 5)
states = [torch.load(path, weights_only=True) for path in sorted(Path(".").glob("*.pt"))]
local = dagc.ddp.LocalSteps(model, examples=10 + rank, steps=2, ratio=0.1, values="int8", timeout=600, resume=states)
print(f"rank {rank} begins after {local.round} exchanges", flush=True)
while local.round < 8:
    for parameter in model.parameters():
        parameter.data.sub_(0.1 * (parameter.data - rank))
    if first and rank == 1 and local.round == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if local.step():
        torch.save(local.state_dict(), f"{local.round}-{rank}.unfinished")
        os.replace(f"{local.round}-{rank}.unfinished", f"{local.round}-{rank}.pt")
print(f"rank {rank} ends after {local.round} exchanges", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_restarts_a_killed_rank_and_the_training_goes_on(tmp_path):
    (tmp_path / "script.py").write_text(KILLED_ONCE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command += ["--max-restarts", "1", "script.py"]
    # Without it, ranks that start again find the addresses of the dead ones: pytorch/pytorch#135712.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"rank {rank} begins after 0 exchanges" in done.stdout
        assert f"rank {rank} begins after 5 exchanges" in done.stdout
        assert f"rank {rank} ends after 8 exchanges" in done.stdout
    final = [torch.load(tmp_path / f"8-{rank}.pt", weights_only=True) for rank in range(3)]
    assert alike([state["shared"] for state in final])
