"""What a report says: how runs are grouped and called, the numbers over seeds, and the result in words."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dagc.folder import FINAL, SCORE
from dagc.report import Panel, Series, comparison, notes, panels_of, sentence
from dagc.report.numbers import curve, difference, final, reached, targets
from dagc.report.page import page, rows_of
from dagc.text import in_bytes
from tests.report.runs import data_of, flower, made, two_series


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
    assert sentence([two_series(), two_series()]) == "2 settings, 8 runs: choose a setting below."


def test_the_sentence_says_bytes_both_ways_rounds_and_accuracy_for_both():
    """The fewest bytes up are not the fewest bytes; uncompressed and the best other method are compared."""
    dense = Series("none", (made([0.8, 0.95], method="none", step=1000),))
    thrifty = Series("thrifty", (made([0.1, 0.1, 0.9], step=50),))  # 450 B, 150 up
    priced = Series("priced", (made([0.1, 0.9], step=70, method="stc"),))  # 420 B, 140 up
    plain, worst = Series("plain", (made([0.9]),)), Series("worst", (made([0.9], step=500),))  # 300 B and 1.5 kB
    words = sentence([Panel("p", (worst, priced, thrifty, plain, dense), (0.9,))])
    assert words == (
        "To reach 90 % accuracy, two clients exchanged 300 B with plain instead of 6.00 kB uncompressed, "
        "in 1 round instead of 2: 20.0 times fewer bytes with the first model counted. "
        "Final accuracy: 90.0 % compared with 95.0 %. "
        "The best other method, priced, needed 420 B, in 2 rounds, and ended at 90.0 %."
    )
    first = sentence([Panel("p", (worst, Series("none", (made([0.9], method="none"),))), (0.9,))])
    assert "exchanged 300 B uncompressed instead of 1.50 kB with worst" in first


def test_the_sentence_says_how_many_times_fewer_bytes_and_whether_the_first_model_is_counted():
    dense, ours = Series("none", (made([0.9], method="none", step=1000),)), Series("ours", (made([0.9]),))
    without = [
        Series(each.label, (made([0.9], method=each.method, step=step, first_model="drawn"),))
        for each, step in ((dense, 1000), (ours, 100))
    ]
    assert " each: 10.0 times fewer bytes with the first model counted." in sentence([Panel("p", (ours, dense))])
    assert " each: 10.0 times fewer bytes without a first model." in sentence([Panel("p", tuple(without))])
    assert " each: 10.0 times fewer bytes." in sentence([Panel("p", (ours, without[0]))])  # the note says which
    level = Series("level", (made([0.9], method="stc"),))
    assert "times fewer" not in sentence([Panel("p", (ours, level))])


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
    assert "<th scope='row'>ours (unfinished: 1 of 2)</th>" in page([panel], "t", "c")
    assert [(row["label"], row["unfinished"]) for row in comparison(panel)["methods"]] == [("ours", 1), ("theirs", 0)]


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


def test_an_accuracy_that_is_not_a_number_is_a_dash():
    broken = Series("broken", (made([0.5, math.nan], seed=0), made([0.5, 0.7], seed=1)))
    nothing = Series("nothing", (made([math.nan, math.nan]),))
    good = Series("good", (made([0.5, 0.8]),))
    panel = Panel("p", (broken, nothing, good))
    assert targets(panel) == (0.8,)
    assert curve(broken)["rounds"] == [1]
    assert curve(nothing)["mean"] == []
    rows = rows_of(panel, targets(panel))[:2]
    assert [[re.sub("<.*?>", "", cell) for cell in row[:3]] for row in rows] == [
        ["broken", "0 of 2 seeds", "–"],
        ["nothing", "0 of 1 seeds", "–"],
    ]
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
    assert good["part_sent"] == pytest.approx(10 / 2 / 1000)
    amounts = {"rounds": 1, "bytes_up": 100, "bytes_down": 200, "bytes_total": 300, "seconds": 0.1}
    spreads = dict.fromkeys((f"{name}_sd" for name in amounts), 0)
    assert good["to_target"] == {SCORE: 0.5, "reached": 2, **amounts, **spreads}
    assert bad["to_target"]["rounds"] == 1.5
    (other,) = good["to_other_targets"]
    assert (other[SCORE], other["bytes_total"]) == (0.7, 450)
    never = comparison(Panel("p", two_series().series, (0.9,)))["methods"][1]["to_target"]
    assert (never["reached"], never["bytes_up"], never["seconds"]) == (0, None, None)


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
