"""Every run behind a figure has a record, a recorded run is not run again, and tables are what the records say."""

import json
import math
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import dagc
from dagc.cli.plan import MORE_ROUNDS
from dagc.errors import InvalidInput, MissingData
from dagc.report import Panel, Run, Series, read_run
from dagc.report.numbers import final, reached
from dagc.text import brief, in_bytes
from research import EXPERIMENTS, STAND_INS, Cell, Laboratory, Record, Store, Tuned, Variant, stand_in, tables
from research.kinds import KINDS
from research.measured import Measured
from research.origin import origin, source_commit, stamp
from research.records import described, identity, plan_of
from research.reproduce import TUNED_ON
from research.shown import Shown
from research.tuning import best_of
from research.waterfall import write_waterfall

ROOT = Path(__file__).parents[2]
WATERFALL = ROOT / "docs" / "images" / "ablation.svg"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def small(name="small/a", rounds=40, **more):
    variants = (Variant("ours", {"method": "dagc-r", "ratio": 0.02}), Variant("theirs", {"method": "none"}))
    fields = {"task": "logistic@digits", "rounds": rounds, "learning_rate": 0.5}
    return Cell(name, f"Small {name}", fields, variants, (0.3, 0.5), evaluations=400, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cell of two variants that was run with two seeds."""
    folder = tmp_path_factory.mktemp("made")
    Laboratory(folder, Store(folder / "results")).run([("small", small())], 2)
    return folder


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "small", (small(), small("small/b")))


def recorded(full, kept):
    """What a record has to have of it: everything as it was, but seconds with seven digits."""
    return {name: float(f"{full[name]:.7g}") if name == "seconds" else full[name] for name in kept}


def test_a_record_has_all_that_a_report_needs(made):
    (path,) = (made / "results").glob("**/*.jsonl")
    assert path == made / "results" / "small" / "small" / "a.jsonl"
    shared, *lines = path.read_text().splitlines()
    assert [(line["variant"], line["seed"]) for line in map(json.loads, lines)] == [
        ("ours", 0), ("ours", 1), ("theirs", 0), ("theirs", 1)
    ]  # fmt: skip
    assert all(len(line) < 6000 for line in lines)
    assert json.loads(shared)["shared"]["task"] == "logistic@digits"
    assert not json.loads(shared)["shared"].keys() & {"seed", "method"}
    assert not json.loads(shared)["shared"].keys() & json.loads(lines[0])["settings"].keys()
    folders = {run.settings["method"] + str(run.seed): run for run in map(read_run, (made / "runs").iterdir())}
    for record in Store(made / "results").lines()[path]:
        run, kept = folders[record.settings["method"] + str(record.seed)], record.run()
        assert kept.result == recorded(run.result, kept.result)
        assert kept.finished
        assert {name: kept.settings[name] for name in ("task", "ratio", "learning_rate") if name in kept.settings} == {
            name: run.settings[name] for name in ("task", "ratio", "learning_rate") if name in run.settings
        }
        assert not {"threads", "data_dir", "checkpoint_every"} & kept.settings.keys()
        assert (record.commit, record.version) == (source_commit(), dagc.__version__)
        assert len(kept.rows) < len(run.rows)  # thinned, and yet the first evaluation at any accuracy is there
        for thousandths in range(1000):
            goal = thousandths / 1000
            first = [next((row for row in one.rows if row["score"] >= goal), None) for one in (kept, run)]
            assert first[0] == (None if first[1] is None else recorded(first[1], first[0]))


def test_what_is_recorded_is_not_run_again_wherever_it_is(made, tmp_path, monkeypatch):
    shutil.copytree(made / "results", tmp_path / "results")
    monkeypatch.setattr("research.reproduce.run_all", None)
    laboratory = Laboratory(tmp_path, Store(tmp_path / "results"))
    (panel,) = laboratory.run([("small", small())], 2)
    assert not (tmp_path / "runs").exists()
    (original,) = Laboratory(made, Store(made / "results")).run([("small", small())], 2)
    for one, other in zip(panel.series, original.series, strict=True):
        assert final(one) == final(other)
        for ours, theirs in ((reached(one, goal), reached(other, goal)) for goal in panel.targets):
            assert ours.seconds.mean == pytest.approx(theirs.seconds.mean, rel=1e-6)
            assert replace(ours, seconds=None) == replace(theirs, seconds=None)
    laboratory.run([("other", small("other/name"))], 2)  # of another cell with the same runs, too
    assert len(Store(tmp_path / "results").lines()[tmp_path / "results" / "other" / "other" / "name.jsonl"]) == 4
    with pytest.raises(TypeError):
        laboratory.run([("small", small(rounds=41))], 1)


def test_old_folders_give_records_by_their_settings(made, tmp_path, monkeypatch):
    """Whatever they are called, and whoever made them."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    for number, run in enumerate(sorted((tmp_path / "runs").iterdir())):
        (run / "origin.json").unlink()
        run.rename(run.with_name(f"old-{number}"))
    monkeypatch.setattr("research.reproduce.run_all", None)
    for commit, place in ((None, "a"), ("a25f3ee", "b")):
        store = Store(tmp_path / place)
        Laboratory(tmp_path, store, commit=commit).run([("small", small())], 2)
        (lines,) = store.lines().values()
        assert [(line.commit, line.version) for line in lines] == [(commit, None)] * 4
    store = Store(tmp_path / "c")
    untuned = replace(
        small(), variants=(*small().variants, Variant("new", {"method": "none"}, tune={"optimizer": ("SGD", "Adam")}))
    )
    assert Laboratory(tmp_path, store).collect([("small", untuned)], 3) == 2  # the third seed of the two that are tuned
    (lines,) = store.lines().values()
    assert [(line.variant, line.seed) for line in lines] == [("ours", 0), ("ours", 1), ("theirs", 0), ("theirs", 1)]


def test_a_run_says_who_worked_on_it(tmp_path):
    assert origin(tmp_path) == {"commit": None, "version": None}
    stamp(tmp_path / "a", "abc1234")
    stamp(tmp_path / "a", "abc1234")
    assert origin(tmp_path / "a") == {"commit": "abc1234", "version": dagc.__version__}
    stamp(tmp_path / "a", "def5678+")
    assert origin(tmp_path / "a")["commit"] == "abc1234, def5678+"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").touch()  # somebody else began it
    stamp(tmp_path / "b", "abc1234")
    assert origin(tmp_path / "b")["commit"] is None


def test_a_later_version_with_another_setting_knows_a_record_again(made, monkeypatch):
    """A record that lacks a setting has its default."""
    (lines,) = Store(made / "results").lines().values()
    settings = lines[0].settings
    without = {name: value for name, value in settings.items() if name not in ("clip", "late", "augment")}
    assert identity(without) == identity(settings)
    assert identity({**settings, "late": 0.1}) != identity(settings)
    assert identity({**settings, "task": "logistic@elsewhere.csv"}) != identity(settings)  # not on this machine
    assert described({**settings, "task": "logistic@elsewhere.csv"})["task"] == "logistic@elsewhere.csv"


def test_a_stand_in_is_recorded_and_only_taken_if_it_may_be(tmp_path, monkeypatch):
    cell = replace(small(), fields={"task": "logistic@speech-commands", "rounds": 3, "partition": "iid:clients=3"})
    used = replace(STAND_INS["speech-commands"], data="digits")
    monkeypatch.setitem(STAND_INS, "speech-commands", used)
    monkeypatch.setattr(stand_in, "at_hand", lambda name, root: name == "digits")
    (panel,) = Laboratory(tmp_path, Store(tmp_path / "results"), stand_in=True).run([("small", cell)], 1)
    assert panel.notes == (used.label,)
    (lines,) = Store(tmp_path / "results").lines().values()
    assert {(line.stand_in, line.settings["task"]) for line in lines} == {(used.label, "logistic@speech-commands")}
    assert tables.shown("small", cell, Store(tmp_path / "results")).panel.notes == (used.label,)
    with pytest.raises(MissingData):
        Laboratory(tmp_path, Store(tmp_path / "results")).run([("small", cell)], 1)


def test_settings_are_tuned_on_other_seeds_and_recorded(tmp_path, monkeypatch):
    cell = small(tune={"learning_rate": (0.01, 0.5), "schedule": ("constant", "linear")})
    own = Variant("theirs", {"method": "none", "learning_rate": 0.2}, tune={"optimizer": ("SGD", "Adam")})
    assert cell.grid(own) == {"schedule": ("constant", "linear"), "optimizer": ("SGD", "Adam")}
    assert len(cell.candidates(own)) == 4
    fixed = Variant("theirs", {"method": "none", "learning_rate": 0.2, "schedule": "linear"})
    cell = replace(cell, variants=(cell.variants[0], fixed))
    assert [len(cell.candidates(variant)) for variant in cell.variants] == [4, 1]
    Laboratory(tmp_path, Store(tmp_path / "results"), jobs=2).run([("small", cell)], 1)
    store = Store(tmp_path / "results")
    (lines,) = store.lines().values()
    (tuned,) = [line for line in lines if isinstance(line, Tuned)]
    assert tuned.variant == "ours"
    assert tuned.chosen["learning_rate"] == 0.5
    assert tuned.seeds == list(TUNED_ON)
    assert min(TUNED_ON) > 100
    assert [point["reached"] for point in tuned.tried] == [0, 0, 2, 2]
    (run,) = [line for line in lines if isinstance(line, Record) and line.variant == "ours"]
    assert {name: run.settings[name] for name in tuned.chosen} == tuned.chosen
    stopped = [read_run(path) for path in (tmp_path / "tuning").glob("*/tuning/*")]
    assert len(stopped) == 8
    assert {run.finished for run in stopped if run.result["best_score"] >= 0.5} == {False}  # that was enough
    monkeypatch.setattr("research.reproduce.tune", None)  # once is enough, elsewhere, too
    shutil.rmtree(tmp_path / "tuning")
    Laboratory(tmp_path, store).run([("small", cell)], 1)
    monkeypatch.setitem(EXPERIMENTS, "small", (cell,))
    text = tables.table("tuning small small/a", store)
    assert "| ours | " in text
    assert "learning rate 0.01, schedule constant: " in text
    assert tables.table("totals small", store).count("\n| ") == 3
    other = replace(cell, tune={"learning_rate": (0.01, 0.4)})
    with pytest.raises(TypeError):
        Laboratory(tmp_path, store).run([("small", other)], 1)


def test_a_run_of_another_default_is_another_run(made, monkeypatch):
    fields = {"task": "logistic@digits", "method": "thrifty"}
    (path,) = (made / "results").glob("**/*.jsonl")
    line = json.loads(path.read_text().splitlines()[1])
    store = Store(made / "results")
    old = Record(**{**line, "settings": described(fields), "plan": plan_of(fields, 650)})
    store._learn(old)
    assert store.runs(fields) == [old]
    monkeypatch.setattr("dagc.policies.plan.usual_bytes", lambda size: 99.0)
    assert store.runs(fields) == []


def test_of_a_wider_grid_only_what_is_new_is_run(tmp_path):
    cell = small(tune={"learning_rate": (0.01, 0.5)})
    cell = replace(cell, variants=cell.variants[:1])
    where = tmp_path / "results"
    Laboratory(tmp_path, Store(where), jobs=2).run([("small", cell)], 1)
    (before,) = Store(where).tuned("small", cell, "ours")
    shutil.rmtree(tmp_path / "tuning")
    Laboratory(tmp_path, Store(where), jobs=2).run(
        [("small", replace(cell, tune={"learning_rate": (0.01, 0.2, 0.5)}))], 1
    )
    ran = [read_run(path).settings["learning_rate"] for path in (tmp_path / "tuning").glob("*/tuning/*")]
    assert ran == [0.2, 0.2]
    (after,) = Store(where).tuned("small", cell, "ours")
    assert [one["learning_rate"] for one in after.tried] == [0.01, 0.2, 0.5]
    assert after.tried[::2] == before.tried


JUDGED = ("targets", "steps", "claims", "verdicts", "costs")
"""They have no accuracy at the end, and tests of their own."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tuning"])
def test_tables_are_made_of_records(made, known, kind):
    store = Store(made / "results")
    text = tables.rewritten(
        f"Before.\n<!-- begin: table {kind} small small/a -->\n<!-- end: table -->\nAfter.\n", store
    )
    assert text.startswith(f"Before.\n<!-- begin: table {kind} small small/a -->\n|")
    assert text.endswith("<!-- end: table -->\nAfter.\n")
    assert "`results/small/small/a.jsonl`; 2 seeds" in text
    assert tables.rewritten(text, store) == text
    assert tables.rewritten(text.replace("ours", "mine"), store) == text
    ours = Store(made / "results").lines()[made / "results" / "small" / "small" / "a.jsonl"][0]
    assert f"{100 * ours.result['final_score']:.0f}" in text or kind in JUDGED


def test_the_documents_waterfall_is_what_the_records_say(tmp_path):
    tables.waterfall(Store(ROOT / "results"), tmp_path / "fall.svg")
    words = [re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()) for path in (tmp_path / "fall.svg", WATERFALL)]
    assert words[0] == words[1], "make results"
    assert sum("÷" in word for word in words[1]) > 10


def test_steps_are_compared_on_the_seeds_that_all_of_them_share():
    variants = [("top-k", "top-k", None, [100], [0.5]), ("ours", "dagc", None, [50, 500], [0.5, 0.5])]
    assert [row[3:5] for row in judged("steps", variants)] == [["100 B", ""], ["50 B", "2.00"]]


def test_a_step_is_judged_seed_by_seed_beside_the_one_before():
    taken = [("one", [100, 110, 90]), ("two", [50, 56, 44]), ("three", [51, 54, 45]), ("four", [151, 155, 144])]
    rows = judged("steps", [(label, "dagc", None, bytes, ENDS) for label, bytes in taken])
    assert [row[4:6] for row in rows] == [
        ["", ""], ["2.00", "fewer"], ["1.00", "no clear difference"], ["0.33", "**more**"]
    ]  # fmt: skip
    missed = [("one", "dagc", None, [100], [0.5]), ("two", "dagc", None, [None], [0.5])]
    assert [len(row) for row in judged("steps", missed)] == [len(rows[0])] * 2


def test_the_waterfall_has_every_step_with_its_factor(made, known, tmp_path):
    panel = tables.shown("small", small(), Store(made / "results")).panel
    write_waterfall([panel], tmp_path / "fall.svg")
    text = (tmp_path / "fall.svg").read_text()
    ours, theirs = (reached(one, 0.5).bytes_total.mean for one in panel.series)
    for words in ("ours", "theirs", "to 50 %", in_bytes(ours), f"{in_bytes(theirs)}  × {theirs / ours:.2f}"):
        assert words in text
    never = replace(panel, targets=(0.3, 0.999))
    write_waterfall([never], tmp_path / "again.svg")
    assert "to 30 %" in (tmp_path / "again.svg").read_text()  # the highest that all reach
    write_waterfall([replace(panel, targets=(0.5,))], tmp_path / "third.svg")
    assert (tmp_path / "third.svg").read_text() == text


def test_bytes_to_a_target_stand_beside_how_many_seeds_reached_it(made, known, monkeypatch):
    store = Store(made / "results")
    text = tables.table("targets small small/a", store)
    heads, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    assert heads[:8] == ["to", "", "up", "down", "total", "more than the first", "rounds", "seconds"]
    assert heads[8:] == ["with 50 ms latency"]
    assert [row[:2] for row in rows] == [["30 %", "ours"], ["", "theirs"], ["50 %", "ours"], ["", "theirs"]]
    panel = tables.shown("small", small(), store).panel
    goal = reached(panel.series[0], 0.3)
    assert rows[0][4].strip("*").startswith(f"{goal.bytes_total.mean / 1e3:.1f} ± ")
    assert rows[1][5].startswith("+")
    assert rows[0][8] == brief(goal.seconds.mean + 2 * 0.05 * goal.rounds.mean)  # a download and an upload each round
    monkeypatch.setitem(EXPERIMENTS, "small", (replace(small(), targets=(0.999,)),))
    assert "0 of 2 seeds" in tables.table("targets small", store)


def judged(kind, variants, targets=(0.5,)):
    """The rows of a table of verdicts, of runs that take some bytes to 50 % and end at some accuracy, seed by seed."""
    cell = Cell("a/b", "A cell", {"task": "mlp@digits", "rounds": 9}, (), targets)
    made, series = [], []
    for label, method, paper, taken, ends in variants:
        made.append(Variant(label, {"method": method}, paper))
        runs = []
        for seed, (bytes, end) in enumerate(zip(taken, ends, strict=True)):
            rows = (
                [] if bytes is None else [{"round": 5, "score": 0.5, "bytes_up": bytes, "bytes_down": 0, "seconds": 1}]
            )
            result = {"final_score": end, "best_score": 0.5}
            runs.append(Run(Path(), {"seed": seed, "task": "mlp@digits", "method": method}, {}, rows, result))
        series += [Series(label, tuple(runs))] if runs else []
    found = replace(cell, variants=tuple(made))
    return KINDS[kind]([Shown("x", found, Panel("A cell", tuple(series), targets), (), ())])[1]


ENDS = [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("ours", "theirs", "row"),
    [
        ([100, 101, 99], [200, 202, 198], ["theirs", "2.00", "3", "ours needs fewer"]),
        ([200, 202, 198], [100, 101, 99], ["theirs", "0.50", "3", "**theirs needs fewer**"]),
        ([100, 110, 90], [120, 115, 122], ["theirs", "1.19", "3", "perhaps ours needs fewer"]),
        ([100, 110, 90], [90, 110, 101], ["theirs", "1.00", "3", "no clear difference"]),
        ([100, 100], [200, 200], ["theirs", "2.00", "2", "perhaps ours needs fewer"]),
        ([100], [200], ["theirs", "2.00", "1", "one seed cannot say"]),
        ([100, 100, 10, 10, 10], [50, 51], ["theirs", "0.51", "2", "perhaps **theirs needs fewer**"]),
        ([100, None, 100], [200, 200, 200], ["theirs", "", "3", "**theirs gets there**, ours with 2 of 3 seeds"]),
        ([100, 100, 100], [200, None, 200], ["theirs (2 of 3 seeds)", "2.00", "2", "perhaps ours needs fewer"]),
        ([90, 1, 100, 95], [180, None, 202, 189], ["theirs (3 of 4 seeds)", "2.00", "3", "ours needs fewer"]),
        ([100], [None, 200, 200], ["", "", "1", "only ours gets there; theirs with 2 of 3 seeds: 200 B"]),
        (
            [100, None],
            [None, None, 9],
            ["", "", "2", "nobody gets there: ours with 1 of 2 seeds; theirs with 1 of 3 seeds: 9 B"],
        ),
        ([100, 100], [200, None], ["", "", "2", "only ours gets there; theirs with 1 of 2 seeds: 200 B"]),
        (
            [100, None, 100],
            [None, None, 200],
            ["", "", "3", "nobody gets there: ours with 2 of 3 seeds; theirs with 1 of 3 seeds: 200 B"],
        ),
        ([0, 0, 0], [200, 201, 202], ["theirs", "", "3", "ours needs fewer"]),
    ],
)
def test_a_verdict_says_who_needs_fewer_bytes(ours, theirs, row):
    variants = [
        ("ours", "dagc", None, ours, ENDS[:1] * len(ours)),
        ("theirs", "stc", None, theirs, ENDS[:1] * len(theirs)),
    ]
    assert judged("verdicts", variants) == [["A cell", "50 %", *row, "`x/a/b`"]]
    other = ("ours, larger", "dagc", None, [1] * len(ours), ENDS[:1] * len(ours))  # is no rival of its own method
    assert judged("verdicts", [*variants, other]) == [["A cell", "50 %", *row, "`x/a/b`"]]


def test_of_one_method_alone_the_first_variant_is_judged_beside_the_others():
    with_it, without = ("with it", "dagc", None, [100, 101, 99], ENDS), ("without", "dagc", None, [200, 203, 198], ENDS)
    assert judged("verdicts", [with_it, without])[0][2:6] == ["without", "2.00", "3", "with it needs fewer"]
    later = ("STC", "stc", None, [], [])  # is not recorded yet
    assert judged("verdicts", [with_it, without, later])[0][5] == "only with it gets there"


@pytest.mark.parametrize(
    ("papers", "ours", "theirs", "cells"),
    [
        ((69.3, 67.4), [0.70, 0.71, 0.69], [0.60, 0.61, 0.59], ["+1.90", "+10.00 ± 0.00", "3", "holds"]),
        ((67.4, 69.3), [0.70, 0.71, 0.69], [0.60, 0.61, 0.59], ["−1.90", "+10.00 ± 0.00", "3", "**the opposite**"]),
        ((67.4, 69.3), [0.60, 0.61, 0.59], [0.70, 0.71, 0.69], ["−1.90", "−10.00 ± 0.00", "3", "holds"]),
        ((69.3, 69.3), [0.70, 0.71, 0.69], [0.60, 0.61, 0.59], ["+0.00", "+10.00 ± 0.00", "3", "above"]),
        ((None, None), [0.60, 0.61, 0.59], [0.70, 0.71, 0.69], ["", "−10.00 ± 0.00", "3", "**below**"]),
        ((69.3, 67.4), [0.70, math.nan, 0.70], [0.6, 0.6, 0.6], ["+1.90", "", "3", "a run diverged"]),
    ],
)
def test_a_claim_is_judged_by_what_the_paper_says(papers, ours, theirs, cells):
    variants = [("ours", "dagc", papers[0], [1] * 3, ours), ("theirs", "stc", papers[1], [1] * 3, theirs)]
    assert judged("claims", variants) == [["A cell", "ours − theirs", *cells, "`x/a/b`"]]


def test_costs_are_rounds_and_accuracy_beside_what_sends_everything():
    cell = Cell("a/b", "A cell", {"task": "mlp@digits", "rounds": 9}, (), (0.5, 0.6, 0.9))
    made, series = [], []
    for label, method, firsts, ends in [
        ("ours", "dagc", [[6, 20], [6, 22]], [0.7, 0.8]),
        ("STC", "stc", [[1, 1], [1, 1]], [0.7, 0.8]),
        ("FedAvg", "none", [[4, 8], [4, 6], [1, 1]], [0.72, 0.84, 0.1]),
        ("FedAdam", "none", [], []),
    ]:
        made.append(Variant(label, {"method": method}))
        runs = []
        for seed, (rounds, end) in enumerate(zip(firsts, ends, strict=True)):
            rows = [
                {"round": number, "score": goal, "bytes_up": 1, "bytes_down": 0, "seconds": 1}
                for number, goal in zip(rounds, (0.5, 0.6), strict=True)
            ]
            result = {"final_score": end, "best_score": 0.6, "rounds": 30}
            runs.append(Run(Path(), {"seed": seed, "task": "mlp@digits", "method": method}, {}, rows, result))
        series += [Series(label, tuple(runs))] if runs else []
    found = Shown("x", replace(cell, variants=tuple(made)), Panel("A cell", tuple(series), cell.targets), (), ())
    heads, rows = KINDS["costs"]([found])
    assert heads[1:3] == ["times the rounds of FedAvg", "times the rounds of FedAdam"]
    assert rows == [["A cell", "1.5 to 3.0", "", "−3.00 ± 1.41", "", "30 / 30", "`x/a/b`"]]


@pytest.mark.parametrize("kind", ["claims", "verdicts"])
def test_a_verdict_needs_the_first_variant(kind):
    variants = [("ours", "dagc", None, [], []), ("theirs", "stc", None, [1], [1]), ("others", "none", None, [1], [1])]
    with pytest.raises(InvalidInput, match="there is no record of ours in x a/b"):
        judged(kind, variants)


def test_what_was_not_run_is_named_once(made, known, monkeypatch):
    store = Store(made / "results")
    more = replace(small(), variants=(*small().variants, Variant("later", {"method": "none", "optimizer": "Adam"})))
    monkeypatch.setitem(EXPERIMENTS, "small", (more, replace(more, name="small/b")))
    assert tables.table("totals small", store).count("Not run: later.") == 1
    monkeypatch.setitem(EXPERIMENTS, "small", (more, small("small/b")))
    assert "Not run: later (small/a)." in tables.table("totals small", store)


def test_rounds_seconds_and_uploads_are_what_they_say(made, known):
    store = Store(made / "results")
    ours = tables.shown("small", small(), store).panel.series[0]
    goal = reached(ours, 0.3)
    for kind, cell in (
        ("rounds", f"{goal.rounds.mean:,.0f} ± {goal.rounds.sd:,.0f}"),
        ("uploads", f"{goal.bytes_up.mean / 1e3:.2f} ± "),
        ("seconds", f"{goal.seconds.mean:.2g}"[:4]),
    ):
        row = next(line for line in tables.table(f"{kind} small small/a", store).splitlines() if "| ours |" in line)
        assert row.replace("**", "").startswith(f"| ours | {cell}"), kind


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("totals small small/b", "there is no record of small small/b"),
        ("totals small small/a iterations=7", "with 7 rounds"),
        ("totals small small/a rounds=7", "write KIND EXPERIMENT CELLS"),
        ("sums small", "there is no kind of table 'sums'"),
        ("totals huge", "there is no experiment 'huge'"),
        ("totals", "there is no experiment ''"),
        ("tuning small small/a", "nothing is tuned"),
        ("totals small small/c", "no cell begins with 'small/c'"),
        ("measured steps", "there is no record .*steps.json"),
        ("measured", "write measured NAME"),
    ],
)
def test_a_table_without_a_record_is_refused(made, known, monkeypatch, words, message):
    other = replace(small("small/b"), fields={**small().fields, "learning_rate": 0.3})
    monkeypatch.setitem(EXPERIMENTS, "small", (small(), other))
    with pytest.raises(InvalidInput, match=message):
        tables.table(words, Store(made / "results"))


def test_a_benchmarks_table_is_shown_as_it_was_printed(tmp_path):
    rows = [["Top-k | 1 %", "1.78", ""], ["", "**2.9**", "≤ 3.0"]]
    table = Measured(
        "Steps", "python -m benchmarks.steps", ["", "ours", "wanted"], rows, ["Medians"], "abc1234", "a PC"
    )
    table.write(tmp_path / "benchmarks" / "steps.json")
    text = tables.rewritten("<!-- begin: table measured steps -->\n<!-- end: table -->", Store(tmp_path))
    assert text.splitlines()[1:-1] == [
        "|  | ours | wanted |",
        "| --- | ---: | ---: |",
        "| Top-k / 1 % | 1.78 |  |",
        "|  | **2.9** | ≤ 3.0 |",
        "",
        "Steps. Record: `results/benchmarks/steps.json`; `python -m benchmarks.steps`, commit abc1234, a PC. Medians.",
    ]
    replace(table, rows=[["one cell"]]).write(tmp_path / "benchmarks" / "steps.json")
    with pytest.raises(InvalidInput, match=r"steps\.json is not a record of a benchmark: a row has"):
        tables.table("measured steps", Store(tmp_path))


def test_records_of_before_settings_were_shared_are_read(made, tmp_path):
    store = Store(made / "results")
    (lines,) = store.lines().values()
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "a.jsonl").write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    assert list(Store(tmp_path).lines().values()) == [lines]


@pytest.mark.parametrize(
    "text", ['{"variant": "a"}', '{"variant": "a", "settings": 1}', '{"shared": 1}', "[]", "1", "{"]
)
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y.jsonl").write_text(text + "\n")
    with pytest.raises(InvalidInput, match=r"line 1 of .*y\.jsonl is not a record"):
        Store(tmp_path)


def test_every_table_of_the_documents_is_what_the_records_say():
    store, tables_found = Store(ROOT / "results"), 0
    for path in DOCUMENTS:
        text = path.read_text()
        found = len(tables.MARKED.findall(text))
        assert text.count("<!-- begin: table") == text.count("<!-- end: table") == found, path
        assert tables.rewritten(text, store) == text, f"{path}: make results"
        tables_found += found
    assert tables_found or not store.lines()


def test_every_record_is_of_a_cell_that_there_is():
    """Whatever is no longer part of an experiment goes."""
    store = Store(ROOT / "results")
    for path, lines in store.lines().items():
        experiment, _, name = str(path.relative_to(ROOT / "results").with_suffix("").as_posix()).partition("/")
        (cell,) = [cell for cell in EXPERIMENTS[experiment] if cell.name == name]
        for line in lines:
            (variant,) = [one for one in cell.variants if one.label == line.variant]
            same = cell if "rounds" in variant.fields else cell.shrunk(line.settings["rounds"])
            if isinstance(line, Record):
                ways = [{**fields, "seed": line.seed} for fields in same.candidates(variant)]
                assert identity(line.settings) in map(identity, ways), f"{path}: {line.variant}, seed {line.seed}"
            else:
                assert line.chosen == best_of(line.tried, list(line.chosen)).chosen, f"{path}: {line.variant}"
    size = sum(path.stat().st_size for path in store.lines())
    assert size < 3_000_000


SETTINGS = ("docs/how-to/budget.md", "docs/reference/")
"""Their tables have amounts that users give, and sizes of formats and models: nothing that was measured."""
FIGURE = re.compile(r"±|\d ?(%|kB|MB|GB|ms|µs|ns|×)(?!\w)|\d (s|bytes|times)(?!\w)")
NUMBER = re.compile(r"[−+≈]?\d[\d.,]*\.\d+")


def typed_figures(text):
    """The rows of tables outside markers that look measured: a figure with a unit, or a cell that is a decimal."""
    text = re.sub(r"```.*?```", "", tables.MARKED.sub("", text), flags=re.DOTALL)
    rows = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    plain = {row: re.sub(r"`[^`]*`", "", row).replace("*", "") for row in rows}
    return [
        row
        for row, words in plain.items()
        if FIGURE.search(words) or any(NUMBER.fullmatch(cell.strip()) for cell in words.split("|"))
    ]


def test_no_document_has_a_table_of_figures_that_somebody_typed():
    typed = ["| ours | 34.7 ± 2.1 |", "| x | 12 kB |", "| y | **83.12** |", "| z | 12.5 s |"]
    assert typed_figures("\n".join([*typed, "| `--rate '1 MB/hour'` | 7 rounds |"])) == typed
    for path in DOCUMENTS:
        if not path.relative_to(ROOT).as_posix().startswith(SETTINGS):
            assert not typed_figures(path.read_text()), f"{path}: make it of records, CONTRIBUTING.md says how"


def test_a_plan_knows_how_many_more_rounds_dagc_has_taken():
    store, found = Store(ROOT / "results"), []
    for cell in EXPERIMENTS["rivals"]:
        if store.path("rivals", cell).exists():
            series = {one.label: one for one in tables.shown("rivals", cell, store).panel.series}
            for goal in cell.targets:
                ours, dense = (reached(series[name], goal).rounds for name in ("thrifty", "FedAvg"))
                found += [ours.mean / dense.mean] if ours and dense else []
    assert round(max(found)) == MORE_ROUNDS
