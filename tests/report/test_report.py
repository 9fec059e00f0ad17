"""Reports hold what the runs hold: numbers, tables, pictures, and a page that needs nothing else."""

import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagc.cli import app
from dagc.errors import InvalidInput
from dagc.folder import BEST, FINAL, SCORE, to_toml
from dagc.report import (
    Panel,
    Run,
    Series,
    comparison,
    find_runs,
    notes,
    panels_of,
    read_run,
    read_runs,
    sentence,
    write_report,
)
from dagc.report.charts import charts
from dagc.report.figures import write_figures
from dagc.report.numbers import curve, difference, final, reached, targets
from dagc.report.page import page, run_command
from dagc.report.tables import csv_table, curves_csv, latex_table, markdown_table
from dagc.text import in_bytes
from dagc.training import Config, iterate, train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods, two seeds, on the bundled digits."""
    folder = tmp_path_factory.mktemp("runs")
    for method, budget in (("none", {}), ("top-k", {"ratio": 0.02}), ("dagc-r", {"ratio": 0.02})):
        for seed in (0, 1):
            config = Config(task="logistic@digits", method=method, rounds=12, seed=seed, evaluate_every=3, **budget)
            train(config, folder / f"{method}-{seed}")
    return folder


def made(accuracies, *, seed=0, method="top-k", step=100, entries=10, clients=None, **fields):
    """A run of the local engine with these accuracies, one evaluation a round."""
    budgets = {"ratio", "bytes", "rate", "threshold"}
    budget = {} if method == "none" or budgets & fields.keys() else {"ratio": 0.01}
    config = Config(task="logistic@digits", method=method, seed=seed, **{"rounds": len(accuracies), **budget, **fields})
    return with_settings(
        {n: v for n, v in config.as_dict().items() if v is not None}, accuracies, step, entries, clients
    )


def flower(accuracies, name="digits", *, strategy="FedAvg", step=100, entries=10, clients=None, **plan):
    """A run of Flower: only what is known about one."""
    settings = {"engine": "flower", "task": name, "strategy": strategy, "rounds": len(accuracies)}
    known = {"sizes": [90, 10], "names": ["harbour", "<buoy>"], "parameters": 1000, **(clients or {})}
    return with_settings({**settings, "method": "dagc-r", "ratio": 0.01, **plan}, accuracies, step, entries, known)


def with_settings(settings, accuracies, step, entries, clients=None):
    rows = [
        {
            "round": n,
            SCORE: accuracy,
            "bytes_up": step * n,
            "bytes_down": 2 * step * n,
            "seconds": n / 10,
        }
        for n, accuracy in enumerate(accuracies, start=1)
    ]
    clients = clients or {
        "sizes": [90, 10],
        "labels": [[80, 10], [0, 10]],
        "classes": ["cat", "</script><b>dog"],
        "parameters": 1000,
        "first_parameters": [9, 1] if settings["method"] != "none" else [None, None],
        "notes": [],
    }
    result = {
        "rounds": len(rows),
        FINAL: accuracies[-1],
        BEST: max(accuracies),
        "bytes_up": rows[-1]["bytes_up"],
        "bytes_down": rows[-1]["bytes_down"],
        "seconds": rows[-1]["seconds"],
        "entries_sent": entries * len(rows),
    }
    return Run(Path("nowhere"), settings, clients, rows, result)


def data_of(text):
    """What the page's script gets."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1], parse_constant=refuse)


def two_series(**changes):
    good = Series("good", (made([0.5, 0.8], seed=0), made([0.7, 0.9], seed=1)), paper=85.0)
    bad = Series("bad & worse_1", (made([0.4, 0.6], seed=0), made([0.5, 0.5], seed=1)), **changes)
    return Panel("a problem", (good, bad), (0.5, 0.7))


