"""What scripts of `dagc.ddp` have in common in these tests: models, steps, and what ranks answer."""

import logging
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import dagc.ddp
from dagc.data import Batches, load, make_partition
from dagc.ddp import LocalSteps
from dagc.models import build

EXAMPLES = (700, 200, 90, 10)
RESTARTS = [
    ("optimizer", "the optimizer has a state, but dagc begins without its own"),
    ("torchrun", "torchrun has restarted this process, but dagc begins without its own"),
    ("new", ""),
    ("resumed", ""),
]
"""Ways to begin, and what is then logged."""


def good(answers):
    """The answers, none of which may be an exception."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    assert None not in answers, "a rank has died"
    return answers


def alike(tensors):
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors[1:])


def weights(model):
    return torch.cat([p.detach().flatten().float() for p in model.parameters()])


def as_rank(config):
    """What a script needs to train as the local engine does with this configuration, where rank i is client i.

    The model, how many examples this rank has, and its batches, by step.
    """
    rank, data = dist.get_rank(), load(config.data)
    partition = make_partition(config.partition_spec, data, config.seed)
    batches = Batches(data, partition, config.batch_size, config.seed)
    model = build(config.model, data, seed=config.seed)
    return model, int(partition.sizes[rank]), lambda step: batches.batch(rank, step)


def trained(model, config, batch, count):
    """Train with plain SGD; yields after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    for step in range(count):
        x, y = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        yield step


def wrapped(module=None, seed=0, **options):
    """A small model in DDP, the same on every rank."""
    torch.manual_seed(seed)
    return DDP(module or nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), **options)


def hooked(model, ratio=0.05, **options):
    return dagc.ddp.register(model, examples=EXAMPLES[dist.get_rank()], ratio=ratio, **{"method": "dagc-r", **options})


def inputs(step):
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(8, 20, generator=generator)


def backward(model, step=0, spoil=None):
    """A backward pass on this rank's batch; `spoil` multiplies the loss."""
    loss = model(inputs(step)).square().mean()
    (loss if spoil is None else loss * spoil).backward()


def gradient(model):
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


def train(steps, register=None, each=None, **options):
    """Weights and residual after SGD."""
    model = wrapped(**options)
    hook = hooked(model, **(register or {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
        if each:
            each(step, hook)
    return weights(model), hook.uplink.feedback.residual


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))


def around(model, ratio=0.05, **options):
    usual = {"examples": EXAMPLES[dist.get_rank()], "steps": 3, "method": "dagc-r", "ratio": ratio}
    return LocalSteps(model, **{**usual, **options})


def one_step(model, optimizer, step):
    """A step towards a target that all ranks share, on this rank's own inputs; returns the loss."""
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    x = torch.randn(8, 20, generator=generator).to(next(model.parameters()).dtype)
    optimizer.zero_grad()
    loss = (model(x).float() - x[:, :5].float()).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def counting(local):
    """The sum of all that the client's half was offered; it grows with every upload."""
    offered = torch.zeros(local.uplink.size, dtype=torch.float64)
    upload = local.uplink.upload

    def counted(moved, order):
        offered.add_(torch.cat([part.flatten() for part in moved]))
        return upload(moved, order)

    local.uplink.upload = counted
    return offered


def plain(state):
    """A state without tensors, so that it can be compared."""
    if isinstance(state, dict):
        return {name: plain(leaf) for name, leaf in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


@contextmanager
def warnings_of_restarts(how):
    """What dagc logs in this block, in which torchrun may have restarted the process."""
    texts, handler, log = [], logging.Handler(logging.WARNING), logging.getLogger("dagc.ddp")
    handler.emit = lambda record: texts.append(record.getMessage())
    log.addHandler(handler)
    if how == "torchrun":
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    try:
        yield texts
    finally:
        os.environ.pop("TORCHELASTIC_RESTART_COUNT", None)
        log.removeHandler(handler)
