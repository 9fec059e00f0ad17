"""The experiments use dagc as any plugin does: their parts are in its registries, and fulfil its contracts."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_of_the_experiments_has_their_parts_and_all_of_dagcs_commands():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

    def run(*words):
        command = [sys.executable, "-m", "research", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    (plugin,) = [each for each in json.loads(run("plugins", "--json")) if each["name"].startswith("research")]
    assert plugin["problem"] == ""
    assert {kind for kind, _ in plugin["added"]} == {
        "method",
        "allocator",
        "model",
        "data set",
        "partition",
        "value codec",
    }
    listed = run("--help")
    assert all(name in listed for name in ("reproduce", "compare", "run", "data", "plan"))
