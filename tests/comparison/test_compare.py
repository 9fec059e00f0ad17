"""compare: the same for all, what is finished is not done again, JSON as promised."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagc import InvalidInput
from dagc.cli import app
from dagc.cli.terminal import print_panels
from dagc.comparison import comparison_fields, run_all
from dagc.report import Panel, Series, comparison, panels_of, read_run, read_runs
from dagc.training import Config, read_metrics
from tests.report.runs import made

BASE = {"task": "logistic@digits", "rounds": 12, "evaluate_every": 3, "skew_ratio": 20}


def configs_of(settings, methods, seeds):
    """A configuration for every line of a comparison and every seed."""
    return [Config(**{**fields, "seed": seed}) for fields in comparison_fields(settings, methods) for seed in seeds]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    settings = {**BASE, "ratio": 0.02, "threshold": 0.02}
    configs = configs_of(settings, ["dagc-r", "hard-threshold", "none"], [0, 1])
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
    same = [json.loads((path / "clients.json").read_text())["sizes"] for path in paths]
    assert same[0] == same[2] == same[4] != same[1]


def test_what_came_of_it(finished):
    configs, paths, _ = finished
    (panel,) = panels_of(map(read_run, paths), (0.5,))
    result = comparison(panel)
    assert [row["method"] for row in result["methods"]] == ["dagc-r", "hard-threshold", "none"]
    for row in result["methods"]:
        mine = [
            read_metrics(path) for config, path in zip(configs, paths, strict=True) if config.method == row["method"]
        ]
        ends = [[line["score"] for line in lines if "score" in line][-1] for lines in mine]
        assert row["final_score"] == pytest.approx(sum(ends) / 2)
        assert row["final_score_sd"] == pytest.approx(abs(ends[0] - ends[1]) / 2**0.5)
        firsts = [next(line for line in lines if line.get("score", 0) >= 0.5) for lines in mine]
        found = row["to_target"]
        assert found["reached"] == 2
        assert found["rounds"] == sum(line["round"] for line in firsts) / 2
        assert found["bytes_up"] == sum(line["bytes_up"] for line in firsts) / 2
        assert found["bytes_down"] == sum(line["bytes_down"] for line in firsts) / 2
        assert found["bytes_total"] == found["bytes_up"] + found["bytes_down"]
        assert found["seconds"] == pytest.approx(sum(line["seconds"] for line in firsts) / 2)
    (never,) = panels_of(map(read_run, paths), (1.0,))
    assert comparison(never)["methods"][0]["to_target"]["bytes_up"] is None


def test_what_is_finished_is_not_done_again(finished):
    configs, paths, folder = finished
    before = [(path / "result.json").stat().st_mtime_ns for path in paths]
    seen = []
    assert run_all(configs, folder, jobs=2, progress=lambda number, done: seen.append((number, done))) == paths
    assert [(path / "result.json").stat().st_mtime_ns for path in paths] == before
    assert seen == [(number, 12) for number in range(6)]


def test_compare_asks_for_a_budget_and_for_values_that_can_be(tmp_path):
    with pytest.raises(InvalidInput, match="'dagc-a' needs a budget: give threshold"):
        run("compare", "logistic@digits", "--methods", "dagc,dagc-a")
    with pytest.raises(InvalidInput, match=r"--ratio is '0\.1,,0\.2': write different values, separated by commas"):
        run("compare", "logistic@digits", "--ratio", "0.1,,0.2")
    with pytest.raises(InvalidInput, match="ratio is 'much': it must be a number above 0 and at most 1"):
        run("compare", "logistic@digits", "--ratio", "much")


def test_compare_from_the_command_line(tmp_path):
    arguments = ("compare", "logistic@digits", "--methods", "dagc-r,none", "--seeds", 2, "--rounds", 6, "--ratio", 0.02)
    result = run(*arguments, "--skew-ratio", 20, "--output", tmp_path / "out", "--json")
    found = json.loads(result.stdout)
    assert [row["method"] for row in found["methods"]] == ["dagc-r", "none"]
    keys = {"final_score", "final_score_sd", "best_score", "bytes_up", "bytes_down", "to_target"}
    assert all(keys <= set(row) for row in found["methods"])
    assert found["methods"][1]["bytes_up"] > 20 * found["methods"][0]["bytes_up"]
    assert found["methods"][0]["bytes_total"] == sum(found["methods"][0][f"bytes_{way}"] for way in ("up", "down"))
    again = run(*arguments, "--skew-ratio", 20, "--output", tmp_path / "out")
    assert "±" in again.stdout
    assert "for all clients, is counted" in again.stdout  # six rounds: the first download weighs
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == [found]


def test_compare_sweeps_and_takes_variants_on_the_command_line(tmp_path):
    arguments = ["compare", "logistic@digits", "--methods", "top-k,top-k:values=int8,none", "--seeds", 2, "--rounds", 6]
    arguments += ["--ratio", "0.02,0.05", "--skew-ratio", 20, "--target", 0.3, "--evaluate-every", 1]
    labels = [row["label"] for row in json.loads(run(*arguments, "--output", tmp_path, "--json").stdout)["methods"]]
    assert len(labels) == 5
    assert labels[-1] == "none"
    assert all(label.startswith("top-k, ratio ") for label in labels[:-1])
    assert sum("values int8" in label for label in labels) == 2
    (panel,) = panels_of(read_runs([tmp_path]))
    assert [len(series.runs) for series in panel.series] == [2] * 5


@pytest.mark.parametrize("target", [0.785, 1.0])
def test_the_table_fits_a_terminal_and_counts_both_ways(monkeypatch, capsys, target):
    monkeypatch.setenv("COLUMNS", "80")

    def series(label, step, *scores):
        return Series(label, tuple(made(each, seed=seed, step=step) for seed, each in enumerate(scores)))

    reached, almost = [0.1] * 11 + [target], [0.1] * 11 + [target - 0.05]
    some = series("a-method-of-somebody-else", 10, reached, almost)
    lines = [series("hard-threshold", 83e3, reached), series("dagc-r", 9250, reached, reached), some]
    print_panels([Panel("logistic@digits, 20,000 rounds", (*lines, series("none", 83e6, reached)), (target,))])
    said = capsys.readouterr().out.partition("To reach")[0].partition("a-method-of-somebody-else ends")[0]
    rows = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    end = f"{100 * target:.1f}"
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert rows[0] == f"logistic@digits, 20,000 rounds; until {100 * target:g} % accuracy:"
    assert rows[1] == "method final, % rounds up down total × best seconds"
    assert f"dagc-r {end} ± 0.0 12 111 kB 222 kB 333 kB 1.0 1.2" in rows
    assert f"none {end} 12 996 MB 1.99 GB 2.99 GB 8,973 1.2" in rows
    assert any(row.endswith("1 of 2") for row in rows)


def test_ctrl_c_stops_all_runs_with_a_checkpoint_and_the_command_goes_on(tmp_path):
    command = [sys.executable, "-m", "dagc", "compare", "logistic@digits", "--methods", "dagc-r,top-k", "--seeds", "1"]
    command += ["--rounds", "20000", "--ratio", "0.02", "--skew-ratio", "20", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and len(list(tmp_path.glob("out/*/metrics.jsonl"))) < 2:
        pass
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert f"the same command continues from {tmp_path / 'out'}" in said
    assert "Traceback" not in said


@pytest.mark.skipif(not os.path.exists("/proc"), reason="looks for the processes of the runs in /proc")
def test_ctrl_c_while_the_runs_start_up_is_one_line(tmp_path):
    command = [sys.executable, "-m", "dagc", "compare", "logistic@digits", "--methods", "dagc-r,top-k", "--seeds", "2"]
    command += ["--rounds", "200000", "--ratio", "0.02", "--jobs", "2", "--output", str(tmp_path / "out")]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while process.poll() is None and "spawn_main" not in children(process.pid):
        pass
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert said.splitlines() == [f"stopped; the same command continues from {tmp_path / 'out'}"]


def children(parent):
    """The command lines of a process's children."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{child}/cmdline").read_text())
    return " ".join(found)


