"""What an attacker tried, item by item: each held up the program once, or was near to it."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dagc import DagcError, InvalidInput, Plan
from dagc.checkpoint import checkpoints
from dagc.cli import app
from dagc.errors import CheckpointError
from dagc.folder import finished, read_metrics, read_settings
from dagc.report.runs import read_run
from dagc.training import Config, iterate, train


@pytest.mark.parametrize(
    "fields",
    [
        {"skew_ratio": 1e308},
        {"partition": "skewed:workers=10,skew_ratio=1e308,label_alpha=0.5"},
        {"partition": "from-sizes:sizes=" + "9" * 5000},
        {"learning_rate": 1e308},
        {"learning_rate": float("inf")},
        {"device": "meta"},
        {"compute_seconds": 1e308},
        {"network": "constant:up=1e308,down=1e-308"},
        {"network": "constant:latency=1e308"},
        {"task": "logistic@" + "a" * 5000},
        {"ratio": None, "rate": "1" + "0" * 400 + " B/training"},
        {"ratio": 10**400},
        {"caps": {"0": 10**5000}},
        {"seed": 10**5000},
        {"rounds": -(10**5000)},
        {"epochs": float("inf")},
        {"epochs": 1e300},
        {"local_steps": 2, "client_weight_decay": 1e308},
        {"local_steps": 2, "server_rate": 1e308},
        {"optimizer_options": {"weight_decay": 1e308}},
        {"optimizer_options": {"x" * 5000: 1}},
        {"optimizer": "Adam", "optimizer_options": {"betas": [0.9, 0.9, 0.9]}},
        {"device": "x" * 5000},
        {"clients": 3, "partition": "x" * 5000},
    ],
    ids=lambda fields: str(list(fields)),
)
def test_settings_beyond_any_training_are_refused_with_words(fields):
    with pytest.raises(DagcError) as refused:
        train(Config(**{"task": "logistic@digits", "ratio": 0.1, "rounds": 2, **fields}))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio": 10**5000},
        {"bytes": -(10**5000)},
        {"ratio": 0.1, "seed": 10**5000},
        {"ratio": 0.1, "caps": {"a": 10**5000}},
        {"ratio": 0.1, "options": {"a": 10**5000}},
        {"ratio": 0.1, "down": 10**5000},
        {"rate": 10**5000},
        {"method": 10**5000},
        {"method": "x" * 10**6},
        {"method": "power", "ratio": 0.1, "exponent": 10**5000},
    ],
    ids=lambda settings: str(list(settings)),
)
def test_a_plan_of_monstrous_numbers_is_refused_in_a_few_words(settings):
    with pytest.raises(InvalidInput) as refused:
        Plan(**settings)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "caps = " + "[" * 5000 + "]" * 5000,
        "caps" + ".a" * 5000 + " = 1",
        "version" + ".a" * 5000 + " = 1",
        "rounds = " + "9" * 5000,
        "ratio = 0.1\nrounds = -" + "9" * 4000,
    ],
    ids=["lists", "tables", "version", "digits", "fewer digits"],
)
def test_toml_nested_5000_deep_or_with_5000_digits_is_refused(tmp_path, text):
    (tmp_path / "it.toml").write_text(text)
    with pytest.raises(InvalidInput):
        Config(**read_settings(tmp_path / "it.toml"))


@pytest.mark.parametrize("caps", ["[" * 100_000, '{"a":' * 5000, '{"0":' + "9" * 5000 + "}"])
def test_monstrous_json_on_the_command_line_is_one_line(caps):
    for command in (["run", "logistic@digits", "--ratio", "0.1"], ["plan", "--sizes", "1,2", "--ratio", "0.1"]):
        done = CliRunner().invoke(app, [*command, "--caps", caps])
        assert done.exit_code
        assert isinstance(done.exception, SystemExit | DagcError), done.exception


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--sizes", "1,2", "--bytes", "1e400", "--parameters", "100"],
        ["plan", "--sizes", "9" * 5000, "--ratio", "0.1", "--parameters", "100"],
        ["plan", "--sizes", "1,2", "--ratio", "0.1", "--parameters", "1e308"],
        ["compare", "logistic@digits", "--ratio", "0.1", "--seeds", "9" * 4000],
        ["compare", "logistic@digits", "--ratio", "0.1", "--methods", "x" * 10_000],
    ],
)
def test_monstrous_numbers_on_the_command_line_are_one_line(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code
    assert isinstance(done.exception, SystemExit | DagcError), done.exception


RUN = {"task": "logistic@digits", "ratio": 0.1, "rounds": 4, "clients": 3, "skew_ratio": 2, "checkpoint_every": 2}


@pytest.fixture
def half_done(tmp_path):
    """A run that was stopped after two of four rounds."""
    training = iterate(Config(**RUN), tmp_path / "run")
    next(training)
    next(training)
    training.close()
    return tmp_path / "run"


def test_every_bit_of_the_metrics_matters_to_a_resumed_run(half_done):
    lines = half_done / "metrics.jsonl"
    good = lines.read_bytes()
    for at in range(0, len(good), 7):
        lines.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl was changed or damaged"):
            next(iterate(Config(**RUN), half_done))
    lines.write_bytes(bytes(range(128, 256)) * (len(good) // 128 + 1))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl was changed or damaged"):
        next(iterate(Config(**RUN), half_done))
    lines.write_bytes(good)
    assert train(Config(**RUN), half_done).rounds[-1].round == 4


def test_settings_that_were_changed_under_a_half_done_run_are_refused(half_done):
    config = half_done / "config.toml"
    config.write_text(config.read_text().replace("ratio = 0.1", "ratio = 0.2"))
    done = CliRunner().invoke(app, ["resume", str(half_done)])
    assert isinstance(done.exception, InvalidInput)
    assert "config.toml was changed since the last checkpoint" in str(done.exception)


def test_numbers_that_are_written_in_another_way_do_not_change_settings(half_done):
    config = half_done / "config.toml"
    for one, other in (("skew_ratio = 2", "skew_ratio = 2.0"), ("ratio = 0.1", "ratio = 1e-1")):
        assert one in config.read_text()
        config.write_text(config.read_text().replace(one, other))
    assert CliRunner().invoke(app, ["resume", str(half_done)]).exception is None
    assert finished(half_done)
    assert Config(ratio=0.1, down="64").key() == Config(ratio=0.1, down=64).key()


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_a_finished_run_whose_model_is_damaged_is_not_finished(half_done, damage):
    train(Config(**RUN), half_done)
    model = half_done / "model.safetensors"
    good = model.read_bytes()
    assert finished(half_done)
    if damage == "gone":
        model.unlink()
    else:
        model.write_bytes(good[:-1] if damage == "cut" else good[:-1] + bytes([good[-1] ^ 1]))
    assert not finished(half_done)
    train(Config(**RUN), half_done)
    assert model.read_bytes() == good
    assert finished(half_done)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("round", number) for number in (0, -1, 1e308, 10**400, 2.5)),
        *(("entries", number) for number in (-1, 1e308, 10**400)),
        *(("bytes_down", number) for number in (-5, 1.7e308, 10**400)),
        *(("seconds", number) for number in (-5, 1e300, True)),
    ],
)
def test_numbers_that_no_run_has_are_refused_with_their_line(half_done, name, number):
    lines = read_metrics(half_done)
    lines[1][name] = number
    (half_done / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InvalidInput, match=rf"line 2 of .*metrics\.jsonl has .* as {name}"):
        read_run(half_done)


@pytest.mark.parametrize("accuracy", [1.7e308, -1e308, float("inf"), 10**400])
def test_an_accuracy_that_a_node_made_up_is_as_good_as_none(half_done, accuracy, tmp_path):
    lines = read_metrics(half_done)
    lines[1]["score"] = accuracy
    (half_done / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert np.isnan(read_run(half_done).rows[1]["score"])
    done = CliRunner().invoke(app, ["report", str(half_done), "--output", str(tmp_path / "report")])
    assert done.exception is None, done.exception


def test_a_damaged_checkpoint_does_not_push_the_good_one_out(half_done):
    """A run goes back behind a damaged checkpoint and saves at another round."""
    config = Config(**{**RUN, "checkpoint_every": 3})
    training = iterate(config, half_done)
    next(training)
    training.close()
    newest, older = checkpoints(half_done / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-1])
    training = iterate(Config(**{**RUN, "checkpoint_every": 9}), half_done)
    with pytest.warns(UserWarning, match="is damaged"):
        next(training)
    next(training)
    training.close()
    assert [path.name for path in checkpoints(half_done / "checkpoints")] == ["round-00000004.safetensors", older.name]


def test_only_its_owner_can_read_the_checkpoints_of_a_run(half_done):
    kept = half_done / "checkpoints"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