def test_runs_that_differ_in_the_seed_become_one_series(runs):
    (panel,) = panels_of(map(read_run, find_runs([runs])))
    assert [series.label for series in panel.series] == ["dagc-r", "top-k", "none"]  # ours first, dense last
    assert all([run.seed for run in series.runs] == [0, 1] for series in panel.series)
    assert panel.title == "logistic@digits, 10 clients, skew ratio 100, 12 rounds"
    assert data_of(page([panel], "t", "c"))["panels"][0]["names"] == list("0123456789")


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


def test_budgets_and_options_are_ways_to_solve_one_problem():
    waiting = {"bytes": 13, "values": "sign", "frames": "compact", "overhead": 0.125}
    runs = [
        made([0.5], method="dagc-r"),
        made([0.5], method="dagc-r", **waiting),
        made([0.5], method="dagc-r", **waiting, seed=1),
        made([0.5], method="dagc-r", caps={"3": 0.5}),
        made([0.5], method="dagc-r", per_tensor=True),
        made([0.5], method="dagc-r", down=20),
        made([0.5], method="dagc-r", rate="200 kB/training"),
        made([0.5], method="power", exponent=0.0),
        made([0.5], method="power"),
        made([0.5], method="accordion", options={"interval": 5}),
        made([0.5], method="accordion"),
        made([0.5], method="none"),
    ]
    (panel,) = panels_of(runs)
    assert [series.label for series in panel.series] == [
        "dagc-r, ratio 1 %, values fp32",
        "dagc-r, 13 bytes per client and round, overhead 0.125, values sign",
        "dagc-r, ratio 1 %, caps 3 0.5, values fp32",
        "dagc-r, ratio 1 %, values fp32, per tensor",
        "dagc-r, ratio 1 %, 20 bytes down per client and round, values fp32",
        "dagc-r, 200 kB/training, values fp32",
        "power, ratio 1 %, exponent 0",
        "power, ratio 1 %",
        "accordion, ratio 1 %, options interval 5",
        "accordion, ratio 1 %",
        "none",
    ]
    assert [len(series.runs) for series in panel.series] == [1, 2, *[1] * 9]
    assert panel.title == "logistic@digits, 2 clients, skew ratio 100, 1 round"


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
    assert (data["labels"], data["classes"], data["seed"]) == (None, [], None)
    assert data["series"][0]["shares"] == {"kind": "ratio", "values": []}


def test_runs_of_flower_with_the_same_model_and_clients_are_compared():
    runs = [
        flower([0.5, 0.6], "ours"),
        flower([0.5, 0.6], "dense", method="none", ratio=None),
        flower([0.5, 0.6], "again"),
        flower([0.5, 0.6], "other clients", clients={"sizes": [90, 11]}),
        flower([0.5, 0.6], "other", strategy="FedAdam"),
    ]
    first, second, third = panels_of(runs)
    assert [series.label for series in first.series] == ["dagc-r, ours", "dagc-r, again", "none"]
    assert first.title == "ours, again, dense, 2 clients, 2 rounds, strategy FedAvg"
    assert second.title == "other clients, 2 clients, 2 rounds, strategy FedAvg"
    assert third.title == "other, 2 clients, 2 rounds, strategy FedAdam"


def test_numbers_over_seeds():
    panel = two_series()
    good, bad = panel.series
    assert final(good).mean == pytest.approx(0.85)
    assert final(good).sd == pytest.approx(0.0707, abs=1e-4)
    there = reached(good, 0.7)
    assert (there.seeds, there.rounds.mean, there.bytes_up.mean) == (2, 1.5, 150)
    assert (there.bytes_down.mean, there.bytes_total.mean) == (300, 450)
    assert there.bytes_total.sd == pytest.approx(212.13, abs=0.01)
    assert there.seconds.mean == pytest.approx(0.15)
    assert reached(bad, 0.6) == reached(bad, 0.6)
    assert (reached(bad, 0.6).seeds, reached(bad, 0.6).bytes_up) == (1, None)  # no mean over those that got there
    assert difference(good, bad).mean == pytest.approx(0.3)
    assert difference(good, bad, 0.5).mean == pytest.approx(-150)
    assert math.isnan(difference(good, bad, 0.6).mean)
    assert curve(good)["low"] == [0.5, 0.8]
    assert curve(good)["high"] == [0.7, 0.9]
    assert targets(Panel("", panel.series)) == (0.5,)


