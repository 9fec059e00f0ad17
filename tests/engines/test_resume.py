"""Killed at any moment and resumed, a run ends with the same bits; damage and full disks are reported."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from safetensors import SafetensorError

from dagc import InvalidInput, checkpoint, state
from dagc.errors import CheckpointError
from dagc.folder import finished, read_metrics, to_toml
from dagc.training import Config, iterate, train

SETTINGS = {
    "task": "logistic@digits",
    "ratio": 0.02,
    "rounds": 24,
    "evaluate_every": 5,
    "checkpoint_every": 4,
    "participation": 0.7,
    "late": 0.2,
    "optimizer_options": {"momentum": 0.5},
    "threads": 1,
}


METHODS = {
    "accordion": {},
    "random-k": {"schedule": "StepLR", "schedule_options": {"step_size": 5, "gamma": 0.7}},
    "dagc-r": {"overhead": 0.5, "frames": "compact"},
    "power": {
        "epochs": 0.5,
        "client_momentum": 0.9,
        "client_weight_decay": 0.01,
        "schedule": "cosine",
        "optimizer": "Adam",
        "optimizer_options": {},
        "server_rate": 0.02,
        "server_schedule": "linear",
    },
}
"""With memory in the policy, in the draws, in who has waited for how long, and in both optimizers."""


def settings(method="accordion", **fields):
    return Config(**{**SETTINGS, "method": method, **METHODS[method], **fields})


def toml(config):
    return to_toml(config.as_dict())


def kept(folder):
    """The files that a user gets, as bytes."""
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors", "result.json")}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What uninterrupted runs leave."""
    folder = tmp_path_factory.mktemp("straight")
    for method in METHODS:
        train(settings(method), folder / method)
    return {method: kept(folder / method) for method in METHODS}


KILLED = """
import json, os, signal, sys
from contextlib import contextmanager
from dagc import checkpoint, files, state
from dagc.training import Config, train
import tests  # its method

fields, folder, moments = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
train(Config(**{**fields, "rounds": 1}))  # loads and compiles once, before the children
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

@contextmanager
def half(path, private, write=state.write_atomically):
    with write(path, private) as file:
        file.write(b"half of it")
        file.flush()
        die()
        yield file

def attempt(where, number):
    count = 0
    def counted(function, after):
        def wrapped(*arguments, **more):
            nonlocal count
            count += 1
            if count == number and not after:
                die()
            result = function(*arguments, **more)
            if count == number:
                die()
            return result
        return wrapped
    callbacks = []
    if where == "between rounds":
        callbacks = [lambda federation, result: result.round == number and die()]
    elif where == "half-way through a file":
        state.write_atomically = half
    elif where == "before the checkpoint has its name":
        files.Path.replace = counted(files.Path.replace, after=False)
    elif where == "after a checkpoint":
        checkpoint.save = counted(checkpoint.save, after=True)
    train(Config(**fields), folder, callbacks)

for where, number in moments:
    child = os.fork()
    if child == 0:
        attempt(where, number)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(where, number, "killed" if os.WIFSIGNALED(status) else "not reached")
"""


@pytest.mark.parametrize("method", METHODS)
def test_killed_at_any_moment_and_resumed_it_ends_with_the_same_bits(method, tmp_path, straight):
    moments = [
        ("between rounds", 3),
        ("half-way through a file", 1),
        ("between rounds", 6),
        ("before the checkpoint has its name", 2),
        ("after a checkpoint", 2),
        ("between rounds", 17),
        ("between rounds", 23),
    ]
    fields = json.dumps(settings(method).as_dict())
    command = [sys.executable, "-c", KILLED, fields, str(tmp_path / "run"), json.dumps(moments)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.stdout.count(" killed") == len(moments), result.stdout + result.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    list(iterate(settings(method), tmp_path / "run"))
    assert kept(tmp_path / "run") == straight[method]


@pytest.mark.slow
def test_killed_from_outside_at_random_times(tmp_path, straight):
    import random
    import time

    rng = random.Random(0)
    (tmp_path / "run.toml").write_text(toml(settings("dagc-r")))
    command = [
        sys.executable,
        "-m",
        "dagc",
        "run",
        "--config",
        str(tmp_path / "run.toml"),
        "--output",
        str(tmp_path / "run"),
    ]
    for _ in range(6):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(2, 8))  # the moment is random: that is the test
        process.kill()
        process.wait()
    subprocess.run(command, check=True, capture_output=True)
    assert kept(tmp_path / "run") == straight["dagc-r"]


