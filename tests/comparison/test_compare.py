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
from dagc.cli.compare import print_comparison as table
from dagc.comparison import comparison_fields, run_all, split_methods, tune
from dagc.comparison.tuning import best_of
from dagc.folder import finished as finished_run
from dagc.report import comparison, panels_of, read_run, read_runs
from dagc.training import Config, read_metrics, train

BASE = {"task": "logistic@digits", "rounds": 12, "evaluate_every": 3, "skew_ratio": 20}


def configs_of(settings, methods, seeds):
    """A configuration for every line of a comparison and every seed."""
    return [Config(**{**fields, "seed": seed}) for (fields,) in comparison_fields(settings, methods) for seed in seeds]


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
    same = [json.loads((path / "clients.json").read_text())["labels"] for path in paths]
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


@pytest.mark.parametrize(
    ("methods", "settings", "says"),
    [
        (["dagc-r", "dagc-a"], {"ratio": 0.1}, "'dagc-a' needs a budget: give threshold, e.g. threshold 0.05"),
        (["best"], {"ratio": 0.1}, "'best': choose one of"),
        (["top_k"], {"ratio": 0.1}, "it is called top-k"),
        (["accordion"], {"rate": "3 kB/training"}, "'accordion' needs a budget: give ratio or threshold"),
        (["dagc-r", "none"], {"ratio": 0.1, "bytes": 5}, "give one budget, not ratio and bytes"),
        (["accordion", "none"], {"ratio": 0.1, "overhead": 0.1}, "none of the methods accordion, none takes overhead"),
        (["dagc-a", "none"], {"threshold": 0.1, "caps": {"3": 0.1}}, "takes caps"),
        (["top-k"], {"ratio": 0.1, "exponent": 0.0}, "takes exponent 0.0"),
        (["top-k", "accordion"], {"ratio": 0.1, "options": {"interval": 3, "sped": 1}}, "takes options sped"),
        (["stc", "none"], {"ratio": 0.1, "values": "int8"}, "none of the methods stc, none takes values int8"),
        (["dagc-r", "accordion"], {}, "'accordion' needs a budget: give ratio or threshold"),
        (["top-k", "top-k"], {"ratio": 0.1}, "'top-k' is named twice"),
        (["top-k", "top-k:frames=compact"], {"ratio": 0.1}, "'top-k:frames=compact' is the same as 'top-k'"),
        (["top-k:frame=raw"], {"ratio": 0.1}, "no setting of a variant 'frame': did you mean 'frames'"),
        (["top-k:clients=3"], {"ratio": 0.1}, "no setting of a variant 'clients'"),
        (["top-k:raw"], {"ratio": 0.1}, "'raw' is not key=value: write e.g. top-k:values=int8"),
        (["top-k:caps={3"], {"ratio": 0.1}, "caps is '{3': write JSON"),
        (["none:overhead=0.1"], {}, "clients of method 'none' cannot wait"),
        (["top-k"], {"ratio": 0.1, "clients": [2, 3]}, "no setting with several values 'clients'"),
        (
            ["dagc", "dagc-a", "none"],
            {"threshold": 0.1},
            "'dagc' does not take threshold: leave it out, or .* dagc:ratio=",
        ),
        (["none"], {"ratio": 0.1}, "none of the methods none takes ratio 0.1: leave it out"),
    ],
)
def test_a_comparison_that_cannot_work_is_refused(methods, settings, says):
    with pytest.raises(InvalidInput, match=says):
        configs_of({**BASE, **settings}, methods, [0])


