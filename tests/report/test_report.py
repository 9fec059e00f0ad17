"""Reports hold what the runs hold: read from their folders, shown on a page that needs nothing else."""

import json
import re
import shlex
import shutil

import pytest
from typer.testing import CliRunner

from dagc.cli import app
from dagc.errors import InvalidInput
from dagc.folder import to_toml
from dagc.report import (
    Panel,
    Series,
    comparison,
    find_runs,
    notes,
    panels_of,
    read_run,
    read_runs,
    write_report,
)
from dagc.report.page import page, run_command
from dagc.text import in_bytes
from dagc.training import Config, iterate, train
from tests.report.runs import data_of, flower, made, two_series


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, two seeds, on the bundled digits."""
    folder = tmp_path_factory.mktemp("runs")
    for method, budget in (("none", {}), ("top-k", {"ratio": 0.02}), ("dagc-r", {"ratio": 0.02})):
        for seed in (0, 1):
            config = Config(task="logistic@digits", method=method, rounds=12, seed=seed, evaluate_every=3, **budget)
            train(config, folder / f"{method}-{seed}")
    return folder


def test_runs_that_differ_in_the_seed_become_one_series(runs):
    (panel,) = panels_of(map(read_run, find_runs([runs])))
    assert [series.label for series in panel.series] == ["dagc-r", "top-k", "none"]  # ours first, dense last
    assert all([run.seed for run in series.runs] == [0, 1] for series in panel.series)
    assert panel.title == "logistic@digits, 10 clients, skew ratio 100, 12 rounds"
    assert data_of(page([panel], "t", "c"))["panels"][0]["names"] == list("0123456789")


def test_a_run_of_flower_is_shown_with_what_is_known_about_it():
    (panel,) = panels_of([flower([0.5, 0.6])])
    assert panel.title == "digits, 2 clients, 2 rounds"
    text = page([panel], "t", "dagc report runs")
    assert "dagc run" not in text
    assert "skew" not in text
    assert "(seed" not in text.split("<script")[0]
    assert "the command that runs it alone" not in text
    assert "engine = &quot;flower&quot;" in text
    data = data_of(text)["panels"][0]
    assert data["names"] == ["harbour", "<buoy>"]
    assert data["seed"] is None
    assert data["series"][0]["shares"] == {"kind": "ratio", "of": "entries", "values": []}


def test_the_page_is_whole_and_cannot_be_broken_by_names(runs):
    panel = two_series()
    series = (*panel.series, Series("</script><b>dog", panel.series[0].runs))
    evil = Panel("<img src=x onerror=alert(1)>", series, notes=("</script><script>alert(2)",))
    text = page([evil], "a <title>", "dagc 'x' & y")
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2
    data = data_of(text)
    assert data["panels"][0]["title"] == evil.title
    assert data["panels"][0]["series"][2]["label"] == "</script><b>dog"
    real = page(panels_of(map(read_run, find_runs([runs]))), "t", "c")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", real)
    assert "@import" not in real
    assert len(real.encode()) < 200_000
    assert "the command that runs it alone" in real
    assert "$" not in re.sub(r"<script.*?</script>", "", real, flags=re.S)  # every place was filled


def test_whether_the_first_model_is_counted_is_always_noted(runs):
    (panel,) = panels_of(map(read_run, find_runs([runs])))
    first = panel.series[0].runs[0].first_download
    with (runs / "dagc-r-0" / "metrics.jsonl").open() as file:
        assert first == json.loads(file.readline())["down"] > 10 * 4 * 650  # ten clients, 650 entries and a header
    assert notes([panel]) == [f"the first model, {in_bytes(first)} for all clients, is counted"]  # once for all
    drawn = Series("drawn", (made([0.5], first_model="drawn"),))
    assert notes([Panel("p", (drawn,))]) == [
        "the first model is not counted: each client draws it from the seed and downloads nothing"
    ]
    some = Series("some", (made([0.5], participation=0.5),))
    assert [note.partition(" the first")[0] for note in notes([Panel("p", (drawn, some))])] == ["drawn:", "some:"]
    more = Series("more", drawn.runs)
    assert notes([Panel("p", (drawn, some, more))])[0].startswith("drawn and more: the first model is not counted")


def test_a_ratio_of_bytes_is_shown_as_one():
    panel = Panel("p", (Series("ours", (made([0.5], method="dagc"),)), Series("theirs", (made([0.5]),))))
    ours, theirs = (each["shares"] for each in data_of(page([panel], "t", "c"))["panels"][0]["series"])
    assert ours == {"kind": "ratio", "of": "bytes", "values": [9 / 4000, 1 / 4000]}
    assert theirs == {"kind": "ratio", "of": "entries", "values": [9 / 1000, 1 / 1000]}


@pytest.mark.parametrize("fields", [{"first_model": "drawn"}, {"participation": 0.5}, {"failures": 0.9}])
def test_a_first_download_is_known_only_where_everybody_has_one(tmp_path, fields):
    config = Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=2, evaluate_every=1, **fields)
    train(config, tmp_path / "run")
    assert read_run(tmp_path / "run").first_download is None


def test_the_command_repeats_the_run(runs):
    settings = read_run(runs / "top-k-1").settings
    assert run_command(settings) == (
        "dagc run logistic@digits --rounds 12 --evaluate-every 3 --method top-k --ratio 0.02 --seed 1"
    )


def test_the_command_has_every_setting(tmp_path):
    fields = {"bytes": 20, "caps": {"0": 0.5}, "per_tensor": True, "overhead": 0.25, "clients": 3}
    fields |= {"method": "thrifty", "rounds": 2, "optimizer_options": {"momentum": 0.5, "nesterov": True}}
    config = Config(task="logistic@digits", **fields)
    train(config, tmp_path / "one")
    words = shlex.split(run_command(read_run(tmp_path / "one").settings))
    result = CliRunner().invoke(app, [*words[1:], "--output", str(tmp_path / "other"), "--json"])
    assert result.exit_code == 0, result.output
    assert Config.read(tmp_path / "other" / "config.toml") == config


def test_everything_is_written(runs, tmp_path):
    panels = panels_of(map(read_run, find_runs([runs])))
    found = write_report(panels, tmp_path / "new", "t", "c")
    assert found == tmp_path / "new" / "report.html"
    assert json.loads((tmp_path / "new" / "report.json").read_text()) == [comparison(panel) for panel in panels]


def test_the_command(runs, tmp_path):
    result = CliRunner().invoke(app, ["report", str(runs), "--output", str(tmp_path / "r"), "--targets", "0.5"])
    assert result.exit_code == 0, result.output
    assert "To reach 50 % accuracy, ten clients exchanged" in result.output
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"report.html", "report.json"}


def test_runs_are_found_at_any_depth(runs, tmp_path):
    deep = tmp_path / "a" / "b" / "c"
    shutil.copytree(runs / "top-k-0", deep / "one")
    shutil.copytree(runs / "top-k-1", tmp_path / "a" / "two")
    shutil.copytree(runs / "dagc-r-0", deep / "one" / "checkpoints" / "inside a run")
    assert find_runs([tmp_path, deep]) == [deep / "one", tmp_path / "a" / "two"]
    assert find_runs([deep / "one"]) == [deep / "one"]


def test_what_cannot_be_read_is_left_out_with_a_warning_that_names_it(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    young = iterate(Config(task="logistic@digits", method="none", rounds=9, evaluate_every=9), tmp_path / "runs/young")
    next(young)
    young.close()
    with (tmp_path / "runs" / "none-0" / "metrics.jsonl").open("a") as file:
        file.write("not JSON\n")
    with (tmp_path / "runs" / "none-1" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 13, "entries": 1, "bytes_up": "many", "bytes_down": 1, "seconds": 1}\n')
    with pytest.warns(UserWarning, match="left out") as caught:
        found = read_runs([tmp_path / "runs"])
    assert [run.path.name for run in found] == ["dagc-r-0", "dagc-r-1", "top-k-0", "top-k-1"]
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 3
    assert re.search(r"line 13 of .*none-0/metrics\.jsonl is not JSON", messages[0])
    assert re.search(r"line 13 of .*none-1/metrics\.jsonl has 'many' as bytes_up", messages[1])
    assert re.search(r"runs/young has not been evaluated yet: continue it with dagc resume", messages[2])
    with pytest.raises(InvalidInput, match=r"no run can be reported: .*none-0.*; .*young"):
        read_runs([tmp_path / "runs" / "none-0", tmp_path / "runs" / "young"])
    with pytest.raises(InvalidInput, match="young has not been evaluated yet"):
        read_runs([tmp_path / "runs" / "young"])


def test_a_folder_that_cannot_be_written_to_is_one_line(runs, tmp_path):
    (tmp_path / "file").touch()
    panels = panels_of(read_runs([runs]))
    with pytest.raises(InvalidInput, match=r"the report cannot be written to .*file/below: "):
        write_report(panels, tmp_path / "file" / "below", "t", "c")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["."], "holds no run"),
        (["RUNS", "--targets", "75"], "'75'"),
        (["RUNS", "--targets", "x"], "'x'"),
    ],
)
def test_what_cannot_be_reported_is_refused(runs, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    given = [str(runs) if argument == "RUNS" else argument for argument in arguments]
    result = CliRunner().invoke(app, ["report", *given])
    assert isinstance(result.exception, InvalidInput)
    assert words in str(result.exception)


def test_a_run_that_has_not_been_evaluated_is_refused(tmp_path):
    rounds = iterate(Config(task="logistic@digits", method="none", rounds=9, evaluate_every=9), tmp_path / "young")
    next(rounds)
    rounds.close()
    with pytest.raises(InvalidInput, match="not been evaluated yet"):
        read_run(tmp_path / "young")


def test_runs_of_another_machine_can_be_reported(runs, tmp_path):
    there = tmp_path / "there"
    shutil.copytree(runs / "top-k-0", there)
    text = (there / "config.toml").read_text()
    there.joinpath("config.toml").write_text(
        text.replace('"cpu"', '"cuda:3"').replace("logistic@digits", "logistic@/nowhere/own.npz")
    )
    (panel,) = panels_of([read_run(there)])
    assert panel.title.startswith("logistic@/nowhere/own.npz")
    assert "--device cuda:3" in page([panel], "t", "c")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.toml", "{", "config.toml are not valid TOML"),
        ("config.toml", to_toml({"rounds": 3}), "its config.toml has no task, method"),
        ("clients.json", "{", "clients.json cannot be read"),
        ("clients.json", '{"sizes": []}', "clients.json cannot be read"),
        ("clients.json", '{"sizes": [3, -1], "parameters": 7}', "has no sizes or no parameters"),
        ("metrics.jsonl", "[]\n", "line 1"),
        ("metrics.jsonl", "", "has not been evaluated yet"),
    ],
)
def test_a_broken_folder_is_named(runs, tmp_path, name, content, says):
    shutil.copytree(runs / "top-k-0", tmp_path / "broken")
    (tmp_path / "broken" / name).write_text(content)
    with pytest.raises(InvalidInput, match=f"(?s)broken.*{says}|{says}.*broken"):
        read_run(tmp_path / "broken")
