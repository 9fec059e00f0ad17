"""The command line, as its own process where exit codes matter, in this one elsewhere."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dagc.cli import app


def run(*arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_allocate_prints_a_table():
    result = run("allocate", "--sizes", "5000,3000,200,10", "--ratio", "0.001", "--method", "dagc-r")
    assert result.exit_code == 0
    assert "60.90%" in result.output
    assert "4,000" in result.output


def test_allocate_for_machines():
    result = run("allocate", "--sizes", "5000,3000,200,10", "--ratio", "0.001", "--parameters", "11.2M", "--json")
    answer = json.loads(result.output)
    assert sum(client["entries"] for client in answer["clients"]) == 44_800
    assert [client["size"] for client in answer["clients"]] == [5000, 3000, 200, 10]


def test_allocate_thresholds_caps_and_bytes():
    thresholds = json.loads(
        run("allocate", "--sizes", "9,1,0", "--threshold", "1", "--method", "dagc-a", "--json").output
    )
    assert [client["threshold"] is None for client in thresholds["clients"]] == [False, False, True]
    capped = run("allocate", "--sizes", "9,1", "--ratio", "0.5", "--caps", "0.1,0.1", "--json")
    answer = json.loads(capped.output)
    assert [client["ratio"] for client in answer["clients"]] == [0.1, 0.1]
    assert "below the budget" in answer["warnings"][0]
    bytes_ = json.loads(run("allocate", "--sizes", "9,1", "--bytes", "10000", "--values", "sign", "--json").output)
    assert sum(client["bytes"] for client in bytes_["clients"]) <= 10_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["allocate", "--sizes", "5000,x", "--ratio", "0.1"], "size 'x'"),
        (["allocate", "--sizes", "5000", "--ratio", "7"], "not 7"),
        (["allocate", "--sizes", "5,4", "--method", "magic"], "choose one of"),
    ],
)
def test_an_error_is_one_line_without_a_traceback(arguments, says):
    result = subprocess.run([sys.executable, "-m", "dagc", *arguments], capture_output=True, text=True)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout


def test_version_and_help():
    assert run("--version").output.startswith("dagc 0.")
    assert "allocate" in run("--help").output