def test_every_method_gets_the_budget_and_the_settings_that_it_takes():
    settings = {"rate": "3 kB/training", "threshold": 0.1, "overhead": 0.125, "down": "same", "caps": {"3": 0.1}}
    settings |= {"exponent": 0.0, "options": {"interval": 3}, "values": "sign"}
    methods = ["dagc-r", "power", "accordion", "dagc-a", "none"]
    fields = ("rate", "threshold", "overhead", "down", "caps", "exponent", "options", "values")
    found = configs_of({**BASE, **settings}, methods, [0])
    assert {config.method: [getattr(config, name) for name in fields] for config in found} == {
        "dagc-r": ["3 kB/training", None, 0.125, "same", {"3": 0.1}, None, {}, "sign"],
        "power": ["3 kB/training", None, 0.125, "same", {"3": 0.1}, 0.0, {}, "sign"],
        "accordion": [None, 0.1, None, None, {}, None, {"interval": 3}, "sign"],
        "dagc-a": [None, 0.1, None, None, {}, None, {}, "sign"],
        "none": [None, None, None, None, {}, None, {}, "fp32"],  # no compression stays what it is
    }
    (stc,) = configs_of({**BASE, "ratio": 0.1, "values": "fp32"}, ["stc"], [0])
    assert (stc.values, stc.frames) == ("sign", "compact")  # what a run's config.toml holds anyway changes nothing
    budgets = {"rate": "1 MB/hour", "bytes": 300, "threshold": 0.1}
    hourly = configs_of({**BASE, **budgets}, ["top-k", "accordion", "none"], [0])
    assert [(c.rate, c.bytes, c.threshold) for c in hourly] == [
        ("1 MB/hour", 300, None),
        (None, None, 0.1),
        (None, None, None),
    ]


def test_a_variant_has_settings_of_its_own():
    assert split_methods('dagc-r, top-k:caps={"3": 0.1, "4": 0.2},values=int8,none') == [
        "dagc-r",
        'top-k:caps={"3": 0.1, "4": 0.2},values=int8',
        "none",
    ]
    settings = {**BASE, "ratio": 0.02, "overhead": 0.1, "local_steps": 5, "server_rate": 0.5}
    methods = ["top-k", "top-k:values=int8,learning-rate=0.2", "top-k:bytes=40", "stc:values=int8", "none:values=int8"]
    methods += ["none:local_steps=1,rounds=30", "none:epochs=2", 'accordion:options={"interval": 3, "change": 0.1}']
    found = configs_of(settings, methods, [7])
    fields = ("method", "frames", "learning_rate", "ratio", "bytes", "overhead", "values", "local_steps", "epochs")
    assert [tuple(getattr(config, name) for name in fields) for config in found] == [
        ("top-k", "compact", 0.1, 0.02, None, 0.1, "fp32", 5, None),
        ("top-k", "compact", 0.2, 0.02, None, 0.1, "int8", 5, None),
        ("top-k", "compact", 0.1, None, 40, 0.1, "fp32", 5, None),
        ("stc", "compact", 0.1, 0.02, None, None, "int8", 5, None),
        ("none", "compact", 0.1, None, None, None, "int8", 5, None),
        ("none", "compact", 0.1, None, None, None, "fp32", 1, None),
        ("none", "compact", 0.1, None, None, None, "fp32", 1, 2.0),
        ("accordion", "compact", 0.1, 0.02, None, None, "fp32", 5, None),
    ]
    assert [config.server_rate for config in found] == [*[0.5] * 5, None, 0.5, 0.5]
    assert [config.rounds for config in found] == [*[12] * 5, 30, 12, 12]
    assert found[-1].options == {"interval": 3, "change": 0.1}


def test_several_values_are_a_line_each_for_those_who_take_them():
    settings = {**BASE, "ratio": [0.01, 0.02], "learning_rate": ["0.1", "0.2"]}
    found = configs_of(settings, ["top-k", "none", "stc:ratio=0.1"], [0, 1])
    ways = [(config.method, config.ratio, config.learning_rate) for config in found if config.seed == 0]
    assert ways == [
        ("top-k", 0.01, 0.1),
        ("top-k", 0.01, 0.2),
        ("top-k", 0.02, 0.1),
        ("top-k", 0.02, 0.2),
        ("none", None, 0.1),
        ("none", None, 0.2),
        ("stc", 0.1, 0.1),
        ("stc", 0.1, 0.2),
    ]
    assert len(found) == 16


