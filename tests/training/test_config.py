"""Configurations: what cannot work is refused with words, and the rest goes through TOML."""

import pytest

from dagc import InvalidInput
from dagc.folder import to_toml
from dagc.training import Config, Federation
from tests.training.runs import config


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"task": "perceptron@x"}, "task is 'perceptron@x': there is no model 'perceptron': choose one of logistic"),
        ({"task": "mlp@nowhere"}, "no data set or path 'nowhere'"),
        ({"task": "mlp"}, "write MODEL@DATA"),
        ({"method": "best"}, "no method 'best': choose one of none, top-k"),
        ({"method": "dagc-s"}, "no method 'dagc-s': did you mean 'dagc-"),
        ({"values": "fp64"}, "no value codec 'fp64': choose one of fp32"),
        ({"frames": "compat"}, "did you mean 'compact'"),
        ({"ratio": 0}, "ratio is 0: "),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"clients": 0}, "clients is 0: "),
        ({"rounds": 1.5}, "rounds is 1.5: "),
        ({"learning_rate": -1}, "learning_rate is -1: "),
        ({"participation": 0}, "participation is 0: "),
        ({"late": 1.0}, "late is 1: "),
        ({"threshold_units": "inches"}, "threshold_units is 'inches'"),
        ({"optimizer": "Magic"}, "optimizer is 'Magic': choose a class of torch.optim"),
        ({"optimizer": "fedadam"}, "optimizer is 'fedadam': it is called Adam"),
        ({"optimizer": "FedAvgM"}, "optimizer is 'FedAvgM': write SGD, with momentum=0.9"),
        ({"optimizer": "fed-avgm"}, "write SGD, with momentum=0.9"),
        ({"optimizer": "fedavg"}, "optimizer is 'fedavg': it is called SGD"),
        ({"client_optimizer": "adamw", "local_steps": 2}, "client_optimizer is 'adamw': it is called AdamW"),
        ({"client_optimizer": "Adam"}, "client_optimizer is 'Adam': with one local step clients send gradients"),
        (
            {"client_optimizer": "Adam", "client_momentum": 0.5, "local_steps": 2},
            "client_momentum is 0.5, which is for SGD, not for Adam",
        ),
        (
            {"client_optimizer": "Rprop", "client_weight_decay": 0.5, "local_steps": 2},
            "client_optimizer is Rprop, with client_weight_decay 0.5",
        ),
        ({"optimizer": "Optimizer"}, "optimizer is 'Optimizer'"),
        (
            {"optimizer": "SparseAdam"},
            "optimizer is 'SparseAdam': choose a class of torch.optim that only needs a gradient",
        ),
        ({"optimizer_options": {"speed": 3}}, "speed"),
        ({"network": "constant:up=-2"}, "network is 'constant:up=-2': up must be above 0"),
        ({"device": "abacus"}, "device is 'abacus': torch cannot use it"),
        ({"compute_seconds": -1}, "compute_seconds is -1: "),
        ({"cliens": 3}, "no setting 'cliens': did you mean 'clients'"),
        ({"overhead": 2}, "overhead is 2: it must be a number from 0"),
        ({"caps": {"3": 2}}, "the cap of '3' is 2"),
        ({"rate": "5/round"}, "rate is '5/round': write bytes per client"),
        ({"partition": "by-client", "clients": 20, "skew_ratio": 5}, "replaces clients, skew_ratio: leave"),
    ],
)
def test_bad_configurations_are_refused_naming_field_value_and_what_is_allowed(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Config(**{"ratio": 0.1, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epochs": 2, "local_steps": 3}, "epochs is 2 and local_steps 3: give one of them"),
        ({"server_rate": 0.5}, "server_rate is 0.5: with one local step .* leave it out, or raise local_steps"),
        ({"server_schedule": "linear"}, "server_schedule is 'linear': with one local step"),
        ({"client_momentum": 0.9}, "client_momentum is 0.9: with one local step"),
        ({"client_weight_decay": 0.1}, "client_weight_decay is 0.1: with one local step"),
        ({"client_optimizer": "AdamW"}, "client_optimizer is 'AdamW': with one local step"),
        ({"client_optimizer": "Magic", "local_steps": 2}, "optimizer is 'Magic': choose a class of torch.optim"),
        (
            {"client_optimizer": "Adam", "client_momentum": 0.9, "local_steps": 2},
            "client_momentum is 0.9, which is for SGD, not for Adam",
        ),
        (
            {"client_optimizer": "Rprop", "client_weight_decay": 0.1, "local_steps": 2},
            "client_optimizer is Rprop, with client_weight_decay 0.1: .*unexpected keyword",
        ),
        ({"client_momentum": 1.0, "local_steps": 2}, "client_momentum is 1: it must be .* below 1"),
        ({"server_rate": 0.0, "local_steps": 2}, "server_rate is 0: it must be a number above 0"),
        ({"schedule": "step"}, "schedule is 'step': it must be constant, linear or cosine"),
        ({"schedule": "steplr"}, "schedule is 'steplr': did you mean 'StepLR'"),
        ({"schedule": "ReduceLROnPlateau"}, "or a class of torch.optim.lr_scheduler that needs only numbers"),
        ({"schedule": "StepLR"}, "schedule is 'StepLR' with schedule_options {}: .*'step_size'"),
        ({"schedule": "StepLR", "schedule_options": {"step_size": 0}}, "StepLR: integer modulo by zero"),
        ({"schedule": "StepLR", "schedule_options": {"step_size": 1, "gamma": -1}}, "the rate of round 2 is -0.1"),
        ({"schedule": "ExponentialLR", "schedule_options": {"gamma": 1e300}}, "the rate of round 3 is inf"),
        ({"schedule": "LinearLR", "rounds": 10**9}, "1,000,000,000 rounds are more than 1,000,000"),
        ({"schedule_options": {"step_size": 1}}, "these are for a class of torch.optim.lr_scheduler, not for constant"),
        (
            {"server_schedule": "OneCycleLR", "local_steps": 2, "schedule_options": {"max_lr": 1, "total_steps": 5}},
            "server_schedule is 'OneCycleLR' with schedule_options .*: Tried to step 6 times",
        ),
        (
            {"method": "dagc-a", "ratio": None, "threshold": 0.1, "schedule": "linear"},
            "threshold_units is 'update' and the gradient is compressed, but the learning rate .* 'linear'",
        ),
    ],
)
def test_steps_that_cannot_be_are_refused(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Config(**{"ratio": 0.1, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "dagc-a", "threshold": None}, "'dagc-a' needs a budget: give threshold"),
        ({"method": "dagc-a", "threshold": None, "ratio": 0.1}, "takes no ratio: give its budget as threshold"),
        ({"caps": {"3": 1e-6}}, "the cap 1e-06 of '3' is below one entry of 650"),
        ({"clients": 100_000}, "100,000 clients"),
        ({"partition": "pizza", "skew_ratio": 100}, "there is no partition 'pizza'"),
        ({"task": "cnn@digits", "partition": "by-client", "skew_ratio": 100}, "this data set has no clients"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Federation(config(**fields))


def test_a_trace_that_lacks_a_client_is_refused_before_any_work(tmp_path):
    (tmp_path / "links.csv").write_text("client,up,down\n0,8,8\n")
    with pytest.raises(InvalidInput, match="no rows for client 1"):
        Federation(config(network=f"trace:file={tmp_path / 'links.csv'}"))


def test_the_partition_is_written_with_all_digits():
    assert config(skew_ratio=1234567.5, label_alpha=0.123456789).partition_spec == (
        "skewed:clients=10,skew_ratio=1234567.5,label_alpha=0.123456789"
    )


@pytest.mark.parametrize("changes", [{}, {"label_alpha": float("inf")}, {"data_dir": "Größe/😀"}])
def test_a_configuration_goes_through_toml(tmp_path, changes):
    fields = {"exponent": 0.5, "optimizer_options": {"momentum": 0.9, "nesterov": True}, "data_dir": 'a "b"\\c'}
    settings = config("power", **{**fields, **changes})
    text = to_toml(settings.as_dict())
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    assert Config.read(tmp_path / "run.toml") == settings
    assert Config.read(tmp_path / "run.toml", seed=7).seed == 7
    for content, says in (
        ("seed = ", "not valid TOML"),
        ("sed = 1", "no setting 'sed': did you mean 'seed'"),
        ("version = 99", "version"),
    ):
        (tmp_path / "bad.toml").write_text(content)
        with pytest.raises(InvalidInput, match=says):
            Config.read(tmp_path / "bad.toml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        Config.read(tmp_path / "missing.toml")
