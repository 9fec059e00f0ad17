"""How long it takes to encode, decode and add updates, as multiples of other work.

    python -m benchmarks.energy time              # two minutes

`research.energy` measures what frames carry. `--record` keeps the table for `docs/studies/energy.md`.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.tables import arguments, show
from dagc.data import data_folder
from dagc.errors import MissingData
from dagc.updates import decode_update, encode_dense, encode_update
from research import real_updates
from research.parts import load as load_parts

BUDGETS = (1, 16, 40, 64)
"""In multiples of ½√d bytes; the default of `dagc` is 40."""


def seconds(work: Callable[[], Any], times: int = 9) -> float:
    """The median of the CPU seconds that some work takes."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return sorted(taken)[len(taken) // 2]


def large(rows: int) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """A vector like an update of a transformer, of `rows` · 1024 entries: low rank and noise."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(1024, 1024)] * (rows // 1024)
    vector = torch.randn(rows * 1024, generator=generator)
    for part in vector.view(-1, 1024, 1024):
        left = torch.randn(1024, 12, generator=generator) * torch.logspace(0, -1, 12)
        part.addmm_(left, torch.randn(12, 1024, generator=generator))
    return vector.mul_(1e-3), shapes


class Bag(nn.Module):
    """Parameters whose gradients cost next to nothing to compute."""

    def __init__(self, shapes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(
            [torch.vdot(part.flatten(), g.flatten()) for part, g in zip(self.parts, gradients, strict=True)]
        ).sum()


def power_sgd(vector: torch.Tensor, shapes: list[tuple[int, int]]) -> float:
    """The CPU seconds that PowerSGD's hook adds to a step of DDP with one process and rank 1."""
    gradients = [
        part.view(shape) for part, shape in zip(vector.split([math.prod(s) for s in shapes]), shapes, strict=True)
    ]
    taken = []
    for hook in (default_hooks.allreduce_hook, powerSGD_hook.powerSGD_hook):
        model = DistributedDataParallel(Bag(shapes), gradient_as_bucket_view=True)
        state = None
        if hook is powerSGD_hook.powerSGD_hook:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, hook)
        step = partial(_step, model, gradients)
        for _ in range(4):  # the first steps of PowerSGD are plain, the next orthogonalizes for the first time
            step()
        taken.append(seconds(step, 5))
    return taken[1] - taken[0]


def _step(model: nn.Module, gradients: Sequence[torch.Tensor]) -> None:
    model.zero_grad(set_to_none=True)
    model(gradients).backward()


def times(record: bool, sizes: list[int]) -> None:
    """The table of times; large vectors have these sizes in millions."""
    rows = []
    trainings = {
        "CNN, 236 k": real_updates.small(real_updates.TASKS["CNN"], None),
        "GPT, 0.8 M": real_updates.transformer(**real_updates.TASKS["GPT"], data=None),
    }
    for name, training in trainings.items():
        local = partial(training.change, 0, 0, training.start)
        steps, vector = seconds(local, 3), local()
        print(f"{name}: 10 local steps take {steps:.3f} s", flush=True)
        rows += [timed(f"{name}, {most} ×", vector, training.shapes, most, steps, "10 local steps") for most in BUDGETS]
    os.environ.setdefault(
        "GLOO_SOCKET_IFNAME", "lo"
    )  # without it gloo looks the host's name up, and may wait for minutes
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for size in sizes:
        vector, squares = large(size * 1024)
        target = torch.zeros_like(vector)
        add = seconds(partial(target.add_, vector), 5)
        rows.append(timed(f"{size} M, 40 ×", vector, squares, 40, add, "an add"))
        frame, _ = encode_dense(vector, squares, 8)
        dense = (lambda v=vector, s=squares: encode_dense(v, s, 8), lambda f=frame, s=squares: decode_update(f, s))
        unit = f"{add * 1e3:.1f} ms (an add)"
        rows.append((f"{size} M, dense, 8 bits", unit, *(f"{seconds(work, 1) / add:.1f} ×" for work in dense), ""))
        rows.append((f"{size} M, PowerSGD's hook, rank 1", unit, f"{power_sgd(vector, squares) / add:.1f} ×", "", ""))
    dist.destroy_process_group()
    heads = ("", "unit", "encode", "decode", "add")
    show("energy-time", "CPU time on one thread, as multiples of the unit", heads, rows, record)


def timed(
    name: str, vector: torch.Tensor, shapes: list[Any], budget: float, unit: float, unit_name: str
) -> tuple[str, ...]:
    """A row of times."""
    most = int(budget * 0.5 * math.sqrt(len(vector)))
    residual, few = vector.clone(), 1 if len(vector) > 1 << 24 else 5
    write = seconds(lambda: encode_update(vector, shapes, most), few)
    frame, update = encode_update(vector, shapes, most)
    read = seconds(lambda: decode_update(frame, shapes), few)
    added = seconds(lambda: update.add_to(residual), few)
    cells = [f"{value / unit:.2f} ×" for value in (write, read, added)]
    return (name, f"{unit * 1e3:.1f} ms ({unit_name})", *cells)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("what", nargs="?", default="time", choices=("time",))
    parser.add_argument("--sizes", default="11,100", help="millions of entries")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load_parts()
    try:
        times(options.record, [int(size) for size in options.sizes.split(",")])
    except MissingData as error:
        sys.exit(f"{error}\n(data folder: {data_folder()})")
