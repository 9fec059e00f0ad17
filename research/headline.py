"""The headline: bytes and rounds to the accuracy that the best uncompressed method ends at, every rate tuned for that.

`python -m research.headline --data FOLDER` runs what is missing, a training at a time, and appends it to
`results/headline.jsonl`; `--table` prints the tables. It can be stopped and started again at any time.

Every method has two rates, the clients' and the server's. Both are searched for the accuracy at the end, on a fifth of
the training data that is held out, with a seed of its own: from where a search starts, every neighbor of the best so
far is tried, half and twice a rate, until none is better. So no winner is at an edge, and everybody's search ends by
the same rule. With the rates found, a method is trained on all training data and tested with other seeds.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dagc.data import CATALOGUE, Dataset
from dagc.data.dataset import hold_out
from dagc.errors import DagcError
from dagc.training import Config, Training, iterate
from research import parts
from research.headline_tables import TABLES, end
from research.measured import in_markdown
from research.origin import source_commit
from research.parity import TASKS as PARITY
from research.parity import records
from research.recipes import RECIPES, RecipeFederation

__all__ = ["METHODS", "TASKS", "Point", "next_point", "validation"]

RESULTS = Path(__file__).parents[1] / "results" / "headline.jsonl"
TASKS = {name: PARITY[name] for name in ("digits", "hospitals", "mlp", "cnn", "lstm")}
"""In the order of what they cost."""
ADAM: dict[str, Any] = {"optimizer": "Adam", "optimizer_options": {"betas": [0.9, 0.99], "eps": 0.001}}
"""The server's, with the settings of its authors (Reddi et al. 2021)."""
FOUR_BITS: dict[str, Any] = {"first_bits": 4}
"""Whoever compresses gets the first model as `dagc` does, which is fewer bytes than others send."""
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "none"},
    "server Nesterov": {"method": "none", "momentum": 0.9},
    "dagc": {"method": "dagc"},
    "dagc + Nesterov": {"method": "dagc", "momentum": 0.9},
    "FedAdam": {"method": "none", **ADAM},
    "dagc + FedAdam": {"method": "dagc", **ADAM},
    "local AdamW": {"method": "none", "client_optimizer": "AdamW"},
    "STC, 1 %": {"method": "stc", "ratio": 0.01, **FOUR_BITS},
    "Top-k both ways, 1 %": {
        "method": "top-k",
        "ratio": 0.01,
        "values": "int32+fp32",
        "down": "same",
        **FOUR_BITS,
    },
    "QSGD both ways, 8 bits": {"method": "none", **FOUR_BITS},
    "QSGD both ways, 4 bits": {"method": "none", **FOUR_BITS},
    "PowerSGD, rank 2": {"method": "none", **FOUR_BITS},
    "SparseLoCo's recipe": {"method": "none", "client_optimizer": "AdamW", **FOUR_BITS},
    "DAGC-R, 1 %": {"method": "dagc-r", "ratio": 0.01, **FOUR_BITS},
    "thrifty": {"method": "thrifty"},
}
TUNED_ON = 1000
"""The seed of all trainings that rates are chosen by."""
HELD_OUT = "-validation"
Point = tuple[int, int]
"""How often the clients' rate and the server's have been doubled since the start of a search."""
Rows = Sequence[Mapping[str, Any]]


def validation(name: str, folder: Path) -> Dataset:
    """A data set whose test samples are a fifth of its training samples; its own test samples are left alone."""
    whole = CATALOGUE[name](folder)
    groups = whole.labels if whole.client is None else whole.client
    kept, held_out = map(torch.from_numpy, hold_out(groups.numpy()))
    owners = None if whole.client is None else whole.client[kept]
    train, test = ((whole.train_x[some], whole.train_y[some]) for some in (kept, held_out))
    return replace(whole, train_x=train[0], train_y=train[1], test_x=test[0], test_y=test[1], client=owners)


def register() -> None:
    """Add the tasks' data sets with a validation split to the catalog."""
    for task in TASKS.values():
        name = task["task"].partition("@")[2]
        CATALOGUE[name + HELD_OUT] = partial(validation, name)


