"""Callbacks: early stopping, and logs to other programs, whose packages are faked."""

import builtins
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from dagc.errors import InvalidInput
from dagc.training import EarlyStopping, iterate, train

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


@pytest.mark.parametrize("callbacks", [lambda *_: np.bool_(True), [lambda *_: 1, lambda *_: True]])
def test_a_single_callback_or_a_truth_of_numpys_ends_it_and_a_number_does_not(callbacks):
    assert len(train(**CONFIG, callbacks=callbacks).rounds) == 1
    assert len(train(**CONFIG, callbacks=lambda *_: 1).rounds) == 3


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (
            lambda round: None,
            r"<lambda> cannot be called with a federation and a round \(too many .*: write callbacks=",
        ),
        (lambda federation, round, epoch: None, "missing a required argument: 'epoch'"),
        (EarlyStopping, r"EarlyStopping is a class: write callbacks=\[EarlyStopping\(…\)\]"),
        (3, "the callback int cannot be called"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_before_any_work(callback, says):
    with pytest.raises(InvalidInput, match=says):
        iterate(**CONFIG, callbacks=[callback])


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch, capsys):
    train(**CONFIG)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert len(train(**CONFIG).rounds) == 3
    assert "training" in capsys.readouterr().err


def test_a_notebook_without_widgets_shows_a_line_of_text(monkeypatch, capsys):
    """A bar of rich needs ipywidgets there: without them it warned twice and showed an empty box."""
    shown = []

    class ZMQInteractiveShell:
        pass

    class Line:
        def update(self, data, raw):
            shown.append((data["text/plain"], raw))

    def display(data, raw, display_id):
        shown.append((data["text/plain"], raw))
        assert display_id is True
        return Line()

    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(train(**CONFIG).rounds) == 3
    assert shown == [("training", True), *((f"training: round {each} of 3", True) for each in (1, 2, 3))]
    shown.clear()
    train(**{**CONFIG, "rounds": 450, "evaluate_every": 450})
    assert len(shown) == 1 + 112 + 1
    assert shown[-1][0] == "training: round 450 of 450"
    assert capsys.readouterr().err == ""


def test_a_result_is_a_table_in_a_notebook():
    assert train(**CONFIG)._repr_html_().count("<tr>") == 4


def test_a_history_is_a_frame_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    result = train(**CONFIG)
    assert isinstance(result.history, pandas.DataFrame)
    assert list(result.history.index) == [1, 2, 3]
    assert result.history["score"].iloc[-1] == result.rounds[-1].score
