"""Logs: quiet by default; TensorBoard with bytes, time and the way to a target."""

import json
import logging
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from dagc import Config, MissingExtra
from dagc.cli import app
from dagc.training import TensorBoard, iterate, train


def config(**fields):
    usual = {"task": "logistic@digits", "method": "dagc-r", "ratio": 0.05, "rounds": 10, "evaluate_every": 2}
    return Config(**{**usual, **fields})


def test_nothing_is_said_unless_somebody_wants_it(caplog):
    quiet = "import dagc; dagc.train(dagc.Config(task='logistic@digits', method='none', rounds=2))"
    done = subprocess.run([sys.executable, "-c", quiet], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    warned = "import dagc, logging; logging.getLogger('dagc.training').warning('a client is left out')"
    done = subprocess.run([sys.executable, "-c", warned], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with caplog.at_level(logging.DEBUG, "dagc.training"):
        train(config())
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "dagc.training"]
    assert said[0] == ("INFO", "logistic@digits, dagc-r: 10 clients, 650 parameters, from round 1 to 10")
    assert [level for level, _ in said[1:]] == ["DEBUG", "INFO"] * 5
    assert "round 10 of 10: loss" in said[-1][1]
    assert "accuracy 0." in said[-1][1]
    assert "s on the clock" in said[-1][1]


def scalars(folder):
    """What TensorBoard itself reads in a folder: for each name its values by step, as 32-bit numbers."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {name: {one.step: one.value for one in events.Scalars(name)} for name in events.Tags()["scalars"]}


def test_tensorboard_reads_every_number_and_the_way_to_the_target_once(tmp_path):
    rounds = list(iterate(config(), callbacks=[TensorBoard(tmp_path / "logs", target=0.4)]))
    found = scalars(tmp_path / "logs")
    assert found["bytes_total"] == {one.round: one.bytes_up + one.bytes_down for one in rounds}
    assert found["seconds"] == {one.round: pytest.approx(one.seconds) for one in rounds}
    scored = {one.round: pytest.approx(one.score) for one in rounds if one.score is not None}
    assert found["score"] == scored
    assert len(scored) == 5
    assert len(found["bytes_to_target"]) == 1


def test_tensorboard_reads_a_resumed_run_as_an_uninterrupted_one(tmp_path):
    train(config(), tmp_path / "whole", [TensorBoard(tmp_path / "whole-logs")])
    stopped = iterate(config(), tmp_path / "run", [TensorBoard(tmp_path / "logs")])
    for _ in range(6):
        next(stopped)
    stopped.close()
    train(config(), tmp_path / "run", [TensorBoard(tmp_path / "logs")])
    whole, parts = ({**scalars(tmp_path / name), "elapsed": {}} for name in ("whole-logs", "logs"))
    assert parts == whole


def test_without_tensorboard_that_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match="need the package tensorboard: pip install tensorboard"):
        TensorBoard(tmp_path)


def test_the_command_line_writes_them_and_says_what_the_target_took(tmp_path, caplog):
    arguments = ["run", "logistic@digits", "--ratio", "0.05", "--rounds", "10", "--output", str(tmp_path / "run")]
    logs = ["--tensorboard", "--target", "0.3"]
    done = CliRunner().invoke(app, ["-v", *arguments, *logs, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    goal, logged = found["to_target"], scalars(tmp_path / "run" / "tensorboard")
    assert logged["rounds_to_target"] == {goal["round"]: goal["round"]}
    assert logged["bytes_to_target"] == {goal["round"]: goal["bytes_up"] + goal["bytes_down"]}
    assert "parameters, from round 1 to 10" in done.stderr
    again = CliRunner().invoke(app, [*arguments, "--target", "0.99"], catch_exceptions=False)
    assert "not reached" in again.stdout
    assert "from round" not in again.stderr
