"""Plugins: the command line and its worker processes know what a package registers, and the contracts judge it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dagc

GOOD = """
import numpy as np
from torch import nn
from dagc import ALLOCATORS, Allocator
from dagc.models import MODELS, Model
from dagc.policies import METHODS, relative

def root(shares, total):
    weights = np.sqrt(shares)
    return total * weights / weights.sum()

def register():
    ALLOCATORS["root"] = Allocator(ratios=root)
    METHODS["root"] = relative("root", "by the root of the data")
    MODELS["normed"] = Model(lambda shape, classes: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes)))
"""
GREEDY = """
import numpy as np
from dagc import ALLOCATORS, Allocator
ALLOCATORS["greedy"] = Allocator(ratios=lambda shares, total: np.full(len(shares), total))
"""
BROKEN = """
from dagc import ALLOCATORS, Allocator
ALLOCATORS["half"] = Allocator(ratios=lambda shares, total: shares * total)
import no_such_module
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Installs packages into a folder on the path of new processes; returns the command line there."""

    def install(**plugins):
        for name, (code, value) in plugins.items():
            (tmp_path / f"{name}.py").write_text(code)
            info = tmp_path / f"{name}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text(f"[dagc.plugins]\n{name} = {value}\n")
        source = str(Path(dagc.__file__).parent.parent)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), source]))

        def call(*arguments):
            command = [sys.executable, "-m", "dagc", *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)

        return call

    return install


SMALL = ("--ratio", "0.1", "--rounds", "2", "--clients", "3", "--skew-ratio", "2", "--json")


def test_what_a_package_registers_is_known_to_the_command(packages):
    call = packages(good=(GOOD, "good:register"))
    done = call("run", "normed@digits", "--method", "root", *SMALL)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "root"
    listed = json.loads(call("plugins", "--json").stdout)
    added = [["method", "root"], ["allocator", "root"], ["model", "normed"]]
    assert listed == [{"name": "good", "where": "good:register", "added": added, "problem": "", "wrong": {}}]


@pytest.mark.slow
def test_workers_know_it_too_and_the_contracts_judge_it(packages):
    call = packages(good=(GOOD, "good:register"))
    assert "by the root of the data" in call("run", "--help").stdout
    done = call("compare", "normed@digits", "--methods", "root,top-k", "--seeds", "1", *SMALL)
    assert done.returncode == 0, done.stderr
    assert [row["method"] for row in json.loads(done.stdout)["methods"]] == ["root", "top-k"]
    listed = call("plugins", "--check")
    assert listed.returncode == 0, listed.stdout
    assert "good (good:register)" in listed.stdout
    assert "right  method root" in listed.stdout
    assert "right  allocator root" in listed.stdout


def test_a_part_that_breaks_a_contract_and_one_that_cannot_be_loaded_are_named(packages):
    call = packages(greedy=(GREEDY, "greedy"), broken=(BROKEN, "broken"))
    done = call("plugins", "--check")
    assert done.returncode == 1
    assert "wrong  allocator greedy: greedy on 'equal' at 0.001: spends" in done.stdout
    assert "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'" in done.stdout
    assert done.stderr.startswith("warning: the plugin broken (broken) cannot be loaded: ModuleNotFoundError")
    refused = call("run", "mlp@digits", "--method", "half")
    assert refused.returncode == 2
    assert "there is no method 'half'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_plugins_that_is_said(packages):
    done = packages()("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "no installed package has an entry point in the group dagc.plugins\n"
