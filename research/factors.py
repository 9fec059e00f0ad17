"""How many bits an integer of a low-rank factor should have, on real updates: for `docs/studies/energy.md`.

`python -m research.factors --data FOLDER --updates FOLDER` measures what is missing and appends it to the record,
`results/factors.jsonl`. The trainings of `research.real_updates` keep their updates in the second folder.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from research import parts
from research.forms import Carried, Triples, low_rank_frame, share_of, triples_of
from research.measured import in_markdown
from research.origin import source_commit
from research.parity import records
from research.real_updates import Real, kept

__all__ = ["FACTORS", "LEVELS", "factor_table", "uniform"]

RESULTS = Path(__file__).parents[1] / "results" / "factors.jsonl"
LEVELS = (5, 7, 9, 11, 15, 31)
"""How many values an integer has; it takes log₂ of them if all are coded alike."""
BUDGETS = (16, 40)
"""In multiples of ½√d bytes."""
SCALE_BITS = 10
"""Of a term's scale, as `dagc` has it on average."""
ADAPTIVE = "dagc"
Table = tuple[list[str], list[list[str]], str]


def uniform(values: Tensor, levels: int) -> Tensor:
    """Integers, as many values as `levels` around zero, with the step that leaves the smallest error.

    Example:
        >>> uniform(torch.tensor([0.1, -1.0, 2.1]), 5)
        tensor([ 0., -1.,  2.])
    """
    most = (levels - 1) // 2
    steps = values.square().mean().sqrt() * torch.linspace(0.3, 1.6, 27) * 3 / (most + 0.5)
    tries: list[tuple[Tensor, Tensor]] = [((values / step).round().clamp(-most, most), step) for step in steps]
    best, _ = min(tries, key=lambda one: float((values - one[0] * one[1]).square().sum()))
    return best


def bits_of(integers: Tensor, levels: int, coded: bool) -> float:
    """What the integers take: the same number of bits each, or their entropy."""
    if not coded:
        return len(integers) * math.log2(levels)
    part = torch.unique(integers, return_counts=True)[1].double() / len(integers)
    return -len(integers) * float((part * part.log2()).sum())


def computed(vector: Tensor, triples: list[Triples], most: int, levels: int, coded: bool) -> Carried:
    """The terms that carry most per bit, as many as fit."""
    found = []
    for one in triples:
        for k in range(min(len(one.sigmas), 8 * most // sum(one.matrix.shape) + 1)):
            left, right = (uniform(side[:, k], levels) for side in (one.left, one.right))
            bits = SCALE_BITS + sum(bits_of(side, levels, coded) for side in (left, right))
            scale = float(one.sigmas[k] * (one.left[:, k] @ left) * (one.right[:, k] @ right))
            scale /= float((left @ left) * (right @ right))
            found.append((float(one.sigmas[k]) ** 2 / bits, bits, one, torch.outer(left, right) * scale))
    decoded, used = torch.zeros(len(vector), dtype=torch.float64), 0.0
    for _, bits, one, term in sorted(found, key=lambda each: -each[0]):
        if used + bits <= 8 * most:
            used += bits
            decoded[one.start : one.start + one.matrix.numel()] += term.reshape(-1)
    return Carried(share_of(vector.double(), decoded), math.ceil(used / 8))


def measured(model: str, real: Real) -> dict[str, Any]:
    """A row of the record: budget, levels or `dagc`, whether the integers are entropy coded, and the share."""
    row: dict[str, Any] = {"model": model, "what": real.what, "commit": source_commit(), "carried": []}
    triples = triples_of(real.vector, tuple(real.shapes))
    for budget in BUDGETS:
        most = int(budget * 0.5 * math.sqrt(len(real.vector)))
        for levels in LEVELS:
            for coded in (False, True):
                way = computed(real.vector, triples, most, levels, coded)
                row["carried"].append([budget, levels, coded, round(way.share, 4)])
        _, update = low_rank_frame(real.vector, real.shapes, most)
        row["carried"].append([budget, ADAPTIVE, True, round(share_of(real.vector, update.dense()), 4)])
    return row


def factor_table(rows: list[dict[str, Any]]) -> Table:
    """For each number of levels, the mean share, with and without an entropy coder."""
    columns = [(model, budget, coded) for model in dict.fromkeys(row["model"] for row in rows)
               for budget in BUDGETS for coded in (False, True)]  # fmt: skip
    body = []
    for levels in (*LEVELS, ADAPTIVE):
        cells = [f"{levels} values, {math.log2(levels):.1f} bits" if isinstance(levels, int) else "as many as pay"]
        for model, budget, coded in columns:
            found = [share for row in rows if row["model"] == model for *key, share in row["carried"]
                     if key == [budget, levels, coded]]  # fmt: skip
            cells.append(f"{statistics.mean(found):.3f}" if found else "–")
        body.append(cells)
    heads = ["", *(f"{model}, {budget} ×{', coded' if coded else ''}" for model, budget, coded in columns)]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return heads, body, f"Record: `results/factors.jsonl`, commit {commits}. Mean of six vectors; bytes as above."


FACTORS: dict[str, Callable[[list[dict[str, Any]]], Table]] = {"bits": factor_table}
"""What documents may show: `<!-- begin: table factors NAME -->`."""


def main() -> None:
    """Measure what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--updates", type=Path, default=Path("runs/updates"), help="where to keep the real updates")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--models", default="MLP,CNN")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    parts.load()
    if options.table:
        heads, rows, source = factor_table(records(options.records))
        print(in_markdown(heads, rows), source, sep="\n\n")
        return
    os.nice(5)
    torch.set_num_threads(1)
    done = {(row["model"], row["what"]) for row in records(options.records)}
    for model in options.models.split(","):
        for real in kept(model, options.updates, options.data):
            if (model, real.what) not in done:
                with options.records.open("a") as file:
                    file.write(json.dumps(measured(model, real)) + "\n")
                print(model, real.what, flush=True)


if __name__ == "__main__":
    main()
