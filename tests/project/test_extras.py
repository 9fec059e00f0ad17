"""Without the extras: the core works, and whatever needs more says which extra brings it."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import dagc
from dagc.errors import MissingExtra, needs_extra

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
WITHOUT = """
import sys
missing = "typer rich pydantic sklearn PIL platformdirs tomli_w flwr".split()
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def without_extras(code, *arguments):
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_core_needs_few_packages():
    needed = [text.split(">")[0] for text in PROJECT["dependencies"]]
    assert needed == ["numpy", "torch", "safetensors", "numba"]
    done = without_extras("""
import torch
import dagc, dagc.checkpoint, dagc.files, dagc.folder, dagc.policies, dagc.state, dagc.protocol
feedback = dagc.ErrorFeedback(dagc.top_k, 1000)
sparse = feedback.step(torch.randn(1000), 10)
assert len(dagc.decode(dagc.encode(sparse, round=1), size=1000, round=1)) == 10
assert "filelock" not in sys.modules
""")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["train", "Config"])
def test_training_names_its_extra(name):
    done = without_extras(f"import dagc\ntry: dagc.{name}\nexcept ImportError as error: print(error)")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"dagc.{name} needs ")
    assert "which is not installed: install dagc with its extra 'lab'" in done.stdout


@pytest.mark.parametrize(
    "start", ["from dagc.__main__ import main; main()", "import runpy; runpy.run_module('dagc', {}, '__main__')"]
)
def test_the_command_names_its_extra_in_one_line(start):
    done = without_extras(start, "--version")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the dagc command needs ")
    assert "extra 'lab'" in line


def test_a_module_of_ours_that_is_missing_is_no_matter_of_extras():
    with pytest.raises(ModuleNotFoundError, match=r"dagc\.nowhere"), needs_extra("it", "lab"):
        import dagc.nowhere  # noqa: F401
    with pytest.raises(MissingExtra, match="it needs nowhere_at_all"), needs_extra("it", "lab"):
        import nowhere_at_all  # noqa: F401


def test_the_version_is_written_once():
    assert "version" in PROJECT["dynamic"]
    assert version(PROJECT["name"]) == dagc.__version__
