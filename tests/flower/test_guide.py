"""The Flower guide's commands as they stand, in an environment that has nothing but what they install.

`make test-slow` runs these; installing torch again takes minutes.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
if not Path("/proc").exists():
    pytest.skip("needs Linux, to find the processes that Flower leaves behind", allow_module_level=True)

from tests.flower.superlink import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
PROJECT = Path(__file__).parents[2]
PAGES = ("how-to/flower.md", "how-to/flower-hosts.md", "recipes/lora.md")
GUIDE = "".join((PROJECT / "docs" / page).read_text() for page in PAGES)
OURS = {"pip", "python", "flwr", "flower-superlink", "flower-supernode", "dagc"}
"""Commands that the environment must have."""
TEXT = "**/tinyshakespeare_by_role*.json"


def commands(start):
    """The block of shell commands in the guide that begins so."""
    (found,) = [block for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) if block.startswith(start)]
    return found


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A copy of the project, and an environment beside it in which the guide's first commands were run."""
    folder = tmp_path_factory.mktemp("fresh")
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "__pycache__", "runs", "results")
    shutil.copytree(PROJECT, copy, ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {
        "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(copy / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    subprocess.run(
        ["bash", "-ec", commands("pip install '.[flower]' 'flwr[simulation]' scikit-learn")],
        cwd=copy,
        env=variables,
        check=True,
    )
    return copy, variables


def test_our_package_is_installed_and_not_the_one_that_is_called_dagc(fresh):
    copy, variables = fresh
    listed = subprocess.run(["pip", "list", "--format", "json"], env=variables, capture_output=True, check=True)
    names = {one["name"] for one in json.loads(listed.stdout)}
    assert "dagc-fl" in names
    assert "dagc" not in names
    code = "import dagc.flower, importlib.metadata as m; print(m.version('dagc-fl') == dagc.__version__)"
    assert subprocess.run(["python", "-c", code], env=variables, capture_output=True).stdout == b"True\n"
    for app in ("flower/after", "flower-lora"):
        needed = (copy / "examples" / app / "pyproject.toml").read_text()
        assert '"dagc-fl[flower]' in needed
        assert '"dagc"' not in needed


def say(block, fresh, folder):
    """Run these commands as they stand; what they say."""
    copy, variables = fresh
    with Lab(folder / "lab") as lab:  # only to end what Flower leaves behind
        (lab.home / "config.toml").unlink()
        ours = {name: lab.environment[name] for name in ("FLWR_HOME", "DAGC_STATE", "OMP_NUM_THREADS")}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(
            ["bash", "-ec", block],
            cwd=copy, env={**variables, **ours, **quiet}, capture_output=True, text=True, timeout=2400,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_machine_with_ray(fresh, tmp_path):
    said = say(commands("export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"), fresh, tmp_path)
    assert re.search(r"dagc: round 30: 10 of 10 nodes", said), said
    accuracies = [float(found) for found in re.findall(r"'accuracy': ([\d.]+)", said)]
    assert max(accuracies) > 0.8, said


def test_adapters_with_ray(fresh, tmp_path):
    text = next(Path(os.environ.get("DAGC_DATA", ".")).glob(TEXT), None)
    if text is None:
        pytest.skip(f"needs {TEXT} in DAGC_DATA")
    block = commands("pip install '.[flower]' 'flwr[simulation]' transformers peft")
    said = say(block.replace("/path/to/roles.json", str(text)), fresh, tmp_path)
    assert re.search(r"dagc: round 20: 3 of 3 nodes", said), said
    losses = [float(found) for found in re.findall(r"'loss': ([\d.]+)", said)]
    assert losses[-1] < losses[0] - 2, said


def test_every_command_of_the_guide_is_one_that_exists(fresh):
    _, variables = fresh
    known = {"export", "openssl", "ssh-keygen", "printf", *OURS}
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    first = {shlex.split(line, comments=True)[0] for line in lines if not line.startswith("#")}
    assert first <= known
    for name in first & OURS:
        assert shutil.which(name, path=variables["PATH"].split(os.pathsep)[0]), name
