"""How long it takes to encode, decode and add updates, as multiples of other work.

    python -m benchmarks.energy time              # some minutes

Each row is measured in one go and kept in a file, with the commit. If the run is stopped, the same command continues
with the rows that are missing. `research.energy` measures what frames carry. `--record` keeps the table for
`docs/studies/energy.md`.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.tables import HERE, arguments, kept
from dagc.data import data_folder
from dagc.errors import MissingData
from dagc.policies import Plan
from dagc.protocol import Server, Upload
from dagc.updates import decode_update, encode_dense, encode_update
from research import real_updates
from research.origin import source_commit
from research.parts import load as load_parts

BUDGETS = (1, 16, 40, 64)
"""In multiples of ½√d bytes; the default of `dagc` is 40."""
CLIENTS = 16
"""Whose updates the server adds up."""
HEADS = ("", "unit", "compress and encode", "decode", "add")
Shapes = list[tuple[int, int]]


def seconds(work: Callable[[], Any], times: int = 9) -> float:
    """The median of the CPU seconds that some work takes."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return sorted(taken)[len(taken) // 2]


def large(rows: int) -> tuple[torch.Tensor, Shapes]:
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

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(
            [torch.vdot(part.flatten(), g.flatten()) for part, g in zip(self.parts, gradients, strict=True)]
        ).sum()


def power_sgd(vector: torch.Tensor, shapes: Shapes) -> float:
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


@cache
def training(model: str) -> tuple[float, torch.Tensor, list[Any]]:
    """The seconds that 10 local steps of a model take, how they change it, and its shapes."""
    task = real_updates.TASKS[model]
    made = real_updates.transformer(**task, data=None) if "adapted" in task else real_updates.small(task, None)
    local = partial(made.change, 0, 0, made.start)
    vector = local()
    return seconds(local, 5), vector, made.shapes


def real(name: str, model: str, budget: float) -> list[str]:
    """A row: an update of a model that is trained, as parts of 10 local steps."""
    unit, vector, shapes = training(model)
    return timed(name, vector, shapes, budget, unit, "10 local steps")


@cache
def vector_of(millions: int) -> tuple[float, torch.Tensor, Shapes]:
    """A large vector, and the seconds that it takes to add it to another."""
    vector, shapes = large(millions * 1024)
    target = torch.zeros_like(vector)
    return seconds(partial(target.add_, vector), 5), vector, shapes


def mixed(name: str, millions: int) -> list[str]:
    """A row: terms and entries of a large model."""
    unit, vector, shapes = vector_of(millions)
    return timed(name, vector, shapes, 40, unit, "an add")


def summed(name: str, millions: int) -> list[str]:
    """A row: what the server's sum of some clients' updates takes for each of them."""
    unit, vector, shapes = vector_of(millions)
    _, update = encode_update(vector, shapes, int(20 * math.sqrt(len(vector))))
    server = Server(Plan(method="dagc"), len(vector), shapes=shapes)
    uploads = [Upload(str(number), update, b"") for number in range(CLIENTS)]
    for upload in uploads:
        server.join(upload.client, 100)
    each = seconds(lambda: server.total(uploads), 1) / CLIENTS
    note = f"{each / unit:.2f} × ({1e9 * each / len(vector):.2f} ns per entry)"
    return [name, f"{unit * 1e3:.1f} ms (an add)", "", "", note]


def dense(name: str, millions: int) -> list[str]:
    """A row: all entries of a large model in 8 bits."""
    unit, vector, shapes = vector_of(millions)
    frame, _ = encode_dense(vector, shapes, 8)
    works = (lambda: encode_dense(vector, shapes, 8), lambda: decode_update(frame, shapes))
    return [name, f"{unit * 1e3:.1f} ms (an add)", *(f"{seconds(work, 3) / unit:.1f} ×" for work in works), ""]


def others(name: str, millions: int) -> list[str]:
    """A row: PowerSGD's hook on a large model."""
    unit, vector, shapes = vector_of(millions)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo looks the host's name up, and may wait for minutes
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return [name, f"{unit * 1e3:.1f} ms (an add)", f"{power_sgd(vector, shapes) / unit:.1f} ×", "", ""]
    finally:
        dist.destroy_process_group()


LARGEST_HOOK = 32
"""Of more million entries, torch's PowerSGD hook did not come back within minutes, with one process and gloo."""


def rows_of(sizes: Sequence[int]) -> dict[str, Callable[[str], list[str]]]:
    """All rows by name, and what measures each; large vectors have these sizes in millions."""
    rows: dict[str, Callable[[str], list[str]]] = {}
    for name, model in (("CNN, 236 k", "CNN"), ("GPT, 0.8 M", "GPT")):
        rows |= {f"{name}, {budget} ×": partial(real, model=model, budget=budget) for budget in BUDGETS}
    for size in sizes:
        rows[f"{size} M, 40 ×"] = partial(mixed, millions=size)
        rows[f"{size} M, 40 ×, each of {CLIENTS} clients on the server"] = partial(summed, millions=size)
        rows[f"{size} M, dense, 8 bits"] = partial(dense, millions=size)
        if size <= LARGEST_HOOK:
            rows[f"{size} M, PowerSGD's hook, rank 1"] = partial(others, millions=size)
    return rows


def times(record: bool, sizes: Sequence[int], path: Path) -> None:
    """The table of times. Rows that this commit has measured before are in the file, and stay."""
    commit, rows = source_commit(HERE), rows_of(sizes)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {line["row"][0]: line["row"] for line in lines if line["commit"] == commit}
    path.parent.mkdir(parents=True, exist_ok=True)
    title = "CPU time on one thread, as multiples of the unit"
    with kept("energy-time", title, HEADS, record, wanted=len(rows)) as sheet:
        for name, measure in rows.items():
            row = done.get(name) or measure(name)
            sheet.add(row)
            if name not in done:
                with path.open("a") as file:
                    file.write(json.dumps({"commit": commit, "row": row}) + "\n")


def timed(name: str, vector: torch.Tensor, shapes: list[Any], budget: float, unit: float, unit_name: str) -> list[str]:
    """A row of times."""
    most = int(budget * 0.5 * math.sqrt(len(vector)))
    residual, few = vector.clone(), 3 if len(vector) > 1 << 24 else 9
    frame, update = encode_update(vector, shapes, most)  # the first one compiles the kernels
    write = seconds(lambda: encode_update(vector, shapes, most), few)
    read = seconds(lambda: decode_update(frame, shapes), few)
    added = seconds(lambda: update.add_to(residual), few)
    cells = [f"{value / unit:.2f} ×" for value in (write, read, added)]
    return [name, f"{unit * 1e3:.1f} ms ({unit_name})", *cells]


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("what", nargs="?", default="time", choices=("time",))
    parser.add_argument("--sizes", default="11,100", help="millions of entries")
    parser.add_argument("--rows", type=Path, default=Path("runs/energy-time.jsonl"), help="where rows are kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load_parts()
    try:
        times(options.record, [int(size) for size in options.sizes.split(",")], options.rows)
    except MissingData as error:
        sys.exit(f"{error}\n(data folder: {data_folder()})")