def test_whoever_stops_listening_leaves_a_checkpoint(tmp_path, straight):
    for result in iterate(settings(), tmp_path / "run"):
        if result.round == 7:
            break
    assert checkpoint.checkpoints(tmp_path / "run" / "checkpoints")[0].name == "round-00000007.safetensors"
    list(iterate(settings(), tmp_path / "run"))
    assert kept(tmp_path / "run") == straight["accordion"]


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    script = """
import contextlib, os, signal, sys
import dagc.cli
commands = sys.modules["dagc.cli.run"]
shown = commands.progress_of
@contextlib.contextmanager
def pressed(*arguments):
    with shown(*arguments) as show:
        def press(place, round, words):
            if round == 9:
                os.kill(os.getpid(), signal.SIGINT)
            show(place, round, words)
        yield press
commands.progress_of = pressed
from dagc.cli import main
sys.argv = ["dagc", *sys.argv[1:]]
main()
"""
    folder = tmp_path / "run"
    (tmp_path / "run.toml").write_text(toml(settings("dagc-r")))
    command = [sys.executable, "-c", script, "run", "--config", str(tmp_path / "run.toml"), "--output", str(folder)]
    stopped = subprocess.run(command, capture_output=True, text=True)
    assert stopped.returncode == 130
    assert f"dagc resume {folder}" in stopped.stderr
    assert len(read_metrics(folder)) == 9
    resumed = subprocess.run(
        [sys.executable, "-m", "dagc", "resume", str(folder), "--json"], capture_output=True, text=True
    )
    assert json.loads(resumed.stdout)["rounds"] == 24


def test_a_finished_run_is_not_done_again(tmp_path):
    list(iterate(settings(rounds=5), tmp_path / "run"))
    before = kept(tmp_path / "run")
    assert list(iterate(settings(rounds=5), tmp_path / "run")) == []
    assert kept(tmp_path / "run") == before


def some_rounds(folder, count=10):
    for result in iterate(settings(), folder):
        if result.round == count:
            break
    return checkpoint.checkpoints(folder / "checkpoints")


@pytest.mark.parametrize("damage", ["flip", "truncate", "half a head", "a digit", "empty"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, straight, damage):
    newest, before = some_rounds(tmp_path / "run")
    content = bytearray(newest.read_bytes())
    if damage == "flip":
        content[-1000] ^= 1
    elif damage == "truncate":
        content = content[:-100]
    elif damage == "half a head":
        content = content[:50]
    elif damage == "a digit":
        content[re.search(rb'round\\*": 10', content).end() - 1] += 1
    else:
        content = b""
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
        train(settings(), tmp_path / "run")
    assert before.name == "round-00000008.safetensors"
    assert not newest.exists()
    assert kept(tmp_path / "run") == straight["accordion"]


def test_if_all_checkpoints_are_damaged_it_says_so(tmp_path):
    for path in some_rounds(tmp_path / "run"):
        path.write_bytes(b"dagc")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError, match="start the run again"):
        train(settings(), tmp_path / "run")


