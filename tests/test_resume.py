"""It keeps going: killed at any moment and resumed, a run ends with the same bits; damage and full disks are told."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from dagc import InvalidInput
from dagc.errors import CheckpointError
from dagc.training import Config, checkpoint, read_metrics, train

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


def settings(method="accordion", **fields):
    return Config(**{**SETTINGS, "method": method, **fields})


def kept(folder):
    """The files that a user gets, as bytes."""
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors", "result.json")}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What uninterrupted runs leave."""
    folder = tmp_path_factory.mktemp("straight")
    for method in ("accordion", "random-k", "dagc-global"):
        list(train(settings(method), folder / method))
    return {method: kept(folder / method) for method in ("accordion", "random-k", "dagc-global")}


KILLED = """
import json, os, signal, sys
import safetensors.torch
from dagc.training import Config, checkpoint, train

fields, folder, moments = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
list(train(Config(**{**fields, "rounds": 1})))  # loads and compiles once, before the children
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

def attempt(where, number):
    count = 0
    def after(function):
        def wrapped(*arguments):
            nonlocal count
            result = function(*arguments)
            count += 1
            if count == number:
                die()
            return result
        return wrapped
    callbacks = []
    if where == "between rounds":
        callbacks = [lambda federation, result: result.round == number and die()]
    elif where == "half-way through a file":
        checkpoint.save_file = after(checkpoint.save_file)
    elif where == "before the checkpoint has its name":
        checkpoint._sync = after(checkpoint._sync)
    elif where == "after a checkpoint":
        checkpoint.save = after(checkpoint.save)
    for _ in train(Config(**fields), folder, callbacks):
        pass

for where, number in moments:
    child = os.fork()
    if child == 0:
        attempt(where, number)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(where, number, "killed" if os.WIFSIGNALED(status) else "not reached")
"""


