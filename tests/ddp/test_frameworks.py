"""The examples for people's frameworks, on two ranks: `make test-frameworks`."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
PATIENCE = 600
RECORDED = """
import runpy, sys, zlib
from pathlib import Path

import torch

import dagc.ddp

# Trainer loads the optimizer to "cpu:0" where there is no GPU, and torch knows only "cpu".
torch.serialization.register_package(0, lambda _: None, lambda kept, place: kept if place == "cpu:0" else None)
exchange = dagc.ddp.LocalSteps.step

def step(local):
    exchanged = exchange(local)
    weights = torch.cat([parameter.detach().flatten() for parameter in local._model.parameters])
    with open(f"models-{torch.distributed.get_rank()}", "a") as file:
        print("shared" if exchanged else "private", zlib.crc32(weights.numpy().tobytes()), file=file)
    return exchanged

dagc.ddp.LocalSteps.step = step
sys.argv.pop(0)
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs an example, and records which model each rank has after each of its own steps."""
MODES = {"every step": (), "local steps": ("--local-steps", "5")}


def needs(*packages):
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: `make test-frameworks` installs the extra 'frameworks'")


def run(name, folder, *options):
    """Run an example with torchrun; returns its losses, bytes, and the ranks' checksums."""
    (folder / "recorded.py").write_text(RECORDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "recorded.py"]
    done = subprocess.run(
        [*command, FOLDER / f"{name}.py", *options], capture_output=True, text=True, timeout=PATIENCE, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-6000:]
    losses = re.search(r"loss ([\d.]+) → ([\d.]+) in (\d+) steps", done.stdout)
    sent, plain = re.search(r"rank 0 sent ([\d,]+) bytes; plain DDP would send ([\d,]+)", done.stdout).groups()
    checksums = re.search(r"checksums of the ranks' models: (\w+) (\w+)", done.stdout)
    as_numbers = [int(number.replace(",", "")) for number in (sent, plain)]
    return [*map(float, losses.groups())], as_numbers, checksums.groups()


def check(losses, sent, checksums):
    (first, last, _), (ours, plain), (one, other) = losses, sent, checksums
    assert last < min(2.2, first)
    assert 0 < ours < plain / 20
    assert one == other


def check_local_steps(folder):
    """Between exchanges each rank has a model of its own: DDP exchanges nothing beside us."""
    pairs = list(zip(*((folder / f"models-{rank}").read_text().splitlines() for rank in (0, 1)), strict=True))
    assert {line.split()[0] for pair in pairs for line in pair} == {"private", "shared"}
    for one, other in pairs:
        assert (one == other) == one.startswith("shared")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_loop_of_accelerate(mode, tmp_path):
    needs("accelerate", "transformers")
    check(*run("accelerate_loop", tmp_path, "--epochs", "3", *MODES[mode]))
    if MODES[mode]:
        check_local_steps(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "packages"),
    [("hf_trainer", ("transformers", "accelerate")), ("lightning_trainer", ("lightning", "transformers"))],
)
def test_a_trainer_trains_and_a_resumed_training_ends_with_the_same_bits(name, packages, mode, tmp_path):
    needs(*packages)
    options = ("--save-steps", "16", *MODES[mode])
    losses, sent, checksums = run(name, tmp_path, *options, "--epochs", "2", "--output", "at once")
    check(losses, sent, checksums)
    if MODES[mode]:
        check_local_steps(tmp_path)
    run(name, tmp_path, *options, "--epochs", "1", "--output", "resumed")
    again = run(name, tmp_path, *options, "--epochs", "2", "--output", "resumed", "--resume")
    assert again[2] == checksums
    assert again[0][1] == losses[1]
    assert again[1][0] < sent[0]  # not from the beginning
