"""Settings are chosen for each way to solve a problem, once, on seeds of their own."""

import pytest

from dagc import InvalidInput
from dagc.folder import finished
from dagc.report import read_run
from research.tuning import best_of, tune

BASE = {"task": "logistic@digits", "rounds": 12, "evaluate_every": 3, "skew_ratio": 20}


def candidates(settings, rates):
    return [{**settings, "learning_rate": rate} for rate in rates]


def test_tuning_chooses_for_each_way_and_does_it_once(tmp_path, monkeypatch):
    settings = {**BASE, "task": "mlp@digits", "rounds": 6, "evaluate_every": 1, "ratio": 0.05}
    rates = [0.001, 0.3, 1e30]
    dense = {name: value for name, value in settings.items() if name != "ratio"}
    ways = [candidates({**settings, "method": "top-k"}, rates), candidates({**dense, "method": "none"}, rates)]
    ways.append(candidates({**settings, "method": "stc"}, [0.1]))
    by_bytes = tune(ways, ["learning_rate"], [1000, 1001], 0.5, tmp_path / "bytes", jobs=2)
    assert [choice.chosen for choice in by_bytes] == [{"learning_rate": 0.3}, {"learning_rate": 0.3}, {}]
    assert [choice.by for choice in by_bytes[:2]] == ["bytes_total", "bytes_total"]
    assert [choice.at_the_edge for choice in by_bytes] == [[], [], []]
    low, good, wild = by_bytes[1].tried
    assert (low["bytes_total"], wild["bytes_total"], wild["score"]) == (None, None, None)
    assert low["score"] < good["score"]
    runs = [read_run(path) for path in sorted((tmp_path / "bytes" / "tuning").glob("none-*")) if finished(path)]
    mine = [run for run in runs if run.settings["learning_rate"] == 0.3]
    assert sorted(run.seed for run in mine) == [1000, 1001]
    firsts = [next(row for row in run.rows if row["score"] >= 0.5) for run in mine]
    assert good["bytes_total"] == sum(row["bytes_up"] + row["bytes_down"] for row in firsts) / 2
    monkeypatch.setattr("research.tuning.run_all", lambda *_, **__: pytest.fail("it is done already"))
    assert tune(ways, ["learning_rate"], [1000, 1001], 0.5, tmp_path / "bytes", jobs=2) == by_bytes
    with pytest.raises(pytest.fail.Exception, match="done already"):  # another target is another question
        tune(ways, ["learning_rate"], [1000, 1001], 0.6, tmp_path / "bytes", jobs=2)


def test_tuning_without_a_target_or_one_that_nobody_reaches_is_by_accuracy(tmp_path):
    settings = {**BASE, "rounds": 4, "evaluate_every": 1, "ratio": 0.05}
    ways = [candidates({**settings, "method": "top-k"}, [0.001, 0.3])]
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
    ways = [candidates({**BASE, "task": "mlp@digits", "method": "none"}, [1e29, 1e30])]
    with pytest.raises(InvalidInput, match="every candidate of learning_rate diverged: try smaller"):
        tune(ways, ["learning_rate"], [1000], None, tmp_path, jobs=1)
