"""Data of one's own in files: a CSV's clients, numbers, texts; what is given wrongly is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import dagc
from dagc import Config, InvalidInput
from dagc.data import load
from dagc.training import Federation, iterate, train
from tests.training.test_own_model import DATA, NUMBERS, X, config

CSV = "a,b,client,label\n" + "".join(
    f"{i % 7},{i % 3},{'north' if i % 4 else 'south'},{'yes' if i % 2 else 'no'}\n" for i in range(60)
)


def test_a_csvs_clients_are_used_and_that_is_said(tmp_path):
    (tmp_path / "mine.csv").write_text(CSV)
    task = f"logistic@{tmp_path / 'mine.csv'}"
    federation = Federation(Config(task=task, method="none", rounds=1))
    assert federation.names == ("north", "south")
    assert federation.notes == ("the clients are those that the data names (2): partition by-client",)
    asked = Federation(Config(task=task, method="none", rounds=1, clients=3, skew_ratio=2))
    assert len(asked.names) == 3
    assert asked.notes == ("the clients that the data names are not used: clients and skew_ratio are given",)
    kept = Federation(Config(**federation.config.as_dict()))  # as a run's folder has it
    assert kept.names == ("north", "south")


def test_a_csv_of_numbers_is_a_regression(tmp_path):
    lines = [f"{float(x[0])},{float(x[1])},{float(2000 + 100 * x[0])}" for x in X]
    (tmp_path / "numbers.csv").write_text("a,b,label\n" + "\n".join(lines) + "\n")
    data = load(tmp_path / "numbers.csv")
    assert (data.objective, data.classes) == ("regression", ())
    assert abs(float(data.train_y.mean())) < 1e-5
    assert "regression" in data.notes[0]
    run = train(Config(task=f"logistic@{tmp_path / 'numbers.csv'}", method="none", rounds=40, clients=2, skew_ratio=1))
    assert run.score > 0.9
    (tmp_path / "whole.csv").write_text("a,label\n" + "".join(f"{i},{i % 5}\n" for i in range(50)))
    assert load(tmp_path / "whole.csv").objective == "classification"
    assert load(tmp_path / "whole.csv", objective="regression").objective == "regression"
    np.savez(tmp_path / "numbers.npz", x=X.numpy(), y=NUMBERS.numpy())
    assert load(tmp_path / "numbers.npz").objective == "regression"
    with pytest.raises(dagc.DagcError, match="is for classification, not for regression"):
        load("digits", objective="regression")


def test_texts_are_clients_whose_next_characters_are_learned(tmp_path):
    (tmp_path / "ann.txt").write_text("abcd" * 200)
    (tmp_path / "bob.txt").write_text("dcba" * 100)
    (tmp_path / "short.txt").write_text("abc")
    data = load(tmp_path)
    assert (data.objective, data.classes, data.clients) == ("next-token", ("a", "b", "c", "d"), ("ann", "bob"))
    assert torch.equal(data.train_x[:, 1:], data.train_y[:, :-1])
    assert "1 of 3 texts" in data.notes[0]
    training = iterate(Config(task=f"token-lstm@{tmp_path}", method="none", rounds=30, learning_rate=1.0))
    assert training.federation.names == ("ann", "bob")
    *_, last = training
    assert last.score > 0.4
    with pytest.raises(InvalidInput, match="are sequences of tokens, which mlp cannot take: use token-lstm"):
        Federation(Config(task=f"mlp@{tmp_path}", method="none"))
    with pytest.raises(InvalidInput, match="are not sequences of tokens, which token-lstm needs: use logistic"):
        Federation(Config(task="token-lstm@digits", method="none"))


def test_texts_with_other_characters_are_not_read_by_the_numbers_of_the_first(tmp_path):
    for name, text in (("ann", "ab" * 200), ("bob", "xy" * 200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(text)
    with pytest.raises(
        InvalidInput, match="'bob' and 'ann' have different labels, or characters: give each client one"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partition": [[0, 1], [2, 3]]}, r"a mapping from each client to the positions of its training samples"),
        ({"partition": {"a": [0.5, 1.5]}}, "'a' has .*: give the positions of its training samples"),
        ({"partition": {"a": "x"}}, "'a' has 'x': give the positions of its training samples"),
        ({"metric": lambda output, y: "good"}, "the metric returns 'good': return one number for a batch, its mean"),
        ({"metric": lambda output, y: output}, "(?s)the metric returns .*: return one number for a batch, its mean"),
        ({"config": {"rounds": 2}}, r"config is \{'rounds': 2\}: write dagc.Config"),
        ({"config": "mlp@digits"}, r"config is 'mlp@digits', a text: write task='mlp@digits'"),
        ({"config": "mlp@digits", "rounds": 4}, r"config is 'mlp@digits', a text: write task='mlp@digits'"),
    ],
)
def test_what_is_given_wrongly_is_refused_with_what_to_give(changes, words):
    given = {"config": config(), "model": nn.Linear(6, 2), "data": DATA, **changes}
    with pytest.raises(InvalidInput, match=words):
        train(**given)
