"""The package: its version is in one place, and what is built from it works in an empty environment."""

import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import dagc

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def tracked():
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a clone of the repository")
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_version_is_in_one_place():
    written = re.compile(rf"(?<![\d.]){re.escape(dagc.__version__)}(?![\d.])")
    allowed = {"src/dagc/__init__.py", "CHANGELOG.md", "constraints.txt"}
    texts = [name for name in tracked() if name.endswith((".py", ".toml", ".md", ".cff", ".yml", ".txt"))]
    found = {name for name in texts if written.search((ROOT / name).read_text(encoding="utf-8"))}
    assert found - allowed == set()
    assert f"## {dagc.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_has_every_python_that_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {text.split(" :: ")[-1] for text in project["classifiers"] if "Python :: 3." in text}
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert named == set(re.findall(r'"(3\.\d+)"', workflow))
    assert project["requires-python"] == f">={min(named, key=lambda text: int(text.split('.')[1]))}"


def built(kind, source, into):
    into.mkdir()
    command = [sys.executable, "-c", BUILD, kind, str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = into.iterdir()
    return found


def test_the_package_holds_neither_the_experiments_nor_the_tests():
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert found == {"where": ["src"]}
    assert {Path(name).parts[1] for name in tracked() if name.startswith("src/")} == {"dagc", "dagc_command.py"}


WAYS_IN = """
import logging, os, sys, tomllib
import torch, torch.distributed as dist
from pathlib import Path
import dagc, dagc.ddp

torch.manual_seed(0)
x = torch.randn(200, 6)
y = (x[:, 0] > 0).long()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

def train_step(model, optimizer):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return float(loss.detach())

module = torch.nn.Linear(6, 2)
model = torch.nn.parallel.DistributedDataParallel(module)
hook = dagc.ddp.register(model, examples=len(y), ratio=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
losses = [train_step(model, optimizer) for _ in range(30)]
assert losses[-1] < losses[0] and hook.last.payload > 0
print("PyTorch per step")

module = torch.nn.Linear(6, 2)
optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
local = dagc.ddp.LocalSteps(module, examples=len(y), steps=5)
losses = []
for _ in range(30):
    losses.append(train_step(module, optimizer))
    local.step()
local.finish()
assert losses[-1] < losses[0]
print("local steps")

data = {"clinic-a": (x[:150], y[:150]), "clinic-b": (x[150:], y[150:])}
result = dagc.train(model=torch.nn.Linear(6, 2), data=data, rounds=20)
assert result.score > 0.7 and result.bytes_up > 0
print("your own model")

logging.disable()
root = Path(sys.argv[1])
app = root / "examples" / "flower-template"
sys.path += [str(app), str(root)]  # `tests` for its grid: dagc is the wheel's all the same
from flwr.app import Context, RecordDict
from myapp.client_app import app as client
from myapp.server_app import app as server
from tests.helpers.local_grid import LocalGrid

os.environ["DAGC_STATE"] = "state"
config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
config |= {"num-server-rounds": 4, "run": "wheel"}
server(LocalGrid(client, 3, run_config=config), Context(1, 0, {}, RecordDict(), config))
assert Path("state/runs/wheel/metrics.jsonl").read_text().count("bytes_up") == 4
assert str(root) not in dagc.__file__
print("Flower")
"""
"""The README's ways in; the path of the project is the argument."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    source = tmp_path / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    archive = built("build_sdist", source, tmp_path / "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = built("build_wheel", unpacked, tmp_path / "wheel")  # from the archive: it holds all that is needed
    ours = {name.removeprefix("src/") for name in tracked() if name.startswith("src/")}
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert inside == ours

    where = tmp_path / "empty"
    venv.create(where, with_pip=True)
    programs = where / ("Scripts" if os.name == "nt" else "bin")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DAGC"))}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=clean)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    python = str(programs / "python")
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", str(wheel))
    (packages,) = [path for path in site.getsitepackages([str(where)]) if Path(path).is_dir()]
    # What dagc depends on comes from here, without a network; a path in a .pth file brings no .pth files of its own, so
    # an editable dagc stays out.
    depends = [path for path in sys.path if path.endswith("site-packages")]
    (Path(packages) / "depends.pth").write_text("\n".join(depends) + "\n")
    assert Path(run(python, "-c", "import dagc; print(dagc.__file__)").strip()).is_relative_to(where)
    command = str(programs / "dagc")
    assert run(command, "--version") == f"dagc {dagc.__version__}\n"
    demo = [
        "compare",
        "mlp@digits",
        "--methods",
        "dagc-r,top-k,none",
        "--ratio",
        "0.01",
        "--rounds",
        "20",
        "--seeds",
        "1",
    ]
    assert "page: " in run(command, *demo, "--output", "demo")
    assert run(python, "-c", WAYS_IN, str(ROOT)) == "PyTorch per step\nlocal steps\nyour own model\nFlower\n"
    assert (tmp_path / "demo" / "report.html").stat().st_size > 10_000
    doctests = run(
        python,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "--doctest-modules",
        "--rootdir",
        packages,
        *OPTIONS,
        str(Path(packages) / "dagc"),
    )
    assert " passed" in doctests


OPTIONS = [
    "-p",
    "no:cacheprovider",
    "-o",
    "doctest_optionflags=NORMALIZE_WHITESPACE ELLIPSIS",
]