def test_a_difference_is_that_of_the_same_seeds_where_they_are_shared():
    low = Series("low", (made([0.5], seed=0), made([0.7], seed=1)))
    high = Series("high", (made([0.6], seed=0), made([0.8], seed=1)))
    others = Series("others", (made([0.6], seed=2), made([0.8], seed=3)))
    unnamed = Series("unnamed", (made([0.6]), made([0.8])))
    paired = difference(high, low)
    assert (paired.mean, paired.sd) == (pytest.approx(0.1), pytest.approx(0))
    for series in (others, unnamed):
        apart = difference(series, low)
        assert (apart.mean, apart.sd) == (pytest.approx(0.1), pytest.approx(0.2))  # √2 · 0.1414
    assert difference(Series("one", others.runs[:1]), low).sd is None


def test_a_curve_has_only_what_all_seeds_have():
    series = Series("s", (made([0.1, 0.2, 0.3]), made([0.3, 0.4], seed=1)))
    assert curve(series)["rounds"] == [1, 2]
    assert curve(series)["mean"] == pytest.approx([0.2, 0.3])


def test_the_sentence():
    alone = sentence([Panel("p", (Series("one", (made([0.5]),)),))])
    assert alone == "one ends at 50.00 % after 1 round (one seed), with 300 B in total, 100 B up and 200 B down."
    dense = Series("dense", (made([0.9, 0.9], method="none", step=10_000),))
    slow = Series("slow", (made([0.1, 0.9]),))
    quick = Series("quick", (made([0.9, 0.9]),))
    nobody = sentence([Panel("p", (quick, slow), (0.99,))])
    assert nobody == "quick ends highest, at 90.0 %; no method reached 99 % with every seed."
    half = Series("half", (made([0.9], seed=0), made([0.1], seed=1)))
    single = sentence([Panel("p", (quick, half), (0.9,))])
    assert single == "quick ends highest, at 90.0 %; only quick reached 90 % with every seed."
    free = sentence([Panel("p", (Series("free", (made([0.9], step=0),)), slow), (0.9,))])
    assert free.startswith("To reach 90 % accuracy, two clients exchanged 0 B with free instead of 600 B with slow, ")
    assert "To reach 90 % accuracy, two clients" in sentence([Panel("p", (quick, slow, dense), (0.9,))])
    several = sentence([two_series(), two_series(paper=80.0)])
    assert "good ends above bad & worse_1 in 2 of 2 settings, by +30.00 points" in several
    assert "in the paper: 1 of 1" in several


def test_the_sentence_says_bytes_both_ways_rounds_and_accuracy_for_both():
    """The fewest bytes up are not the fewest bytes; uncompressed and the best other method are compared."""
    dense = Series("none", (made([0.8, 0.95], method="none", step=1000),))
    thrifty = Series("thrifty", (made([0.1, 0.1, 0.9], step=50),))  # 450 B, 150 up
    priced = Series("priced", (made([0.1, 0.9], step=70, method="stc"),))  # 420 B, 140 up
    plain, worst = Series("plain", (made([0.9]),)), Series("worst", (made([0.9], step=500),))  # 300 B and 1.5 kB
    words = sentence([Panel("p", (worst, priced, thrifty, plain, dense), (0.9,))])
    assert words == (
        "To reach 90 % accuracy, two clients exchanged 300 B with plain instead of 6.00 kB uncompressed, "
        "in 1 round instead of 2. Final accuracy: 90.0 % compared with 95.0 %. "
        "The best other method, priced, needed 420 B, in 2 rounds, and ended at 90.0 %."
    )
    first = sentence([Panel("p", (worst, Series("none", (made([0.9], method="none"),))), (0.9,))])
    assert "exchanged 300 B uncompressed instead of 1.50 kB with worst" in first


