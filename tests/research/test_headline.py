"""The headline: rates are searched to an interior best, never on the test set, and tables say what is there."""

import itertools
import json
import math
from unittest.mock import patch

import pytest
import torch

from dagc import InvalidInput
from dagc.data import CATALOGUE, load
from dagc.training import Config, Training, iterate
from research import Store, headline, headline_tables, recipes, tables
from research.headline_tables import TABLES, end, reached, within

SMALL = {"task": "logistic@digits", "rounds": 4, "local_steps": 3, "learning_rate": 0.1, "evaluate_every": 1}


@pytest.mark.parametrize("best", [(0, 0), (3, -2), (-4, 5)])
def test_a_search_ends_where_every_neighbor_is_worse(best):
    found = {}
    while (point := headline.next_point(found)) is not None:
        found[point] = 1 - 0.01 * math.dist(point, best)
    assert max(found, key=found.get) == best
    around = [(best[0] + i, best[1] + j) for i, j in ((-1, 0), (1, 0), (0, -1), (0, 1))]
    assert all(each in found for each in around)
    assert len(found) == len(set(found)) <= 5 + 4 * (abs(best[0]) + abs(best[1]))


def test_validation_samples_are_training_samples_and_no_test_sample_is_seen():
    whole, split = load("digits"), headline.validation("digits", None)
    assert (len(split) + len(split.test_y), len(split.test_y)) == (len(whole), pytest.approx(len(whole) / 5, abs=10))
    rows = [tuple(row.reshape(-1).tolist()) for row in (*split.train_x, *split.test_x)]
    assert sorted(rows) == sorted(tuple(row.reshape(-1).tolist()) for row in whole.train_x)


