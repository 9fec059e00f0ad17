"""Reports hold what the runs hold: numbers, tables, pictures, and a page that needs nothing else."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagc.cli import app
from dagc.errors import InvalidInput
from dagc.report import Panel, Run, Series, find_runs, panels_of, read_run, sentence, write_report
from dagc.report.figures import write_figures
from dagc.report.numbers import curve, difference, final, in_bytes, reached, targets
from dagc.report.page import page, run_command
from dagc.report.tables import csv_table, curves_csv, latex_table, markdown_table
from dagc.training import Config, train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, two seeds, on the bundled digits."""
    folder = tmp_path_factory.mktemp("runs")
    for method, budget in (("none", {}), ("top-k", {"ratio": 0.02}), ("dagc-r", {"ratio": 0.02})):
        for seed in (0, 1):
            config = Config(task="logistic@digits", method=method, rounds=12, seed=seed, evaluate_every=3, **budget)
            for _ in train(config, folder / f"{method}-{seed}"):
                pass
    return folder


def made(accuracies, *, seed=0, method="top-k", step=100, entries=10, **fields):
    """A run with these accuracies, one evaluation a round."""
    budget = {} if method == "none" else {"ratio": 0.01}
    config = Config(task="logistic@digits", method=method, seed=seed, rounds=len(accuracies), **{**budget, **fields})
    rows = [
        {
            "round": n,
            "accuracy": accuracy,
            "bytes_up": step * n,
            "bytes_down": 2 * step * n,
            "seconds": n / 10,
            "entries_sent": entries * n,
        }
        for n, accuracy in enumerate(accuracies, start=1)
    ]
    clients = {
        "sizes": [90, 10],
        "labels": [[80, 10], [0, 10]],
        "classes": ["cat", "</script><b>dog"],
        "parameters": 1000,
        "first_parameters": [9, 1] if method != "none" else [None, None],
        "notes": [],
    }
    result = {
        "rounds": len(rows),
        "final_accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "bytes_up": rows[-1]["bytes_up"],
        "bytes_down": rows[-1]["bytes_down"],
        "seconds": rows[-1]["seconds"],
    }
    return Run(Path("nowhere"), config, clients, rows, result)


def two_series(**changes):
    good = Series("good", (made([0.5, 0.8], seed=0), made([0.7, 0.9], seed=1)), paper=85.0)
    bad = Series("bad & worse_1", (made([0.4, 0.6], seed=0), made([0.5, 0.5], seed=1)), **changes)
    return Panel("a problem", (good, bad), (0.5, 0.7))


def test_runs_that_differ_in_the_seed_become_one_series(runs):
    (panel,) = panels_of(map(read_run, find_runs([runs])))
    assert [series.label for series in panel.series] == ["dagc-r", "top-k", "none"]  # ours first, dense last
    assert all([run.config.seed for run in series.runs] == [0, 1] for series in panel.series)
    assert panel.title == "logistic@digits, 10 clients, skew ratio 100, 12 rounds"


def test_labels_and_titles_say_what_differs():
    runs = [made([0.5], values="sign"), made([0.5], values="fp32"), made([0.5], batch_size=8), made([0.5], ratio=0.1)]
    first, second = panels_of(runs)
    assert [series.label for series in first.series] == [
        "top-k, ratio 1 %, values sign",
        "top-k, ratio 1 %, values fp32",
        "top-k, ratio 10 %, values fp32",
    ]
    assert first.title.endswith("batch size 32")
    assert second.title.endswith("batch size 8")


def test_numbers_over_seeds():
    panel = two_series()
    good, bad = panel.series
    assert final(good).mean == pytest.approx(0.85)
    assert final(good).sd == pytest.approx(0.0707, abs=1e-4)
    there = reached(good, 0.7)
    assert (there.seeds, there.iterations.mean, there.bytes.mean) == (2, 1.5, 150)
    assert there.seconds.mean == pytest.approx(0.15)
    assert reached(bad, 0.6) == reached(bad, 0.6)
    assert (reached(bad, 0.6).seeds, reached(bad, 0.6).bytes) == (1, None)  # no mean over those that got there
    assert difference(good, bad).mean == pytest.approx(0.3)
    assert curve(good)["low"] == [0.5, 0.8]
    assert curve(good)["high"] == [0.7, 0.9]
    assert targets(Panel("", panel.series)) == (0.55,)


def test_a_formula_prices_the_entries_that_were_sent_and_has_no_seconds():
    _, priced = two_series(bytes_per_entry=8).series
    assert final(priced, "bytes_up").mean == 2 * 10 * 8
    assert reached(priced, 0.5).bytes.mean == 8 * 10 * 1.5
    assert reached(priced, 0.5).seconds is None
    assert curve(priced)["seconds"] == []
    assert curve(priced)["bytes"] == [80, 160]


def test_a_curve_has_only_what_all_seeds_have():
    series = Series("s", (made([0.1, 0.2, 0.3]), made([0.3, 0.4], seed=1)))
    assert curve(series)["rounds"] == [1, 2]
    assert curve(series)["mean"] == pytest.approx([0.2, 0.3])