def test_the_sentence_says_what_is_within_the_spread():
    ours = Series("ours", (made([0.9], seed=0), made([0.9], seed=1)))  # 300 B each
    shaky = Series("shaky", (made([0.9], seed=0, step=90), made([0.9], seed=1, step=190)))  # 270 and 570 B
    steady = Series("steady", (made([0.9], seed=0, step=140), made([0.9], seed=1, step=150)))  # 420 and 450 B
    within = sentence([Panel("p", (ours, shaky), (0.9,))])
    assert "instead of 420 B with shaky (a difference within the spread between seeds), in" in within
    assert "spread" not in sentence([Panel("p", (ours, steady), (0.9,))])
    alone = sentence([Panel("p", (Series("ours", ours.runs[:1]), Series("steady", steady.runs[:1])), (0.9,))])
    assert "spread" not in alone  # one seed has none


def test_the_best_rival_is_another_method():
    ours = Series("dagc-r, ratio 1 %", (made([0.9], method="dagc-r"),))  # 300 B
    ours_again = Series("dagc-r, ratio 2 %", (made([0.9], method="dagc-r", ratio=0.02, step=110),))  # 330 B
    rival = Series("stc", (made([0.9], method="stc", step=200),))  # 600 B
    assert "instead of 600 B with stc, in" in sentence([Panel("p", (ours, ours_again, rival), (0.9,))])
    assert "instead of 330 B with dagc-r, ratio 2 %, in" in sentence([Panel("p", (ours, ours_again), (0.9,))])


def test_several_runs_of_one_seed_count_once():
    stopped = made([0.1, 0.2], rounds=4)
    whole, again = made([0.1, 0.2, 0.3, 0.4]), made([0.1, 0.2, 0.3, 0.4])
    other = made([0.2, 0.3, 0.4, 0.5], seed=1)
    (panel,) = panels_of([stopped, whole, again, other])
    (series,) = panel.series
    assert series.runs == (whole, other)
    assert panel.notes == ("top-k: 4 runs of 2 seeds; each seed counts once",)
    assert final(series).sd == pytest.approx(0.0707, abs=1e-4)
    (panel,) = panels_of([whole, other])
    assert panel.notes == ()
    twice = [replace(flower([0.5, 0.6]), path=Path(where)) for where in "ab"]  # whose seeds nobody knows
    assert len(panels_of(twice)[0].series[0].runs) == 2


def test_unfinished_runs_say_so_in_the_table_and_in_the_sentence():
    ours = Series("ours", (made([0.9], seed=0), made([0.9], seed=1, rounds=50)))
    theirs = Series("theirs", (made([0.9], seed=0, step=500), made([0.9], seed=1, step=500)))
    panel = Panel("p", (ours, theirs), (0.9,))
    assert sentence([panel]).endswith(" 1 of 4 runs is not finished.")
    assert sentence([panel, panel]).endswith(" 2 of 8 runs are not finished.")
    assert "| ours (unfinished: 1 of 2) |" in markdown_table([panel])
    assert "| theirs |" in markdown_table([panel])
    assert "<th scope='row'>ours (unfinished: 1 of 2)</th>" in page([panel], "t", "c")
    lines = csv.DictReader(io.StringIO(csv_table([panel])))
    assert [(line["series"], line["unfinished"]) for line in lines] == [("ours", "1"), ("theirs", "0")]