def start_of(task: str, method: str) -> tuple[float, float]:
    """The clients' rate and the server's that a search starts from."""
    fields = METHODS[method]
    client = 0.004 if fields.get("client_optimizer") == "AdamW" else TASKS[task]["learning_rate"]
    return client, 0.01 if "optimizer" in fields else 0.5 if "momentum" in fields else 1.0


def next_point(found: Mapping[Point, float]) -> Point | None:
    """What to try next, given the scores of what was tried; None if no neighbor of the best is left.

    Example:
        >>> next_point({}), next_point({(0, 0): 0.5})
        ((0, 0), (-1, 0))
        >>> next_point({(0, 0): 0.5, (-1, 0): 0.4, (1, 0): 0.6})
        (2, 0)
    """
    if not found:
        return 0, 0
    client, server = max(found, key=lambda each: found[each])
    around = ((client - 1, server), (client + 1, server), (client, server - 1), (client, server + 1))
    return next((each for each in around if each not in found), None)


def tried(rows: Rows, task: str, method: str) -> dict[Point, float]:
    """The validation scores of a search so far."""
    some = [row for row in rows if (row["task"], row["method"]) == (task, method) and "point" in row]
    return {(row["point"][0], row["point"][1]): row["score"] for row in some}


def rates_at(task: str, method: str, point: Point) -> tuple[float, float]:
    """The clients' rate and the server's."""
    client, server = start_of(task, method)
    return client * 2.0 ** point[0], server * 2.0 ** point[1]


def trained(
    task: str, method: str, seed: int, point: Point, data: str | None, held_out: bool = False
) -> list[list[float]]:
    """Train once: round, score and total bytes at every evaluation, the first model included."""
    client, server = rates_at(task, method, point)
    fields = {**TASKS[task], **METHODS[method], "learning_rate": client, "server_rate": server}
    if held_out:
        fields["task"] += HELD_OUT
    config = Config(**fields, seed=seed, data_dir=data, threads=1)
    make = RECIPES.get(method)
    training = iterate(config) if make is None else Training(RecipeFederation(config, make(seed)), None, [])
    return [
        [each.round, float(f"{each.score:.5f}"), each.bytes_up + each.bytes_down]
        for each in training
        if each.score is not None
    ]


def tune(task: str, method: str, data: str | None, path: Path) -> Point:
    """Finish the search for a method's rates."""
    while (point := next_point(found := tried(records(path), task, method))) is not None:
        try:
            score = float(f"{end(trained(task, method, TUNED_ON, point, data, held_out=True)):.5f}")
        except (DagcError, ArithmeticError):  # diverged
            score = 0.0
        keep(path, {"task": task, "method": method, "point": point, "score": score})
    return max(found, key=lambda each: found[each])


def run(task: str, method: str, seed: int, data: str | None, path: Path) -> None:
    """One training with the rates found, unless it is known."""
    point = tune(task, method, data, path)
    key = (task, method, seed)
    if any((row["task"], row["method"], row.get("seed")) == key for row in records(path)):
        return
    curve = trained(task, method, seed, point, data)
    rates = dict(zip(("client", "server"), rates_at(task, method, point), strict=True))
    commit = source_commit(Path(__file__).parent)
    keep(
        path, {"task": task, "method": method, "seed": seed, "rates": rates, "curve": thinned(curve), "commit": commit}
    )


def thinned(curve: list[list[float]], most: int = 30) -> list[list[float]]:
    """The last three evaluations, and so many others that there are no more than these."""
    step = max(1, -(-len(curve) // most))
    return [row for i, row in enumerate(curve) if (len(curve) - 1 - i) % step == 0 or i >= len(curve) - 3]


def keep(path: Path, row: Mapping[str, Any]) -> None:
    """Append to the record."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row)[:150], flush=True)


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=";".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        for make in TABLES.values():
            heads, rows, source = make(records(given.records))
            print(in_markdown(heads, rows), source, "", sep="\n\n")
        return
    os.nice(10)
    parts.load()
    register()
    for task in given.tasks.split(","):
        for seed in range(given.seeds):
            for method in given.methods.split(";"):
                run(task, method, seed, given.data, given.records)


if __name__ == "__main__":
    main()