def test_the_sentence():
    assert sentence([Panel("p", (Series("one", (made([0.5]),)),))]).startswith("one ends at 50.00 % after 1 rounds")
    dense = Series("dense", (made([0.9, 0.9], method="none", step=10_000),))
    slow = Series("slow", (made([0.1, 0.9]),))
    quick = Series("quick", (made([0.9, 0.9]),))
    told = sentence([Panel("p", (quick, slow, dense), (0.9,))])
    assert "quick reaches 90 % with 100 B" in told
    assert "2.0 times fewer bytes than slow and 100 times fewer bytes than dense" in told
    assert "about as many bytes as same" in sentence([Panel("p", (quick, Series("same", (made([0.9]),))), (0.9,))])
    nobody = sentence([Panel("p", (quick, slow), (0.99,))])
    assert "nothing else got to 99 %" in nobody
    several = sentence([two_series(), two_series(paper=80.0)])
    assert "good ends above bad & worse_1 in 2 of 2 settings, by +30.00 points" in several
    assert "in the paper: 1 of 1" in several


def test_the_csv_table_reads_back():
    lines = list(csv.DictReader(io.StringIO(csv_table([two_series()]))))
    assert len(lines) == 4  # two series, two targets
    assert lines[1]["series"] == "good"
    assert float(lines[1]["bytes_to_target"]) == 150
    assert float(lines[1]["paper_percent"]) == 85
    assert lines[3]["bytes_to_target"] == ""
    assert float(lines[0]["part_sent"]) == pytest.approx(10 / 2 / 1000)
    curves = list(csv.DictReader(io.StringIO(curves_csv([two_series()]))))
    assert [float(line["accuracy"]) for line in curves[:2]] == pytest.approx([0.6, 0.85])


def test_the_latex_table_has_no_bare_specials():
    text = latex_table([two_series(), two_series()], "50 % of a_b")
    body = text.replace(r"\\", "")
    assert not re.search(r"(?<!\\)[%_#]", body)
    assert r"bad \& worse\_1" in text
    assert r"$\pm$" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1  # as many columns in every row


def test_the_markdown_table_has_a_row_for_each_series():
    lines = markdown_table([two_series(), two_series()]).splitlines()
    assert len(lines) == 2 + 4
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert lines[2].startswith("| a problem | good | 85.00 ± 7.07 % | 85.00 % |")
    assert lines[3].startswith("|  | bad & worse_1 |")
    assert lines[3].endswith("| 150 B | 0 of 2 |")


def test_the_page_is_whole_and_cannot_be_broken_by_names(runs):
    panel = two_series()
    evil = Panel("<img src=x onerror=alert(1)>", panel.series, notes=("</script><script>alert(2)",))
    text = page([evil], "a <title>", "dagc 'x' & y")
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["panels"][0]["title"] == evil.title
    assert data["panels"][0]["classes"][1] == "</script><b>dog"
    real = page(panels_of(map(read_run, find_runs([runs]))), "t", "c")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", real)
    assert "@import" not in real
    assert len(real.encode()) < 200_000
    assert "$" not in re.sub(r"<script.*?</script>", "", real, flags=re.S)  # every place was filled


def test_the_page_says_what_is_unfinished():
    run = made([0.5, 0.6])
    half = Run(run.path, Config(**{**run.config.model_dump(), "rounds": 9}), run.clients, run.rows, run.result)
    assert "1 of the runs have not come to their end yet" in page([Panel("p", (Series("s", (half,)),))], "t", "c")


def test_the_command_repeats_the_run(runs):
    config = read_run(runs / "top-k-1").config
    assert run_command(config) == (
        "dagc run logistic@digits --method top-k --ratio 0.02 --rounds 12 --evaluate-every 3 --seed 1"
    )


def test_everything_is_written(runs, tmp_path):
    panels = panels_of(map(read_run, find_runs([runs])))
    found = write_report(panels, tmp_path / "new", "t", "c")
    names = {path.name for path in found.parent.iterdir()}
    assert {"report.html", "table.csv", "table.tex", "curves.csv", "curves-rounds.png"} <= names
    assert (tmp_path / "new" / "curves-bytes.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "new" / "curves-seconds.svg").read_text()


def test_without_matplotlib_there_are_no_figures_and_no_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_figures([two_series()], tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_the_command(runs, tmp_path):
    result = CliRunner().invoke(
        app, ["report", str(runs), "--output", str(tmp_path / "r"), "--targets", "0.5", "--no-figures"]
    )
    assert result.exit_code == 0, result.output
    assert "reaches 50 %" in result.output
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "report.html",
        "table.csv",
        "table.tex",
        "table.md",
        "curves.csv",
    }


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
    rounds = train(Config(task="logistic@digits", method="none", rounds=9, evaluate_every=9), tmp_path / "young")
    next(rounds)
    rounds.close()
    with pytest.raises(InvalidInput, match="not been evaluated yet"):
        read_run(tmp_path / "young")


def test_runs_of_another_machine_can_be_reported(runs, tmp_path):
    there = tmp_path / "there"
    shutil.copytree(runs / "top-k-0", there)
    told = (there / "config.toml").read_text()
    there.joinpath("config.toml").write_text(
        told.replace('"cpu"', '"cuda:3"').replace("logistic@digits", "logistic@/nowhere/own.npz")
    )
    (panel,) = panels_of([read_run(there)])
    assert panel.title.startswith("logistic@/nowhere/own.npz")
    assert "--device cuda:3" in page([panel], "t", "c")


@pytest.mark.parametrize("name", ["config.toml", "clients.json"])
def test_a_broken_folder_is_named(runs, tmp_path, name):
    shutil.copytree(runs / "top-k-0", tmp_path / "broken")
    (tmp_path / "broken" / name).write_text("{")
    with pytest.raises(InvalidInput, match="broken is not a whole run's folder"):
        read_run(tmp_path / "broken")


def test_bytes_as_people_write_them():
    assert [in_bytes(n) for n in (0, 999, 1000, 31_415, 5_101_000, 2.5e9)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "31.4 kB",
        "5.10 MB",
        "2.50 GB",
    ]
