"""Wrong settings get the same words in every engine, in Python and on the command line."""

import json

import pytest
import torch
import torch.distributed as dist

from dagc import InvalidInput, Plan
from dagc.training import Config

WRONG = [
    ({"method": "dagcr", "ratio": 0.1}, "there is no method 'dagcr': did you mean 'dagc-r'?"),
    ({"method": "dagc-a"}, "method 'dagc-a' needs a budget: give threshold, e.g. threshold 0.05"),
    (
        {"method": "dagc-r", "threshold": 0.1},
        "method 'dagc-r' takes no threshold: give its budget as ratio, bytes or rate",
    ),
    ({"method": "none", "ratio": 0.1}, "method 'none' takes no budget, but ratio is given: leave it out"),
    ({"ratio": 0.1, "bytes": 5}, "give one budget, not ratio and bytes"),
    ({"ratio": 1.5}, "ratio is 1.5: it must be a number above 0 and at most 1"),
    ({"bytes": 0}, "bytes is 0: it must be a number above 0"),
    ({"bytes": float("nan")}, "bytes is nan"),
    ({"rate": "fast"}, "rate is 'fast': write bytes per client, like 200 kB/training or 1.5 MB/hour"),
    ({"rate": "1 MB/hour"}, "a rate per hour also needs bytes"),
    ({"ratio": 0.1, "values": "fp8"}, "there is no value codec 'fp8': choose one of fp32"),
    ({"ratio": 0.1, "frames": "compct"}, "there is no kind of frames 'compct': did you mean 'compact'?"),
    ({"ratio": 0.1, "overhead": 2}, "overhead is 2: it must be a number from 0 (nobody waits) to 1"),
    ({"method": "dagc-a", "threshold": 0.1, "overhead": 0.1}, "clients of method 'dagc-a' cannot wait"),
    ({"method": "power", "threshold": 0.1, "overhead": 0.1}, "cannot wait"),
    (
        {"method": "dagc-r", "ratio": 0.1, "exponent": 1},
        "exponent belongs to the methods dagc and power, not to 'dagc-r'",
    ),
    ({"ratio": 0.1, "caps": {"0": 2}}, "the cap of '0' is 2"),
    ({"method": "dagc-a", "threshold": 0.1, "caps": {"0": 0.5}}, "caps limit how many entries are sent"),
    ({"ratio": 0.1, "options": {"interval": 2}}, "method 'dagc' takes no options, but 'interval' is given"),
    ({"method": "accordion", "ratio": 0.1, "options": {"intervall": 2}}, "did you mean 'interval'?"),
    ({"ratio": 0.1, "seed": -1}, "seed"),
    ({"bytes": 1e308}, "bytes is 1e+308: it must be a number above 0 and at most 2^48"),
    (
        {"method": "accordion", "ratio": 0.1, "options": {"interval": float("inf")}},
        "it must map names to finite numbers",
    ),
    ({"method": "accordion", "bytes": 64}, "method 'accordion' takes no bytes: give its budget as ratio or threshold"),
    ({"ration": 0.1}, "there is no setting 'ration': did you mean 'ratio'?"),
]


@pytest.fixture(scope="module")
def one_rank():
    """A model in DDP, alone in its group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 20))
    dist.destroy_process_group()


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_settings_get_the_same_words_everywhere(wrong, words, capsys, monkeypatch, one_rank):
    """In Python, as a configuration, in Flower, in DDP and on the command line."""
    from flwr.serverapp.strategy import FedAvg

    import dagc.ddp
    from dagc.cli import main
    from dagc.flower import DataAware

    with pytest.raises(InvalidInput) as plan:
        Plan(**wrong)
    assert words in str(plan.value)
    with pytest.raises(InvalidInput) as config:
        Config(task="logistic@digits", **wrong)
    if "ration" not in wrong:  # a configuration has more settings to choose from
        assert str(config.value) == str(plan.value)
    with pytest.raises(InvalidInput) as flower:
        DataAware(FedAvg(), **wrong)
    if "ration" not in wrong:  # and so has a strategy
        assert str(flower.value) == str(plan.value)
    assert words in str(flower.value)
    with pytest.raises(InvalidInput) as ddp:
        dagc.ddp.register(one_rank, examples=5, **wrong)
    assert str(ddp.value) == str(plan.value)
    if "ration" in wrong or "seed" in wrong:
        return
    flags = []
    for name, value in wrong.items():
        flags += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    monkeypatch.setattr("sys.argv", ["dagc", "run", "logistic@digits", *flags])
    with pytest.raises(SystemExit):
        main()
    assert str(plan.value).split(":")[0] in " ".join(capsys.readouterr().err.split())