def test_a_headline_is_tuned_tested_and_not_run_again(monkeypatch, tmp_path):
    monkeypatch.setitem(headline.TASKS, "digits", SMALL)
    path = tmp_path / "results" / "headline.jsonl"
    with patch.dict(CATALOGUE):  # what is registered goes again
        headline.register()
        headline.run("digits", "FedAvg", 0, None, path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    *points, run = rows
    found = {tuple(row["point"]): row["score"] for row in points}
    assert headline.next_point(found) is None
    assert len(found) == len(points) >= 5
    doubled = max(found, key=found.get)
    assert run["rates"] == {"client": 0.1 * 2.0 ** doubled[0], "server": 2.0 ** doubled[1]}
    assert [row[0] for row in run["curve"]] == [1, 2, 3, 4]
    monkeypatch.setattr(headline, "trained", lambda *_, **__: pytest.fail("it is done already"))
    headline.run("digits", "FedAvg", 0, None, path)


def test_every_method_trains_and_counts_the_first_model(monkeypatch):
    monkeypatch.setitem(headline.TASKS, "digits", SMALL)
    for method in headline.METHODS:
        first, *_, (round, score, _) = headline.trained("digits", method, 0, (0, 0), None)
        assert (first[0], round, 0 <= score <= 1) == (1, 4, True)
        exact = method in headline_tables.UNCOMPRESSED
        assert first[2] > 10 * 650 * (4 if exact else 4 / 8) * 0.9, method


def test_without_loss_a_recipe_is_fedavg(monkeypatch):
    class Everything:
        def exchange(self, changes, weights):
            size = 4 * sum(part.numel() for part in changes[0]) * len(changes)
            vectors = [torch.cat([part.reshape(-1) for part in change]) for change in changes]
            return recipes.Exchange(recipes.sum_of(vectors, weights), size, 0, size)

    config = Config(**SMALL, method="none")
    ours = list(Training(recipes.RecipeFederation(config, Everything()), None, []))
    theirs = list(iterate(config))
    for one, other in zip(ours, theirs, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.006)
        assert one.bytes_up == pytest.approx(other.bytes_up, rel=0.01)
        assert one.bytes_down == pytest.approx(other.bytes_down, rel=0.01)


def test_qsgd_is_right_on_average():
    vector = torch.randn(700, generator=torch.Generator().manual_seed(0))
    coder = recipes.Qsgd(4, 0)
    mean = torch.stack([coder.rounded(vector) for _ in range(2000)]).mean(0)
    assert float((mean - vector).abs().max()) < 0.05
    assert float((coder.rounded(vector) - vector).abs().max()) <= float(vector.abs().max()) / 7
    assert not coder.rounded(torch.zeros(5)).any()


def test_powersgd_sends_later_what_it_did_not_send():
    generator = torch.Generator().manual_seed(0)
    changes = [[torch.randn(12, 9, generator=generator), torch.randn(5, generator=generator)] for _ in range(2)]
    recipe, total = recipes.PowerSGD(2, 0), torch.zeros(113)
    for done in range(1, 40):
        exchange = recipe.exchange(changes, [0.25, 0.75])
        total += exchange.mean
        kept = recipes.sum_of([torch.cat([part.reshape(-1) for part in each]) for each in recipe.kept], [0.25, 0.75])
        vectors = [torch.cat([part.reshape(-1) for part in change]) for change in changes]
        assert torch.allclose(total + kept, done * recipes.sum_of(vectors, [0.25, 0.75]), atol=1e-3)
    assert (exchange.up, exchange.back, exchange.down) == (2 * 4 * (2 * 21 + 5), 2 * 4 * 24, 2 * 4 * (18 + 5))


def test_sparseloco_keeps_what_it_did_not_send_and_lets_it_fade():
    recipe = recipes.SparseLoCo()
    change = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    first = recipe.exchange([[change]], [1.0])
    assert int((first.mean != 0).sum()) == 128
    assert torch.equal(recipe.kept[0], change - first.mean)
    assert (first.up, first.down) == (2 * (112 + 8), 0)  # there is nobody else
    recipe.exchange([[torch.zeros(5000)]], [1.0])
    assert float(recipe.kept[0].norm()) < 0.95 * float((change - first.mean).norm())


def run(method, seed, scores, each, task="digits"):
    curve = [[i + 1, score, each * (i + 1)] for i, score in enumerate(scores)]
    return {"task": task, "method": method, "seed": seed, "rates": {"client": 0.1, "server": 1.0}, "curve": curve}


def point(method, score, at=(0, 0)):
    return {"task": "digits", "method": method, "point": list(at), "score": score}


RISING = [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9]
ROWS = [
    *(point("FedAvg", 0.8, (i, 0)) for i in range(3)),
    point("FedAdam", 0.95),
    point("dagc", 0.9),
    *(run("FedAvg", seed, [0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8], 1000) for seed in (0, 1)),
    *(run("FedAdam", seed, RISING, 1000) for seed in (0, 1)),
    *(run("dagc", seed, RISING, 10) for seed in (0, 1)),
    *(run("STC, 1 %", seed, [0.5] * 7, 5) for seed in (0, 1)),
]


def test_the_best_uncompressed_method_is_the_one_that_validation_says():
    heads, rows, source = TABLES["brief"](ROWS)
    line = ["MLP, digits", "80.0 ± 0.0", "FedAdam: 90.0 ± 0.0", "7.00 kB", "dagc: 70 B in 7", "FedAvg"]
    assert [*rows[0][:5], rows[0][5][-len("ends at −10.0") :]] == [*line[:5], "ends at −10.0"]
    assert "two seeds" in source
    assert len(heads) == len(rows[0])


def test_cost_is_bytes_and_rounds_to_a_target_or_how_far_below_it_ends():
    heads, rows, _ = TABLES["best"](ROWS)
    assert heads == ["method", "digits: FedAdam, 90.0 %"]
    assert rows == [
        ["FedAvg", "ends at −10.0"],
        ["FedAdam", "7.00 kB in 7"],
        ["dagc", "70 B in 7"],
        ["STC, 1 %", "ends at −40.0"],
    ]
    assert TABLES["fedavg"](ROWS)[1][2] == ["dagc", "50 B in 5"]
    some = [run("dagc", 2, [0.1] * 7, 10), run("FedAdam", 2, RISING, 1000)]
    assert TABLES["best"]([*ROWS, *some])[1][2] == ["dagc", "70 B in 7, 2 of 3 seeds"]


def test_quality_is_at_equal_rounds_and_at_equal_bytes():
    assert TABLES["rounds"](ROWS)[1][2] == ["dagc", "90.0 ± 0.0", "+10.0 ± 0.0"]
    heads, rows, _ = TABLES["bytes"](ROWS)
    assert heads == ["method", "digits, 70 B"]
    assert rows == [
        ["FedAvg", "no evaluation"],
        ["FedAdam", "no evaluation"],
        ["dagc", "90.0 ± 0.0"],
        ["STC, 1 %", "50.0 ± 0.0"],
    ]
    assert TABLES["rates"](ROWS)[1][0] == ["FedAvg", "0.1, 1; 3"]


def test_a_verdict_says_what_holds_and_what_does_not():
    verdicts = dict(TABLES["verdicts"](ROWS)[1])
    assert verdicts["`dagc` ends where FedAvg ends"] == "holds: +10.0 ± 0.0"
    assert verdicts["`dagc` + Nesterov ends where server Nesterov ends"] == ""
    assert verdicts["a `dagc` ends where the best uncompressed method ends"] == "holds: +0.0 ± 0.0, dagc"
    assert verdicts["nobody else gets there with fewer bytes"] == "holds: dagc 70 B, nobody else gets there"
    assert verdicts["nobody else is more accurate at the bytes of `dagc`"] == "holds: dagc 90.0, STC, 1 % 50.0"
    better = [run("STC, 1 %", seed, [0.94] * 7, 5) for seed in (0, 1)]
    lost = dict(TABLES["verdicts"]([*ROWS, *better, *(run("dagc", seed, [0.5] * 7, 10) for seed in (0, 1))])[1])
    assert lost["`dagc` ends where FedAvg ends"] == "**no**: −30.0 ± 0.0"
    assert lost["nobody else gets there with fewer bytes"] == "**no**: none of ours gets there"
    assert lost["nobody else is more accurate at the bytes of `dagc`"] == "**no**: dagc 50.0, STC, 1 % 94.0"
    cheaper = dict(TABLES["verdicts"]([*ROWS, *better])[1])
    assert cheaper["nobody else gets there with fewer bytes"] == "**no**: dagc 70 B, STC, 1 % 15 B"


def test_a_document_cannot_have_a_headline_without_a_record(tmp_path):
    with pytest.raises(InvalidInput, match="there is no record for table headline brief"):
        tables.table("headline brief", Store(tmp_path))
    (tmp_path / "headline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert "FedAdam: 90.0 ± 0.0" in tables.table("headline brief", Store(tmp_path))
    assert "| all | 66 | 0 | 0 |" in tables.table("coverage paper", Store(tmp_path))


@pytest.mark.parametrize("count", range(len(ROWS)))
def test_tables_are_made_of_whatever_is_there(count):
    for make in TABLES.values():
        heads, rows, _ = make(ROWS[:count])
        assert all(len(row) == len(heads) for row in rows)


def test_an_accuracy_is_the_mean_of_three_evaluations():
    curve = [[1, 0.1, 10], [2, 0.9, 20], [3, 0.2, 30], [4, 0.7, 40]]
    assert (end(curve), reached(curve, 0.4), reached(curve, 0.6)) == (0.6, (3, 30), (4, 40))
    assert (within(curve, 39), within(curve, 9)) == (0.4, None)
    assert reached(curve, end(curve)) == (4, 40)


def test_a_thin_curve_keeps_its_end():
    curve = [[i, 0.5, i] for i in range(1, 101)]
    thin = headline.thinned(curve)
    assert thin[-3:] == curve[-3:]
    assert len(thin) <= 33
    assert headline.thinned(curve[:30]) == curve[:30]
    assert all(one[0] < other[0] for one, other in itertools.pairwise(thin))


def test_methods_and_tables_agree_on_names():
    assert set(headline_tables.UNCOMPRESSED) <= set(headline.METHODS)
    assert set(recipes.RECIPES) <= set(headline.METHODS)
    assert set(headline_tables.SHORT) == set(headline.TASKS)
