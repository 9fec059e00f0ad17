"""Callbacks: early stopping, and logs to other programs, whose packages are faked."""

import sys
from types import SimpleNamespace

import pytest

from dagc.errors import InvalidInput, MissingExtra
from dagc.training import Config, EarlyStopping, MLflow, WandB, train

CONFIG = {"task": "logistic@digits", "method": "dagc-r", "ratio": 0.02, "rounds": 3, "evaluate_every": 1}


def scores(*values):
    return [SimpleNamespace(score=value) for value in values]


def test_early_stopping_waits_for_its_patience():
    stop = EarlyStopping(patience=2)
    assert [stop(None, each) for each in scores(0.1, None, 0.3, 0.3, None, 0.2)] == [False] * 5 + [True]
    modest = EarlyStopping(patience=1, least=0.05)
    assert [modest(None, each) for each in scores(0.1, 0.2, 0.21)] == [False, False, True]
    with pytest.raises(InvalidInput, match="patience is 0"):
        EarlyStopping(patience=0)


def test_a_training_ends_early():
    result = train(**{**CONFIG, "rounds": 50, "learning_rate": 1e-9}, callbacks=[EarlyStopping(patience=3)])
    assert len(result.rounds) == 4


class Recorder:
    """Stands for a package of logs."""

    def __init__(self):
        self.settings, self.logged = {}, []

    def init(self, config, project):
        self.settings = {**config, "project": project}
        return self

    def log_params(self, settings):
        self.settings = settings

    def log(self, numbers, step):
        self.logged.append((step, numbers))

    log_metrics = log


@pytest.mark.parametrize(
    ("name", "make"), [("wandb", lambda: WandB(0.1, project="p")), ("mlflow", lambda: MLflow(0.1))]
)
def test_every_round_is_logged_with_the_settings(name, make, monkeypatch):
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, name, recorder)
    result = train(Config(**CONFIG), callbacks=[make()])
    assert recorder.settings["ratio"] == 0.02
    assert recorder.settings.get("project", "p") == "p"
    assert [step for step, _ in recorder.logged] == [1, 2, 3]
    last = recorder.logged[-1][1]
    assert last["score"] == result.rounds[-1].score
    assert last["bytes_total"] == result.bytes_up + result.bytes_down
    assert "rounds_to_target" in last


@pytest.mark.parametrize(("name", "make"), [("wandb", WandB), ("mlflow", MLflow)])
def test_a_missing_package_is_named(name, make, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=f"pip install {name}"):
        make()


def test_a_result_is_a_table_in_a_notebook():
    assert train(**CONFIG)._repr_html_().count("<tr>") == 4


def test_a_history_is_a_frame_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    result = train(**CONFIG)
    assert isinstance(result.history, pandas.DataFrame)
    assert list(result.history.index) == [1, 2, 3]
    assert result.history["score"].iloc[-1] == result.rounds[-1].score
