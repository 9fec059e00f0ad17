"""compare: the same for all, what is finished is not done again, JSON as promised; plan: before training."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dagc import InvalidInput
from dagc.cli import app
from dagc.experiments import compared, comparison_configs, run_all
from dagc.training import read_metrics

BASE = {"task": "logistic@digits", "rounds": 12, "evaluate_every": 3, "skew_ratio": 20}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    configs = comparison_configs(BASE, ["dagc-r", "hard-threshold", "none"], [0, 1], {"ratio": 0.02, "threshold": 0.02})
    return configs, run_all(configs, folder, jobs=2), folder


def test_every_method_gets_the_same_seeds_and_the_budget_that_it_takes(finished):
    configs, paths, _ = finished
    assert [(c.method, c.seed, c.ratio, c.threshold) for c in configs] == [
        ("dagc-r", 0, 0.02, None),
        ("dagc-r", 1, 0.02, None),
        ("hard-threshold", 0, None, 0.02),
        ("hard-threshold", 1, None, 0.02),
        ("none", 0, None, None),
        ("none", 1, None, None),
    ]
    assert len({path.name for path in paths}) == 6
    same = [json.loads((path / "clients.json").read_text())["labels"] for path in paths]
    assert same[0] == same[2] == same[4] != same[1]


def test_what_came_of_it(finished):
    configs, paths, _ = finished
    result = compared(configs, paths, target=0.5)
    assert [row["method"] for row in result["methods"]] == ["dagc-r", "hard-threshold", "none"]
    for row in result["methods"]:
        mine = [
            read_metrics(path) for config, path in zip(configs, paths, strict=True) if config.method == row["method"]
        ]
        ends = [sum(line["accuracy"] for line in lines if "accuracy" in line) / 4 for lines in mine]
        assert row["final_accuracy"] == pytest.approx(sum(ends) / 2)
        assert row["final_accuracy_sd"] == pytest.approx(abs(ends[0] - ends[1]) / 2**0.5)
        firsts = [next(line for line in lines if line.get("accuracy", 0) >= 0.5) for lines in mine]
        assert row["to_target"]["reached"] == 2
        assert row["to_target"]["iterations"] == sum(line["round"] for line in firsts) / 2
        assert row["to_target"]["bytes"] == sum(line["bytes_up"] for line in firsts) / 2
    never = compared(configs, paths, target=1.0)["methods"][0]["to_target"]
    assert (never["reached"], never["bytes"]) == (0, None)


def test_what_is_finished_is_not_done_again(finished):
    configs, paths, folder = finished
    before = [(path / "result.json").stat().st_mtime_ns for path in paths]
    told = []
    assert run_all(configs, folder, jobs=2, progress=lambda number, done: told.append((number, done))) == paths
    assert [(path / "result.json").stat().st_mtime_ns for path in paths] == before
    assert told == [(number, 12) for number in range(6)]


def test_a_method_without_its_budget_is_refused():
    with pytest.raises(InvalidInput, match="'dagc-a' needs a budget: give --threshold"):
        comparison_configs(BASE, ["dagc-r", "dagc-a"], [0], {"ratio": 0.1})
    with pytest.raises(InvalidInput, match="'best': choose one of"):
        comparison_configs(BASE, ["best"], [0], {"ratio": 0.1})


def test_compare_from_the_command_line(tmp_path):
    arguments = ("compare", "logistic@digits", "--methods", "dagc-r,none", "--seeds", 2, "--rounds", 6, "--ratio", 0.02)
    result = run(*arguments, "--skew-ratio", 20, "--output", tmp_path / "out", "--json")
    told = json.loads(result.stdout)
    assert [row["method"] for row in told["methods"]] == ["dagc-r", "none"]
    keys = {"final_accuracy", "final_accuracy_sd", "best_accuracy", "bytes_up", "bytes_down", "to_target"}
    assert all(keys <= set(row) for row in told["methods"])
    assert told["methods"][1]["bytes_up"] > 20 * told["methods"][0]["bytes_up"]
    again = run(*arguments, "--skew-ratio", 20, "--output", tmp_path / "out")
    assert "±" in again.stdout
    assert (tmp_path / "out" / "comparison.json").exists()
    assert (tmp_path / "out" / "curves.csv").exists()


def test_ctrl_c_stops_all_runs_with_a_checkpoint_and_the_command_goes_on(tmp_path):
    command = [sys.executable, "-m", "dagc", "compare", "logistic@digits", "--methods", "dagc-r,top-k", "--seeds", "1"]
    command += ["--rounds", "20000", "--ratio", "0.02", "--skew-ratio", "20", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and len(list(tmp_path.glob("out/*/metrics.jsonl"))) < 2:
        pass
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on from" in said
    assert "Traceback" not in said


def test_compare_takes_the_task_of_its_configuration_and_a_flag_replaces_its_budget(tmp_path):
    (tmp_path / "run.toml").write_text(
        'task = "logistic@digits"\nrounds = 2\nworkers = 2\nskew_ratio = 2.0\nratio = 0.05\n'
    )
    arguments = ("--methods", "top-k", "--seeds", 1, "--jobs", 1, "--budget-bytes", 300, "--output", tmp_path / "out")
    told = json.loads(run("compare", "--config", tmp_path / "run.toml", *arguments, "--json").stdout)
    assert told["task"] == "logistic@digits"
    assert told["methods"][0]["bytes_up"] <= 2 * 300


def test_plan_takes_many_sizes_any_name_and_rounds_parameters(tmp_path):
    assert len(json.loads(run("plan", "--sizes", ",".join(["5000"] * 80), "--json").stdout)["clients"]) == 80
    (tmp_path / "clients.csv").write_text("client,size\n[/x],5\n[red]b,3\n", encoding="utf-8-sig")
    printed = run("plan", "--sizes", tmp_path / "clients.csv", "--parameters", "4.1M").stdout
    assert "[/x]" in printed
    assert "[red]b" in printed
    assert "4,100,000 parameters" in printed


def test_plan(tmp_path):
    (tmp_path / "clients.csv").write_text("client,size\nharbour,5000\nvillage,200\nbuoy,10\n")
    arguments = (
        "plan",
        "--sizes",
        tmp_path / "clients.csv",
        "--parameters",
        "11.2M",
        "--uplink",
        "8.4Mb/s",
        "--ratio",
        0.001,
    )
    told = json.loads(run(*arguments, "--json").stdout)
    assert [client["client"] for client in told["clients"]] == ["harbour", "village", "buoy"]
    assert sum(client["entries"] for client in told["clients"]) == 33_600
    assert told["worth_it"] is True
    dense = told["methods"]["none"]
    assert dense["seconds_a_round"] == pytest.approx(11.2e6 * 32 / 8.4e6, rel=0.001)
    assert told["methods"]["dagc-r"]["bytes_a_round"] < dense["bytes_a_round"] / 500
    assert "worth it" in run(*arguments).stdout
    equal = run("plan", "--sizes", "10,10,10")
    assert "hardly worth it" in equal.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--sizes", "5,x"], "size 'x'"),
        (["--sizes", "5,-3"], "weight -3"),
        (["--sizes", "missing.csv"], r"missing\.csv cannot be read"),
        (["--sizes", "5,3", "--parameters", "many"], "'many': write a number"),
        (["--sizes", "5,3", "--uplink", "fast"], "'fast': write a number"),
        (["--sizes", "5,3", "--uplink", "0"], "--uplink is 0: it must be above 0"),
        (["--sizes", "5,3", "--seconds", "-5"], "--seconds is -5.0: it must be 0 or more"),
        (["--sizes", "5,3", "--parameters", "1e30"], r"at most 2\^48"),
        (["--sizes", "5,3", "--ratio", "3"], "not 3"),
        (["--sizes", "5,3", "--method", "dagc-a"], "cannot be planned"),
    ],
)
def test_plan_refuses_bad_input(arguments, says):
    with pytest.raises(InvalidInput, match=says):
        run("plan", *arguments)


def test_a_rate_is_a_budget_for_all_methods_that_take_bytes():
    base = {"task": "logistic@digits", "rounds": 5}
    configs = comparison_configs(base, ["dagc-r", "dagc-global", "none"], [0], {"budget_rate": "300/round"})
    assert [(c.method, c.budget_rate) for c in configs] == [
        ("dagc-r", "300/round"),
        ("dagc-global", "300/round"),
        ("none", None),
    ]
    hourly = {"budget_rate": "1 MB/hour", "budget_bytes": 300}
    assert comparison_configs(base, ["top-k"], [0], hourly)[0].budget_bytes == 300
    with pytest.raises(InvalidInput, match="none and accordion take none"):
        comparison_configs(base, ["accordion"], [0], {"budget_rate": "300/round"})