def test_rates_steps_and_rounds_are_ways_to_solve_one_problem():
    runs = [
        made([0.5], method="dagc-r"),
        made([0.5], method="dagc-r", learning_rate=0.5, local_steps=20),
        made([0.5, 0.6], method="none", learning_rate=0.2, optimizer="Adam"),
    ]
    (panel,) = panels_of(runs)
    assert [series.label for series in panel.series] == [
        "dagc-r, learning rate 0.1, local steps 1",
        "dagc-r, learning rate 0.5, local steps 20",
        "none, optimizer Adam",
    ]
    assert panel.title == "logistic@digits, 2 clients, skew ratio 100"
    assert comparison(panel)["rounds"] is None


def test_the_csv_table_reads_back():
    lines = list(csv.DictReader(io.StringIO(csv_table([two_series()]))))
    assert len(lines) == 4  # two series, two targets
    assert lines[1]["series"] == "good"
    assert float(lines[1]["bytes_up_to_target"]) == 150
    assert float(lines[1]["bytes_total_to_target"]) == 450
    assert float(lines[1]["bytes_total"]) == 600
    assert float(lines[1]["paper_percent"]) == 85
    assert lines[3]["bytes_up_to_target"] == ""
    assert float(lines[0]["part_sent"]) == pytest.approx(10 / 2 / 1000)
    curves = list(csv.DictReader(io.StringIO(curves_csv(charts([two_series()])))))
    assert [float(line[SCORE]) for line in curves[:2]] == pytest.approx([0.6, 0.85])
    counted = [[float(curves[1][f"bytes_{name}"]) for name in ("up", "down", "total")], float(curves[1]["seconds"])]
    assert counted == [[200, 400, 600], 0.2]


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
    assert lines[0].startswith("| Setting | Method | Total to 50 % | Total to 70 % | Accuracy |")
    assert lines[2].startswith("| a problem | good | 300 B (1 round) | 450 B (2 rounds) | 85.00 ± 7.07 % | 85.00 % |")
    assert lines[3].startswith("|  | bad &amp; worse\\_1 | 450 B (2 rounds, ×1.5) | 0 of 2 seeds |")
    assert lines[2].endswith("| 200 B | 400 B |")


def test_the_page_is_whole_and_cannot_be_broken_by_names(runs):
    panel = two_series()
    evil = Panel("<img src=x onerror=alert(1)>", panel.series, notes=("</script><script>alert(2)",))
    text = page([evil], "a <title>", "dagc 'x' & y")
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2
    data = data_of(text)
    assert data["panels"][0]["title"] == evil.title
    assert data["panels"][0]["classes"][1] == "</script><b>dog"
    real = page(panels_of(map(read_run, find_runs([runs]))), "t", "c")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", real)
    assert "@import" not in real
    assert len(real.encode()) < 200_000
    assert "the command that runs it alone" in real
    assert "$" not in re.sub(r"<script.*?</script>", "", real, flags=re.S)  # every place was filled


def test_the_report_says_which_runs_stopped_early():
    half, whole = made([0.5, 0.6], rounds=300, seed=1), made([0.5, 0.6], seed=0)
    panel = Panel("p", (Series("ours", (whole, half)),), notes=("a note",))
    assert notes([panel]) == [
        "ours, seed 1: stopped after round 2 of 300",
        "the first model is counted whenever a client downloads it",
        "a note",
    ]
    assert "<li>ours, seed 1: stopped after round 2 of 300</li>" in page([panel], "t", "c")
    alone = Panel("p", (Series("ours", (half,)),))
    assert sentence([alone]).startswith("ours is at 60.00 % after 2 of 300 rounds")


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


@pytest.mark.parametrize("fields", [{"first_model": "drawn"}, {"participation": 0.5}, {"failures": 0.9}])
def test_a_first_download_is_known_only_where_everybody_has_one(tmp_path, fields):
    config = Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=2, evaluate_every=1, **fields)
    train(config, tmp_path / "run")
    assert read_run(tmp_path / "run").first_download is None