def test_a_full_disk_stops_the_run_and_leaves_a_usable_checkpoint(tmp_path, straight, monkeypatch):
    write, calls = state.write_atomically, []

    @contextmanager
    def full(path, private):
        calls.append(path)
        with write(path, private) as file:
            if len(calls) > 2:
                file.write(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
            yield file

    monkeypatch.setattr(state, "write_atomically", full)
    reason = r"disk is full: free some space; the last good one is round-00000008\.safetensors"
    with pytest.raises(CheckpointError, match=reason):
        train(settings(), tmp_path / "run")
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["round-00000004.safetensors", "round-00000008.safetensors"]
    monkeypatch.undo()
    train(settings(), tmp_path / "run")
    assert kept(tmp_path / "run") == straight["accordion"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_metrics_that_do_not_fit_are_reported_in_one_line(tmp_path):
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))\n"
        "from dagc.cli import main\n"
        "main()"
    )
    fields = {"method": "none", "clients": 1, "skew_ratio": 1, "rounds": 90, "checkpoint_every": 30}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(toml(Config(task="logistic@digits", **fields)))
    done = subprocess.run(
        [sys.executable, "-c", code, "resume", folder],
        env={**os.environ, "DAGC_KERNELS": "torch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "cannot write to" in done.stderr
    assert checkpoint.load(folder / "checkpoints")["round"] == 60


def test_a_model_that_does_not_fit_is_reported(tmp_path, monkeypatch):
    def full(tensors, path):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("dagc.training.save_file", full)
    with pytest.raises(CheckpointError, match=r"No space left.*; then resume the run"):
        list(iterate(settings(rounds=2), tmp_path / "run"))


def test_a_model_that_is_gone_is_written_again(tmp_path):
    first = train(settings(rounds=5), tmp_path / "run")
    before = kept(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    assert not finished(tmp_path / "run")
    assert train(settings(rounds=5), tmp_path / "run").rounds == first.rounds
    assert kept(tmp_path / "run") == before


def test_what_a_killed_process_was_writing_does_not_stay(tmp_path):
    (tmp_path / ".round-00000009.safetensors.0123abcd.partial").write_bytes(bytes(100))
    checkpoint.save(tmp_path, {"round": 1, "x": np.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000001.safetensors"]


def test_a_damaged_checkpoint_does_not_take_a_good_ones_place(tmp_path):
    for number in (8, 12, 10):  # 12 was damaged, and the run went on from 8
        checkpoint.save(tmp_path, {"round": number, "x": np.zeros(3)})
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        "round-00000010.safetensors",
        "round-00000008.safetensors",
    ]


def test_two_at_once_in_one_folder_is_refused(tmp_path):
    first = iterate(settings(), tmp_path / "run")
    next(first)
    with pytest.raises(CheckpointError, match="another process is working in"):
        next(iterate(settings(), tmp_path / "run"))
    first.close()


def test_a_folder_of_another_run_is_refused(tmp_path):
    next(iterate(settings(rounds=2), tmp_path / "run"))
    with pytest.raises(InvalidInput, match=r"holds another run \(rounds is 2 there, 3 here\)"):
        next(iterate(settings(rounds=3), tmp_path / "run"))
    list(iterate(settings(rounds=2, threads=2), tmp_path / "run"))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used"):
        next(iterate(settings(), tmp_path / "file"))


def test_lost_metrics_are_noticed(tmp_path):
    some_rounds(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="has lost lines"):
        next(iterate(settings(), tmp_path / "run"))


def test_sigterm_is_ctrl_c():
    from dagc.comparison import stopping

    before = signal.getsignal(signal.SIGTERM)
    with stopping() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_finished_run_whose_last_round_nobody_answered(tmp_path):
    """It has no loss, and what is None is not written."""
    for seed in range(20):
        config = settings(rounds=2, clients=2, failures=0.9, seed=seed)
        first = train(config, tmp_path / str(seed))
        if first.rounds[-1].loss is None:
            assert train(config, tmp_path / str(seed)).rounds == first.rounds
            return
    pytest.fail("somebody always answered")