def test_candidates_to_choose_from():
    settings = {**BASE, "ratio": [0.01, 0.02]}
    grid = {"learning_rate": ["0.1", "0.2"], "local_steps": ["1", "5"]}
    methods = ["top-k", "none:learning_rate=0.5", "stc:learning_rate=0.5,local_steps=5"]
    ways = comparison_fields(settings, methods, grid)
    assert [[(way["learning_rate"], way["local_steps"]) for way in candidates] for candidates in ways] == [
        *[[("0.1", "1"), ("0.1", "5"), ("0.2", "1"), ("0.2", "5")]] * 2,
        [("0.5", "1"), ("0.5", "5")],
        *[[("0.5", "5")]] * 2,
    ]
    with pytest.raises(InvalidInput, match="no tunable setting 'learning_rat': did you mean 'learning_rate'"):
        comparison_fields(settings, ["top-k"], {"learning_rat": [0.1]})


def test_tuning_chooses_for_each_way_and_does_it_once(tmp_path, monkeypatch):
    settings = {**BASE, "task": "mlp@digits", "rounds": 6, "evaluate_every": 1, "ratio": 0.05}
    grid = {"learning_rate": [0.001, 0.3, 1e30]}
    ways = comparison_fields(settings, ["top-k", "none", "stc:learning_rate=0.1"], grid)
    by_bytes = tune(ways, ["learning_rate"], [1000, 1001], 0.5, tmp_path / "bytes", jobs=2)
    assert [choice.chosen for choice in by_bytes] == [{"learning_rate": 0.3}, {"learning_rate": 0.3}, {}]
    assert [choice.by for choice in by_bytes[:2]] == ["bytes_total", "bytes_total"]
    assert [choice.at_the_edge for choice in by_bytes] == [[], [], []]
    low, good, wild = by_bytes[1].tried
    assert (low["bytes_total"], wild["bytes_total"], wild["score"]) == (None, None, None)
    assert low["score"] < good["score"]
    runs = [read_run(path) for path in sorted((tmp_path / "bytes" / "tuning").glob("none-*")) if finished_run(path)]
    mine = [run for run in runs if run.settings["learning_rate"] == 0.3]
    assert sorted(run.seed for run in mine) == [1000, 1001]
    firsts = [next(row for row in run.rows if row["score"] >= 0.5) for run in mine]
    assert good["bytes_total"] == sum(row["bytes_up"] + row["bytes_down"] for row in firsts) / 2
    with pytest.raises(InvalidInput, match="holds no run"):
        read_runs([tmp_path / "bytes"])  # what was only tried is no result

    monkeypatch.setattr("dagc.comparison.tuning.run_all", lambda *_, **__: pytest.fail("it is done already"))
    assert tune(ways, ["learning_rate"], [1000, 1001], 0.5, tmp_path / "bytes", jobs=2) == by_bytes
    with pytest.raises(pytest.fail.Exception, match="done already"):  # another target is another question
        tune(ways, ["learning_rate"], [1000, 1001], 0.6, tmp_path / "bytes", jobs=2)


def test_tuning_without_a_target_or_one_that_nobody_reaches_is_by_accuracy(tmp_path):
    settings = {**BASE, "rounds": 4, "evaluate_every": 1, "ratio": 0.05}
    ways = comparison_fields(settings, ["top-k"], {"learning_rate": [0.001, 0.3]})
    for target in (None, 1.0):
        (choice,) = tune(ways, ["learning_rate"], [1000], target, tmp_path / str(target), jobs=2)
        assert (choice.chosen, choice.by, choice.at_the_edge) == ({"learning_rate": 0.3}, "score", ["learning_rate"])


def test_of_two_that_need_as_many_bytes_the_higher_accuracy_is_chosen():
    tried = [
        {"learning_rate": rate, "bytes_total": need, "reached": 2, "score": accuracy}
        for rate, need, accuracy in ((0.1, 9e6, 0.75), (0.2, 9e6, 0.76), (0.5, 9.1e6, 0.8))
    ]
    assert best_of(tried, ["learning_rate"]).chosen == best_of(tried[::-1], ["learning_rate"]).chosen
    assert best_of(tried, ["learning_rate"]).chosen == {"learning_rate": 0.2}


