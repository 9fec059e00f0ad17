"""Bytes per entry beside SparseLoCo's layout: 64 of every 4,096 entries, each with 12 bits of index and 2 of value.

    python -m benchmarks.payload               # --record keeps the table for docs/studies/performance.md

The entries are of real changes: what 30 local steps move in a model, plus what was not sent before. SparseLoCo's scales
are not counted, ours are, as are our headers and checksums.
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector

from benchmarks.internet import STEPS, Task
from benchmarks.tables import arguments, kept
from dagc import VALUE_CODECS, Sparse, encode, quantize, top_k
from dagc.compressors import Gradient
from dagc.errors import MissingData
from dagc.feedback import ErrorFeedback

CHUNK, KEPT = 4096, 64
MODELS = {"cnn@cifar-10": "CNN@CIFAR-10", "gpt": "GPT on Shakespeare"}
HEADS = [
    "", "entries", "values", "index bits", "value bits", "bytes per entry",
    "squared values of the sent entries that rounding loses",
]  # fmt: skip


def per_chunk(vector: Gradient, parameter: int, *, seed: int = 0) -> Sparse:
    """SparseLoCo's selection: the largest entries of every chunk, in proportion in the last one."""
    assert isinstance(vector, torch.Tensor)
    found = []
    for start in range(0, len(vector), CHUNK):
        chunk = vector[start : start + CHUNK]
        found.append(top_k(chunk, max(1, parameter * len(chunk) // CHUNK)).indices + start)
    indices = np.concatenate(found)
    return Sparse(len(vector), indices, vector.numpy()[indices])


def changes(name: str, rounds: int) -> list[torch.Tensor]:
    """What the first rank's model moves in each round, from where the last one has left it."""
    task = Task(name, 0, 4)
    found = []
    for round in range(rounds):
        before = parameters_to_vector(task.module.parameters()).detach().clone()
        for step in range(STEPS):
            task.optimizer.zero_grad()
            task.loss(task.module, round * STEPS + step).backward()
            task.optimizer.step()
        found.append(before - parameters_to_vector(task.module.parameters()).detach())
    return found


def layouts(name: str, rounds: int) -> Iterator[list[str]]:
    """Rows: ours with the entries that SparseLoCo selects and with as many of the whole model, int8 and signs."""
    moved = changes(name, rounds)
    size = len(moved[0])
    ways = {
        f"{KEPT} of every {CHUNK:,}": (per_chunk, KEPT),
        "as many, the largest of all": (top_k, KEPT * size // CHUNK),
    }
    for label, (compressor, parameter) in ways.items():
        for values in ("int8", "sign"):
            feedback = ErrorFeedback(compressor, size, values=values)
            counted = []
            for change in moved:
                exact = compressor(feedback.residual + change, parameter)
                frame = encode(feedback.step(change, parameter), values)
                value_bytes = VALUE_CODECS[values].size(len(exact))
                lost = np.square(quantize(exact.values, values) - exact.values).sum() / np.square(exact.values).sum()
                bits = 8 * (len(frame) - value_bytes), 8 * value_bytes, len(frame)
                counted.append((*(part / len(exact) for part in bits), lost))
            index, value, total, lost = np.mean(counted[rounds // 2 :], axis=0)
            figures = f"{index:.2f}", f"{value:.2f}", f"{total:.2f}", f"{100 * lost:.1f} %"
            yield [f"ours, {MODELS[name]}", label, values, *figures]


def main() -> None:
    """Measure and show; what is there is shown even if the rest fails."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="of local steps; the second half is counted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    notes = [f"Means of {options.rounds - options.rounds // 2} rounds of {STEPS} local steps"]
    with kept("payload", "Bits and bytes of an entry", HEADS, options.record, notes) as sheet:
        sheet.missing = [f"no {title}" for title in MODELS.values()]
        sheet.add(["SparseLoCo, without scales", f"{KEPT} of every {CHUNK:,}", "two-bit", "12.00", "2.00", "1.75", ""])
        for name, title in MODELS.items():
            try:
                for row in layouts(name, options.rounds):
                    sheet.add(row)
            except (MissingData, SystemExit) as error:  # the second if there is no text
                print(f"without {name}: {error}", file=sys.stderr, flush=True)
            else:
                sheet.missing.remove(f"no {title}")


if __name__ == "__main__":
    main()