def test_another_comparison_has_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "compare",
        "logistic@digits",
        "--methods",
        "none",
        "--seeds",
        1,
        "--rounds",
        1,
        "--jobs",
        1,
        "--clients",
    ]
    for clients in (2, 3):
        run(*arguments, clients)
    assert len(list(tmp_path.glob("runs/compare-logistic@digits-*/report.html"))) == 2


def test_a_comparison_is_resumed_and_never_overwrites_another(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    arguments = ["compare", "logistic@digits", "--methods", "top-k,none", "--ratio", 0.1, "--rounds", 3, "--jobs", 1]
    small = [*arguments, "--seeds", 1, "--clients", 2, "--skew-ratio", 2, "--target", 0.01]

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["dagc.cli.compare"], "run_all", stopped)
        assert run(*small, "--output", folder).exit_code != 0
    assert not (folder / "report.html").exists()
    assert (folder / "compare.json").exists()
    assert json.loads(run(*small, "--output", folder, "--json").stdout)["target"] == 0.01
    page = (folder / "report.html").read_bytes()
    with pytest.raises(InvalidInput, match=r"holds another comparison \(.*\): choose another --output"):
        run(*small, "--seeds", 2, "--output", folder)
    with pytest.raises(InvalidInput, match="holds a comparison, not a run"):
        run("run", "logistic@digits", "--ratio", 0.1, "--output", folder)
    with pytest.raises(InvalidInput, match="holds a run, not a comparison"):
        run(*small, "--output", next(path.parent for path in folder.glob("*/config.toml")))
    with pytest.raises(InvalidInput, match="holds a comparison: repeat its command"):
        run("resume", folder)
    assert (folder / "report.html").read_bytes() == page
    found = run("report", tmp_path, "--output", tmp_path / "report").stdout
    assert "top-k" in found
    for damaged in ("{", "{}", "[]"):
        (folder / "compare.json").write_text(damaged)
        with pytest.raises(InvalidInput, match="cannot be read"):
            run(*small, "--output", folder)
    assert (folder / "report.html").read_bytes() == page