def test_if_everything_diverges_tuning_says_so(tmp_path):
    ways = comparison_fields({**BASE, "task": "mlp@digits"}, ["none"], {"learning_rate": [1e29, 1e30]})
    with pytest.raises(InvalidInput, match="every candidate of learning_rate diverged: try smaller"):
        tune(ways, ["learning_rate"], [1000], None, tmp_path, jobs=1)


def test_compare_tunes_sweeps_and_takes_variants_on_the_command_line(tmp_path):
    arguments = ["compare", "logistic@digits", "--methods", "top-k,top-k:values=int8,none", "--seeds", 2, "--rounds", 6]
    arguments += ["--ratio", "0.02,0.05", "--skew-ratio", 20, "--target", 0.3, "--evaluate-every", 1]
    arguments += ["--tune", "learning-rate=0.001,0.1,0.2", "--tune-seeds", 1, "--output", tmp_path / "out"]
    found = json.loads(run(*arguments, "--json").stdout)
    labels = [row["label"] for row in found["methods"]]
    assert len(labels) == 5
    assert labels[-1] == "none"
    assert all(label.startswith("top-k, ratio ") for label in labels[:-1])
    assert sum("values int8" in label for label in labels) == 2
    assert found["tuned"]["seeds"] == [1000]
    rates = [way["chosen"]["learning_rate"] for way in found["tuned"]["ways"]]
    used = [read_run(path).settings for path in (tmp_path / "out").glob("*-seed0-*")]
    assert sorted(rates) == sorted(settings["learning_rate"] for settings in used)
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["tuned"] == found["tuned"]
    said = run(*arguments).stdout
    assert "tuned on seed 1000 by total bytes to 30 %. top-k, ratio 2 %, " in said
    assert "none: learning rate 0." in said
    assert "tuned on seed 1000" in (tmp_path / "out" / "report.html").read_text()
    (panel,) = panels_of(read_runs([tmp_path / "out"]))
    assert [len(series.runs) for series in panel.series] == [2] * 5


def test_compare_asks_for_a_budget_and_for_values_that_can_be(tmp_path):
    with pytest.raises(InvalidInput, match="'dagc-a' needs a budget: give threshold"):
        run("compare", "logistic@digits", "--methods", "dagc,dagc-a")
    with pytest.raises(InvalidInput, match=r"--ratio is '0\.1,,0\.2': write different values, separated by commas"):
        run("compare", "logistic@digits", "--ratio", "0.1,,0.2")
    with pytest.raises(InvalidInput, match="ratio is 'much': it must be a number above 0 and at most 1"):
        run("compare", "logistic@digits", "--ratio", "much")
    with pytest.raises(InvalidInput, match="--tune is 'learning-rate': write a setting and values"):
        run("compare", "logistic@digits", "--ratio", 0.1, "--tune", "learning-rate")


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
    assert (tmp_path / "out" / "comparison.json").exists()
    assert (tmp_path / "out" / "curves.csv").exists()