def test_an_accuracy_that_is_not_a_number_is_a_dash():
    broken = Series("broken", (made([0.5, math.nan], seed=0), made([0.5, 0.7], seed=1)))
    nothing = Series("nothing", (made([math.nan, math.nan]),))
    good = Series("good", (made([0.5, 0.8]),))
    panel = Panel("p", (broken, nothing, good))
    assert targets(panel) == (0.8,)
    assert curve(broken)["rounds"] == [1]
    assert curve(nothing)["mean"] == []
    rows = markdown_table([panel]).splitlines()
    assert rows[2].startswith("| broken | 0 of 2 seeds | – |")
    assert rows[3].startswith("| nothing | 0 of 1 seeds | – |")
    assert [line[FINAL] for line in csv.DictReader(io.StringIO(csv_table([panel])))] == ["", "", "0.8"]
    assert len(data_of(page([panel, panel], "t", "c"))["panels"]) == 2
    assert sentence([panel]) == "good ends highest, at 80.0 %; only good reached 80 % with every seed."
    assert "no series has" in sentence([Panel("p", (nothing, nothing))]).lower()
    found = comparison(panel)["methods"]
    assert [row[FINAL] for row in found] == [None, None, 0.8]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_numbers_for_machines():
    found = comparison(two_series())
    assert (found["task"], found["rounds"], found["target"]) == ("logistic@digits", 2, 0.5)
    good, bad = found["methods"]
    assert good[FINAL] == pytest.approx(0.85)
    assert good["to_target"] == {
        SCORE: 0.5,
        "reached": 2,
        "rounds": 1,
        "bytes_up": 100,
        "bytes_down": 200,
        "bytes_total": 300,
        "seconds": 0.1,
    }
    assert bad["to_target"]["rounds"] == 1.5
    never = comparison(Panel("p", two_series().series, (0.9,)))["methods"][1]["to_target"]
    assert (never["reached"], never["bytes_up"], never["seconds"]) == (0, None, None)


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
    names = {path.name for path in found.parent.iterdir()}
    assert {"report.html", "table.csv", "table.tex", "table.md", "curves.csv"} <= names
    axes = ("bytes_total", "bytes_up", "rounds", "seconds")
    assert {name for name in names if name.startswith("curves-")} == {
        f"curves-{axis}.{ending}" for axis in axes for ending in ("svg", "png")
    }
    assert (tmp_path / "new" / "curves-bytes_total.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "new" / "curves-seconds.svg").read_text()


def test_without_matplotlib_there_are_no_figures_and_no_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_figures(charts([two_series()]), tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_the_command(runs, tmp_path):
    result = CliRunner().invoke(
        app, ["report", str(runs), "--output", str(tmp_path / "r"), "--targets", "0.5", "--no-figures"]
    )
    assert result.exit_code == 0, result.output
    assert "To reach 50 % accuracy, ten clients exchanged" in result.output
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "report.html",
        "table.csv",
        "table.tex",
        "table.md",
        "curves.csv",
    }


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


@pytest.mark.skipif(os.name != "posix" or not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_folder_that_cannot_be_written_to_is_one_line(runs, tmp_path):
    (tmp_path / "file").touch()
    panels = panels_of(read_runs([runs]))
    with pytest.raises(InvalidInput, match=r"the report cannot be written to .*file/below: "):
        write_report(panels, tmp_path / "file" / "below", "t", "c")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "curves-rounds.svg").symlink_to("/dev/full")
    with pytest.raises(InvalidInput, match="the disk is full: free some space"):
        write_report(panels, tmp_path / "full", "t", "c")


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


def test_bytes_as_people_write_them():
    assert [in_bytes(n) for n in (0, 999, 1000, 9_996, 31_415, 999_600, 5_101_000, 2.5e9)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "10.0 kB",
        "31.4 kB",
        "1.00 MB",
        "5.10 MB",
        "2.50 GB",
    ]
