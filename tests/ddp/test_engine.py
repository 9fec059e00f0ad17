"""DDP and the local engine: the same plan gives the same bits, with the hook and with local steps."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import dagc.ddp
from dagc.training import Config, Federation
from tests.ddp.scripts import as_rank, good, trained
from tests.helpers.plans import BOUNDED, CLIPPED, plans


def as_engine(settings, fields):
    """A DDP script for a configuration of the local engine, where rank i is client i."""
    config = Config(**fields, **settings)
    module, examples, batch = as_rank(config)
    model = DDP(module, bucket_cap_mb=0.01)
    plan = config.plan().replaced(first_model="sent", down="lossless", step_ahead=settings.get("step_ahead", 0.0))
    hook = dagc.ddp.register(model, plan=plan, examples=examples, rounds=config.rounds)
    sent = sum(hook.last.payload for _ in trained(model, config, batch, config.rounds))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights, hook.uplink.feedback.residual, sent


@pytest.mark.parametrize(
    "settings",
    [
        *plans(),
        pytest.param(BOUNDED, id="bounded"),
        *(pytest.param(one, id=f"clipped {name}") for name, one in CLIPPED.items()),
    ],
)
def test_ddp_and_the_local_engine_are_bit_identical(two, settings):
    settings = {**settings, **({"caps": {"0": 0.01}} if settings.get("caps") else {})}
    fields = {
        "task": "logistic@digits",
        "clients": 2,
        "skew_ratio": 10,
        "rounds": 15,
        "seed": 3,
        "first_model": "drawn",
    }
    compare(two.run(as_engine, settings, fields), {"step_ahead": 0.0, **settings}, fields)  # also if it is the method's


def compare(answers, settings, fields):
    """Weights, residual and bytes of every rank, against the local engine."""
    good(answers)
    engine = Federation(Config(**fields, down="lossless", **settings))  # whatever the method's own is
    rounds = [engine.step() for _ in range(fields["rounds"])]
    vector = engine.optimizer.vector.detach()
    assert all(torch.equal(model, vector) for model, _, _ in answers)
    for name, (_, residual, _) in zip(engine.names, answers, strict=True):
        assert torch.equal(residual, engine.uplinks[name].feedback.residual)
    assert sum(sent for _, _, sent in answers) == rounds[-1].bytes_up > 0


def with_local_steps(settings, fields):
    """The same with local steps between the exchanges."""
    config = Config(**fields, **settings)
    model, examples, batch = as_rank(config)
    plan = config.plan().replaced(first_model="sent", down="lossless")
    plan = plan.for_size(sum(parameter.numel() for parameter in model.parameters()))  # without a budget of its own
    local = dagc.ddp.LocalSteps(
        model, plan=plan, examples=examples, steps=config.local_steps, rounds=config.rounds, momentum=0
    )
    sent = 0
    for _ in trained(model, config, batch, config.rounds * config.local_steps):
        exchanged = local.step()
        sent += 0 if exchanged is None else exchanged.payload
    return local.shared, local.uplink.feedback.residual, sent


@pytest.mark.parametrize("settings", list(plans()))
def test_local_steps_on_ddp_and_the_local_engine_are_bit_identical(two, settings):
    settings = {**settings, **({"caps": {"0": 0.01}} if settings.get("caps") else {})}
    fields = {"task": "logistic@digits", "clients": 2, "skew_ratio": 10, "rounds": 9, "local_steps": 2, "seed": 3}
    fields |= {"first_model": "drawn"}  # not rounded to the bits of a download, which DDP has not
    compare(two.run(with_local_steps, settings, fields), settings, fields)