def test_compare_takes_the_task_of_its_configuration_and_a_flag_replaces_its_budget(tmp_path):
    (tmp_path / "run.toml").write_text(
        'task = "logistic@digits"\nrounds = 2\nclients = 2\nskew_ratio = 2.0\nratio = 0.05\n'
    )
    arguments = ("--methods", "top-k", "--seeds", 1, "--jobs", 1, "--bytes", 150, "--output", tmp_path / "out")
    found = json.loads(run("compare", "--config", tmp_path / "run.toml", *arguments, "--json").stdout)
    assert found["task"] == "logistic@digits"
    assert found["methods"][0]["bytes_up"] <= 2 * 2 * 150


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--target", "85"], "target is 85.0: give a score of at most 1"),
        (["--target", "nan"], "target is nan: give a score of at most 1"),
    ],
)
def test_an_impossible_target_is_refused(flags, says):
    with pytest.raises(InvalidInput, match=says):
        run("compare", "logistic@digits", *flags)


def test_a_comparison_uses_the_clients_that_the_data_names(tmp_path, monkeypatch):
    rows = [f"{number % 7},{number % 5},{'north' if number % 3 else 'south'},{number % 2}" for number in range(90)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,client,label", *rows]))
    (config,) = configs_of({"task": f"logistic@{tmp_path / 'table.csv'}", "rounds": 2}, ["dagc"], [0])
    (path,) = run_all([config], tmp_path / "runs", jobs=1)
    assert read_run(path).clients["names"] == ["north", "south"]
