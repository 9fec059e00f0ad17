"""What a step copies between a device and the host, in bytes, on a device that counts: no GPU is needed.

    python -m benchmarks.transfers             # a few minutes
    python -m benchmarks.transfers --record    # keeps the table for docs/studies/performance.md

One rank with a model of 4.2 million parameters. Every further rank's frame adds what entries take to the device.
"""

import statistics
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.tables import arguments, show
from dagc.ddp import LocalSteps
from dagc.ddp.hook import Bucket, Hook
from dagc.protocol import Plan
from tests.helpers.counting_device import Counts, Elsewhere, Wrapped, counting

PLANS: dict[str, dict[str, Any]] = {
    "dagc, default": {},
    "dagc, 1 %": {"ratio": 0.01},
    "thrifty, 1 %": {"method": "thrifty", "ratio": 0.01},
    "dagc-r, 1 %, int8": {"method": "dagc-r", "ratio": 0.01, "values": "int8"},
    "top-k, 1 %": {"method": "top-k", "ratio": 0.01},
    "random-k, 1 %": {"method": "random-k", "ratio": 0.01},
    "stc, 1 %": {"method": "stc", "ratio": 0.01},
    "none": {"method": "none"},
}
SHAPES = [(1024, 1024), (1024,)] * 4
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
STEPS = 4
Found = list[tuple[int, Counts]]
"""For each step: bytes of the frame, and what has crossed."""


def changes(step: int) -> Tensor:
    """Some terms of low rank in every matrix, and noise."""
    generator = torch.Generator().manual_seed(step)
    parts = []
    for shape in SHAPES:
        part = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            left, right = (torch.randn(side, 4, generator=generator) for side in shape)
            part = part + left @ right.T
        parts.append(part.reshape(-1))
    return torch.cat(parts)


def tensors(vector: Tensor) -> list[Tensor]:
    return [part.view(shape) for part, shape in zip(vector.split(SIZES), SHAPES, strict=True)]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(Elsewhere(part.clone())) for part in tensors(changes(99))]


def of_hook(plan: dict[str, Any]) -> Found:
    """Steps of the hook."""
    found, model = [], parameters()
    with counting():
        hook = Hook(Wrapped(model), 100, Plan(**plan), {}, None, None)
    for step in range(STEPS):
        buffer = Elsewhere(changes(step))
        with counting() as counts:
            hook.reduce([Bucket(buffer, model, tensors(buffer))])
        assert hook.last is not None
        found.append((hook.last.payload, counts))
    return found


def of_local_steps(plan: dict[str, Any]) -> Found:
    """Exchanges of local steps."""
    found, model = [], nn.ParameterList(parameters())
    with counting():
        local = LocalSteps(model, examples=10, steps=1, **plan)
    for step in range(STEPS):
        for parameter, change in zip(model, tensors(changes(step)), strict=True):
            parameter.detach().inner.sub_(change, alpha=0.01)
        with counting() as counts:
            exchanged = local.step()
        assert exchanged is not None
        found.append((exchanged.payload, counts))
    local.close()
    return found


def main() -> None:
    options = arguments(__doc__).parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    heads, rows = ["", "method", "frame", "to the host", "to the device", "waits"], []
    for words, measure in (("hook, a step", of_hook), ("LocalSteps, an exchange", of_local_steps)):
        for name, plan in PLANS.items():
            frames, counts = zip(*measure(plan)[1:], strict=True)
            columns = zip(*((each.to_host, each.to_device, each.synchronizations) for each in counts), strict=True)
            rows.append([words, name, *(f"{statistics.median_high(each):,}" for each in (frames, *columns))])
            print(*rows[-1], sep=" | ", flush=True)
    notes = ["Bytes, median of the steps after the first", f"The model has {4 * sum(SIZES):,} bytes"]
    show("transfers", "What crosses between device and host on one rank", heads, rows, options.record, notes)


if __name__ == "__main__":
    main()