@pytest.mark.parametrize("target", [0.785, 1.0])
def test_the_table_fits_a_terminal_and_counts_both_ways(monkeypatch, capsys, target):
    monkeypatch.setenv("COLUMNS", "80")

    def row(method, up, down, rounds=12_345.0, seconds=123_456.7):
        traffic = {"bytes_up": up, "bytes_down": down, "bytes_total": None if up is None else up + down}
        goal = {"score": target, "reached": 2, "rounds": rounds, "seconds": seconds, **traffic}
        return {
            "method": method,
            "label": method,
            "seeds": 4,
            "final_score": 0.8312,
            "final_score_sd": 0.0123,
            "to_target": goal,
        }

    methods = [row("hard-threshold", 999e3, 999e3), row("dagc-r", 111e3, 222e3), row("none", 999e6, 999e6)]
    methods.append(row("a-method-of-somebody-else", None, None, None, None))
    table({"task": "logistic@digits", "rounds": 20_000, "target": target, "methods": methods}, {"ratio": 0.001})
    said = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert lines[0].endswith(f"until {100 * target:g} % accuracy:")
    assert lines[1] == "method final, % rounds up down total × best seconds"
    assert "dagc-r 83.1 ± 1.2 12,345 111 kB 222 kB 333 kB 1.0 123,457" in lines
    assert "none 83.1 ± 1.2 12,345 999 MB 999 MB 2.00 GB 6,000 123,457" in lines
    assert any(line.endswith("83.1 ± 1.2 2 of 4") for line in lines)


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
    assert f"the same command continues, or: dagc resume {tmp_path / 'out'}" in said
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
    assert said.splitlines() == [f"stopped; the same command continues, or: dagc resume {tmp_path / 'out'}"]


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
    resumed = json.loads(run("resume", folder, "--json", "--jobs", 1).stdout)
    again = json.loads(run(*small, "--output", folder, "--json").stdout)
    assert resumed == again
    assert resumed["target"] == 0.01
    page = (folder / "report.html").read_bytes()
    with pytest.raises(InvalidInput, match=r"holds another comparison \(.*\): choose another --output"):
        run(*small, "--seeds", 2, "--output", folder)
    with pytest.raises(InvalidInput, match="holds a comparison, not a run"):
        run("run", "logistic@digits", "--ratio", 0.1, "--output", folder)
    with pytest.raises(InvalidInput, match="holds a run, not a comparison"):
        run(*small, "--output", next(path.parent for path in folder.glob("*/config.toml")))
    with pytest.raises(InvalidInput, match="leave --tensorboard out"):
        run("resume", folder, "--tensorboard")
    assert (folder / "report.html").read_bytes() == page
    found = run("report", tmp_path, "--output", tmp_path / "report", "--no-figures").stdout
    assert "top-k" in found
    with pytest.raises(InvalidInput, match="--jobs is for comparisons"):
        run("resume", next(path.parent for path in folder.glob("*/config.toml")), "--jobs", 1)
    for damaged, says in (
        ("{", "cannot be read"),
        ('{"version": 9}', "by a newer version of dagc"),
        ("[]", "cannot be read"),
    ):
        (folder / "compare.json").write_text(damaged)
        for arguments in (["resume", folder], [*small, "--output", folder]):
            with pytest.raises(InvalidInput, match=says):
                run(*arguments)
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
        (["--tune", "learning-rate=0.1,0.2", "--tune", "learning-rate=0.3"], "--tune learning-rate is given twice"),
        (
            ["--tune", "learning-rate=0.1,0.2", "--learning-rate", "0.3"],
            "--learning-rate is given, but --tune chooses it",
        ),
    ],
)
def test_flags_that_contradict_are_refused(flags, says):
    with pytest.raises(InvalidInput, match=says):
        run("compare", "logistic@digits", *flags)


def test_what_a_file_says_is_replaced_by_what_is_tuned(tmp_path):
    """A run's own config.toml has every setting."""
    train(Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=4), tmp_path / "run")
    flags = ["--config", tmp_path / "run" / "config.toml", "--methods", "dagc-r", "--seeds", 1, "--tune-seeds", 1]
    done = run("compare", *flags, "--tune", "learning-rate=0.1,0.2", "--jobs", 1, "--output", tmp_path / "both")
    assert done.exit_code == 0
    assert "tuned on seed 1000" in done.stdout


def test_a_comparison_uses_the_clients_that_the_data_names(tmp_path, monkeypatch):
    rows = [f"{number % 7},{number % 5},{'north' if number % 3 else 'south'},{number % 2}" for number in range(90)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,client,label", *rows]))
    (config,) = configs_of({"task": f"logistic@{tmp_path / 'table.csv'}", "rounds": 2}, ["dagc"], [0])
    (path,) = run_all([config], tmp_path / "runs", jobs=1)
    assert read_run(path).clients["names"] == ["north", "south"]
