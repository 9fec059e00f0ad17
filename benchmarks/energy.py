"""How long it takes to encode, decode and add updates, as multiples of other work.

    python -m benchmarks.energy time              # two minutes

`research.energy` measures what frames carry. `--record` keeps the table for `docs/studies/energy.md`.
"""

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.tables import arguments, show
from dagc.data import data_folder
from dagc.errors import MissingData
from dagc.training import Config, Federation
from dagc.updates import decode_update, encode_dense, encode_update
from research.parts import load as load_parts

CNN: dict[str, Any] = {"task": "cnn@cifar-10", "learning_rate": 0.05, "local_steps": 10}


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


def times(record: bool) -> None:
    """The table of times."""
    rows = []
    federation = Federation(Config(method="none", rounds=2, threads=1, **CNN))
    start = [federation.vector]
    steps = seconds(lambda: federation.gradients(0, [0], rate=0.05, starts=start))
    (computed,) = federation.gradients(0, [0], rate=0.05, starts=start)
    vector = torch.cat([part.reshape(-1) for part in computed.change])
    shapes: list[tuple[int, ...]] = [tuple(part.shape) for part in computed.change]
    for budget in (1, 16, 48):
        rows.append(timed(f"CNN, 236 k, {budget} ×", vector, shapes, budget, steps, "10 local steps"))
    for size in (11, 100):
        vector, squares = large(size * 1024)
        target = torch.zeros_like(vector)
        add = seconds(partial(target.add_, vector), 5)
        rows.append(timed(f"{size} M, 48 ×", vector, squares, 48, add, "an add"))
        frame, _ = encode_dense(vector, squares, 8)
        dense = (lambda v=vector, s=squares: encode_dense(v, s, 8), lambda f=frame, s=squares: decode_update(f, s))
        cells = [f"{seconds(work, 1) / add:.1f} ×" for work in dense]
        rows.append((f"{size} M, dense, 8 bits", f"{add * 1e3:.1f} ms (an add)", *cells, ""))
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    load_parts()
    try:
        times(options.record)
    except MissingData as error:
        sys.exit(f"{error}\n(data folder: {data_folder()})")