@pytest.mark.parametrize("method", ["accordion", "random-k", "dagc-global"])
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
    fields = json.dumps(settings(method).model_dump())
    command = [sys.executable, "-c", KILLED, fields, str(tmp_path / "run"), json.dumps(moments)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.stdout.count(" killed") == len(moments), result.stdout + result.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    list(train(settings(method), tmp_path / "run"))
    assert kept(tmp_path / "run") == straight[method]


@pytest.mark.slow
def test_killed_from_outside_at_random_times(tmp_path, straight):
    import random
    import time

    rng = random.Random(0)
    (tmp_path / "run.toml").write_text(settings().toml())
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
    assert kept(tmp_path / "run") == straight["accordion"]


def test_whoever_stops_listening_leaves_a_checkpoint(tmp_path, straight):
    for result in train(settings(), tmp_path / "run"):
        if result.round == 7:
            break
    assert checkpoint.checkpoints(tmp_path / "run" / "checkpoints")[0].name == "round-00000007"
    list(train(settings(), tmp_path / "run"))
    assert kept(tmp_path / "run") == straight["accordion"]


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    script = """
import os, signal, sys
from dagc.cli import app, train as commands
seen = commands._in_words
def press(result):
    if result.round == 9:
        os.kill(os.getpid(), signal.SIGINT)
    return seen(result)
commands._in_words = press
from dagc.cli import main
sys.argv = ["dagc", *sys.argv[1:]]
main()
"""
    folder = tmp_path / "run"
    (tmp_path / "run.toml").write_text(settings().toml())
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
    list(train(settings(rounds=5), tmp_path / "run"))
    before = kept(tmp_path / "run")
    assert list(train(settings(rounds=5), tmp_path / "run")) == []
    assert kept(tmp_path / "run") == before


def some_rounds(folder, count=10):
    for result in train(settings(), folder):
        if result.round == count:
            break
    return checkpoint.checkpoints(folder / "checkpoints")


@pytest.mark.parametrize("damage", ["flip", "truncate", "no json", "half json", "a digit", "missing part", "empty"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(tmp_path, straight, damage):
    newest, before = some_rounds(tmp_path / "run")
    part, state = newest / "part-0.safetensors", newest / "state.json"
    if damage == "flip":
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
    elif damage == "truncate":
        part.write_bytes(part.read_bytes()[:100])
    elif damage == "no json":
        state.unlink()
    elif damage == "half json":
        state.write_bytes(state.read_bytes()[:50])
    elif damage == "a digit":
        state.write_text(state.read_text().replace('"bytes_up": 1', '"bytes_up": 2'))
    elif damage == "missing part":
        part.unlink()
    else:
        part.unlink()
        state.unlink()
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged"):
        list(train(settings(), tmp_path / "run"))
    assert before.name == "round-00000008"
    assert not list((tmp_path / "run" / "checkpoints").glob(newest.name))
    assert kept(tmp_path / "run") == straight["accordion"]


def test_if_all_checkpoints_are_damaged_it_says_so(tmp_path):
    for path in some_rounds(tmp_path / "run"):
        (path / "state.json").write_text("{}")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError, match="start the run anew"):
        list(train(settings(), tmp_path / "run"))


def test_a_full_disk_stops_the_run_and_leaves_a_usable_checkpoint(tmp_path, straight, monkeypatch):
    write, calls = checkpoint.save_file, []

    def full(tensors, path):
        calls.append(path)
        if len(calls) > 2:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match="disk is full: make room; the last good one is round-00000008"):
        list(train(settings(), tmp_path / "run"))
    assert not list((tmp_path / "run" / "checkpoints").glob(".partial*"))
    monkeypatch.setattr(checkpoint, "save_file", write)
    list(train(settings(), tmp_path / "run"))
    assert kept(tmp_path / "run") == straight["accordion"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_metrics_that_do_not_fit_are_told_in_one_line(tmp_path):
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))\n"
        "from dagc.cli import main\n"
        "main()"
    )
    fields = {"method": "none", "workers": 1, "skew_ratio": 1, "rounds": 90, "checkpoint_every": 30}
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(Config(task="logistic@digits", **fields).toml())
    done = subprocess.run(
        [sys.executable, "-c", code, "resume", folder],
        env={**os.environ, "DAGC_KERNELS": "torch"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "cannot be written to" in done.stderr
    _, numbers = checkpoint.load(folder / "checkpoints")
    assert numbers["round"] == 60


def test_a_model_that_does_not_fit_is_told(tmp_path, monkeypatch):
    def full(tensors, path):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("dagc.training.folder.save_file", full)
    with pytest.raises(CheckpointError, match=r"No space left.*resume once there is room"):
        list(train(settings(rounds=2), tmp_path / "run"))


def test_what_a_killed_process_was_writing_does_not_stay(tmp_path):
    left = tmp_path / ".partial"
    left.mkdir()
    (left / "part-9.safetensors").write_bytes(bytes(100))
    checkpoint.save(tmp_path, {"x": torch.zeros(3)}, {"round": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000001"]


def test_a_damaged_checkpoint_does_not_take_a_good_ones_place(tmp_path):
    for number in (8, 12, 10):  # 12 was damaged, and the run went on from 8
        checkpoint.save(tmp_path, {"x": torch.zeros(3)}, {"round": number})
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["round-00000010", "round-00000008"]


def test_two_at_once_in_one_folder_is_refused(tmp_path):
    first = train(settings(), tmp_path / "run")
    next(first)
    with pytest.raises(CheckpointError, match="another process is working in"):
        next(train(settings(), tmp_path / "run"))
    first.close()


def test_a_folder_of_another_run_is_refused(tmp_path):
    next(train(settings(rounds=2), tmp_path / "run"))
    with pytest.raises(InvalidInput, match=r"holds another run \(rounds is 2 there, 3 here\)"):
        next(train(settings(rounds=3), tmp_path / "run"))
    list(train(settings(rounds=2, threads=2), tmp_path / "run"))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used"):
        next(train(settings(), tmp_path / "file"))


def test_lost_metrics_are_noticed(tmp_path):
    some_rounds(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="has lost lines"):
        next(train(settings(), tmp_path / "run"))


def test_sigterm_is_ctrl_c():
    from dagc.experiments import stopping

    before = signal.getsignal(signal.SIGTERM)
    with stopping() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is before
