"""Larger and more real federations: what they are made of, that they train, and what their table says."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dagc.data import load
from dagc.errors import MissingData
from dagc.models import parameter_count
from research import federations, larger
from research.gpt import Gpt
from research.larger import METHODS, TABLES, TASKS, Task, missing, training


def run(method, seed, accuracy, sent, task="images"):
    scores = [[4, 0.1, 2.3], [8, accuracy, 1.5]]
    return {
        "task": task, "method": method, "seed": seed, "parameters": 1_209_034, "scores": scores,
        "bytes_up": sent, "bytes_down": sent,
    }  # fmt: skip


def test_the_table_compares_seed_by_seed_with_the_same_without_compression():
    every = [run("FedAvg", 0, 0.5, 10_000), run("FedAvg", 1, 0.7, 10_000), run("dagc", 0, 0.51, 200)]
    every += [run("dagc", 1, 0.69, 200), run("dagc + Nesterov", 0, 0.9, 100)]
    heads, rows, source = TABLES["ends"](every)
    assert rows == [
        [TASKS["images"].title, "1,209,034", "8", "FedAvg", "60.0 ± 14.1", "", "1.500", "20.0 kB", ""],
        ["", "", "", "dagc", "60.0 ± 12.7", "+0.0 ± 1.4", "1.500", "400 B", "50"],
    ]
    assert len(heads) == len(rows[0])
    assert "two seeds" in source


def test_ends_without_compression_are_of_the_seeds_that_are_compared():
    every = [run("FedAvg", 0, 0.5, 10_000), run("FedAvg", 1, 0.7, 10_000), run("dagc", 1, 0.69, 200)]
    assert [row[4:6] for row in TABLES["ends"](every)[1]] == [["70.0", ""], ["69.0", "−1.0"]]


def test_a_table_without_records_is_empty():
    assert TABLES["ends"]([])[1] == []


def test_what_is_recorded_is_not_run_again(tmp_path):
    path = tmp_path / "larger.jsonl"
    every = missing(path, ["activities", "messages"], list(METHODS))
    assert len(every) == 3 * len(METHODS) + 2
    path.write_text('{"task": "messages", "method": "dagc", "seed": 0}\n')
    assert ("messages", "dagc", 0) not in missing(path, ["activities", "messages"], list(METHODS))


def test_a_task_trains_and_its_record_has_what_the_table_needs(monkeypatch):
    def make(folder, seed):
        return {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "data": load("digits")}

    settings = {"rounds": 3, "local_steps": 2, "clients": 4, "skew_ratio": 2.0, "evaluate_every": 1}
    monkeypatch.setitem(TASKS, "images", Task("digits", make, settings))
    every = [training("images", method, 0, None) for method in ("FedAvg", "dagc + Nesterov", "FedAvg + Nesterov")]
    assert [(each["parameters"], each["clients"], len(each["scores"])) for each in every] == [(650, 4, 3)] * 3
    assert every[1]["settings"]["momentum"] == 0.9
    assert [row[3] for row in TABLES["ends"](every)[1]] == ["FedAvg", "FedAvg + Nesterov", "dagc + Nesterov"]


def test_activities_are_read_by_person(tmp_path):
    with pytest.raises(MissingData, match="wisdm"):
        federations.activities(tmp_path, 0)
    rows = [f"{place},{33 + place % 2},{','.join([str(place % 7)] * 42)},?,Jogging;" for place in range(20)]
    path = tmp_path / federations.WISDM
    path.parent.mkdir()
    path.write_text("@relation a\n@attribute class\n@data\n" + "\n".join(rows))
    made = federations.activities(tmp_path, 0)
    assert {person: (x.shape, set(y)) for person, (x, y) in made["data"].items()} == {
        "33": ((10, 43), {1}), "34": ((10, 43), {1})
    }  # fmt: skip
    assert made["model"](torch.from_numpy(made["data"]["33"][0])).shape == (10, 6)


def test_ratings_are_divided_by_person_and_at_four_stars(monkeypatch):
    frame = {"userId": [7, 7, 9], "movieId": [100, 50, 100], "rating": [4.0, 3.5, 5.0]}
    package = SimpleNamespace(data=lambda *names: frame)
    monkeypatch.setattr(federations, "_package", lambda *names: package)
    made = federations.ratings(None, 0)
    assert {person: (x.tolist(), y.tolist()) for person, (x, y) in made["data"].items()} == {
        "7": ([[0, 1], [0, 0]], [1, 0]), "9": ([[1, 1]], [1])
    }  # fmt: skip
    assert parameter_count(made["model"]) == (2 + 2) * 17


def test_the_seed_draws_the_model_and_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    models = [federations._drawn(seed, lambda: nn.Linear(3, 3)).weight.detach().numpy() for seed in (0, 0, 1)]
    assert np.array_equal(models[0], models[1])
    assert not np.array_equal(models[0], models[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_missing_package_says_what_to_install():
    with pytest.raises(MissingData, match="pip install something"):
        federations._package("no_such_package", "something")
    with pytest.raises(MissingData, match="pip install something"):
        federations._folder("no_such_package", "something")


def test_a_wider_gpt_has_ten_million_parameters():
    with torch.device("meta"):
        assert parameter_count(Gpt(80, 65, 384, 6, 6)) == 10_728_257


def test_every_task_says_what_it_is_called():
    assert all(chosen.title and set(chosen.methods) <= set(larger.METHODS) for chosen in TASKS.values())
