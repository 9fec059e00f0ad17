"""Larger and more real: models of 1 to 135 million parameters, and data that people, roles or presidents have.

`python -m research.larger --data FOLDER` runs what is missing, a training at a time, and appends it to
`results/larger.jsonl`; `--table` prints the table, `make results` writes it into the documents. It can be stopped and
started again at any time. `research/federations.py` says what to install for which task.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dagc.data import data_folder
from dagc.models import parameter_count
from dagc.text import count, in_bytes
from dagc.training import Config, iterate
from research import federations, parts
from research.measured import in_markdown
from research.origin import source_commit
from research.parity import Table, records

__all__ = ["METHODS", "TABLES", "TASKS"]

RESULTS = Path(__file__).parents[1] / "results" / "larger.jsonl"
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "none"},
    "dagc": {"method": "dagc"},
    "FedAvg + Nesterov": {"method": "none", "momentum": 0.9},
    "dagc + Nesterov": {"method": "dagc", "momentum": 0.9},
}
"""Without compression and with `dagc` as it comes, each with and without the server's momentum."""


@dataclass(frozen=True)
class Task:
    """A federation, and for how long it trains.

    Attributes:
        title: What documents call it.
        make: Makes the model and the data, from the data folder and the seed.
        settings: Those of `dagc.iterate`.
        seeds: How many trainings of each method.
        methods: Those that it is trained with.
    """

    title: str
    make: Callable[[Path, int], dict[str, Any]]
    settings: dict[str, Any]
    seeds: int = 1
    methods: Sequence[str] = field(default_factory=lambda: tuple(METHODS))


TASKS = {
    "activities": Task(
        "activities of 36 people (WISDM), MLP",
        federations.activities,
        {"rounds": 60, "local_steps": 10, "batch_size": 16, "learning_rate": 0.3, "evaluate_every": 4},
        seeds=3,
    ),
    "ratings": Task(
        "ratings of 671 people (MovieLens), factors",
        federations.ratings,
        {"rounds": 60, "participation": 0.1, "epochs": 1, "learning_rate": 5.0, "evaluate_every": 4},
        seeds=3,
    ),
    "images": Task(
        "CIFAR-10, 10 clients, residual network",
        federations.images,
        {"rounds": 32, "local_steps": 6, "learning_rate": 0.02, "client_momentum": 0.9, "evaluate_every": 4},
    ),
    "roles": Task(
        "Shakespeare, 4 roles, GPT",
        federations.roles,
        {
            "partition": "by-client:clients=4",
            "rounds": 8,
            "local_steps": 5,
            "batch_size": 8,
            "client_optimizer": "AdamW",
            "learning_rate": 0.001,
            "evaluate_every": 2,
        },
    ),
    "messages": Task(
        "8 presidents' messages, adapters for SmolLM2",
        federations.messages,
        {
            "rounds": 5,
            "participation": 0.5,
            "local_steps": 4,
            "batch_size": 4,
            "client_optimizer": "AdamW",
            "learning_rate": 0.001,
            "evaluate_every": 5,
        },
        methods=("FedAvg", "dagc"),
    ),
}
"""The cheap ones first."""


def training(task: str, method: str, seed: int, data: str | None) -> dict[str, Any]:
    """Train once: score and loss on the test set at every evaluation, and total bytes, the first model included."""
    chosen = TASKS[task]
    start = time.process_time()
    made = chosen.make(data_folder(data), seed)
    settings = {**chosen.settings, **METHODS[method], **made.pop("settings", {})}
    scores: list[list[float]] = []
    rounds = iterate(Config(**settings, seed=seed, data_dir=data, threads=1), **made)
    for round in rounds:
        if round.score is not None and round.test_loss is not None:
            scores.append([round.round, float(f"{round.score:.5f}"), float(f"{round.test_loss:.5f}")])
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "parameters": parameter_count(rounds.model),
        "clients": len(rounds.federation.names),
        "settings": chosen.settings | METHODS[method],
        "scores": scores,
        "bytes_up": round.bytes_up,
        "bytes_down": round.bytes_down,
        "cpu_seconds": int(time.process_time() - start),
        "commit": source_commit(Path(__file__).parent),
    }


def missing(path: Path, tasks: Sequence[str], methods: Sequence[str]) -> list[tuple[str, str, int]]:
    """What is to be run: of each task all methods with the first seed, then with the others."""
    known = {(each["task"], each["method"], each["seed"]) for each in records(path)}
    every = [
        (task, method, seed)
        for task in tasks
        for seed in range(TASKS[task].seeds)
        for method in methods
        if method in TASKS[task].methods
    ]
    return [each for each in every if each not in known]


def ends_table(every: Sequence[Mapping[str, Any]]) -> Table:
    """For each task and method: the last score and loss, the difference from the same without compression, bytes."""
    heads = ["task", "parameters", "rounds", "method", "accuracy, %", "difference, points", "loss", "total", "fewer"]
    rows, counts = [], []
    for task, chosen in TASKS.items():
        first = [chosen.title]
        for method in METHODS:
            pairs = _pairs(every, task, method)
            if not pairs:
                continue
            ours, base = zip(*pairs, strict=True)
            counts.append(len(pairs))
            if len(first) == 1:
                first += [f"{ours[0]['parameters']:,}", f"{ours[0]['scores'][-1][0]}"]
            gaps = [100 * (_end(run, 1) - _end(other, 1)) for run, other in pairs]
            totals = [statistics.mean(each["bytes_up"] + each["bytes_down"] for each in some) for some in (ours, base)]
            same = ours == base
            rows.append(
                [
                    *first,
                    method,
                    _spread([100 * _end(run, 1) for run in ours]),
                    "" if same else _spread(gaps, sign="+"),
                    f"{statistics.mean(_end(run, 2) for run in ours):.3f}",
                    in_bytes(totals[0]),
                    "" if same else f"{totals[1] / totals[0]:.0f}",
                ]
            )
            first = ["", "", ""]
    fewest, most = min(counts, default=0), max(counts, default=0)
    seeds = count(most, "seed", words=True) if fewest == most else f"{fewest} to {most} seeds"
    where = f"Record: `results/larger.jsonl`; {seeds}"
    return heads, rows, f"{where}. The last evaluation; bytes of all clients, both ways, the first model included."


TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], Table]] = {"ends": ends_table}
"""What documents may show: `<!-- begin: table larger NAME -->`."""


def _pairs(every: Sequence[Mapping[str, Any]], task: str, method: str) -> list[tuple[Any, Any]]:
    """The runs of a method, each with the same without compression; that is shown with the seeds that dagc has."""
    plain = method.replace("dagc", "FedAvg")
    runs, base, ours = (
        {each["seed"]: each for each in every if (each["task"], each["method"]) == (task, name)}
        for name in (method, plain, plain.replace("FedAvg", "dagc"))
    )
    shared = runs.keys() & base.keys()
    return [(runs[seed], base[seed]) for seed in sorted(shared & ours.keys() or shared)]


def _end(run: Mapping[str, Any], column: int) -> float:
    return float(run["scores"][-1][column])


def _spread(values: Sequence[float], sign: str = "") -> str:
    mean = f"{statistics.mean(values):{sign}z.1f}".replace("-", "−")
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--tasks", default=";".join(TASKS), help="separated by semicolons")
    parser.add_argument("--methods", default=";".join(METHODS))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        heads, rows, source = ends_table(records(given.records))
        print(in_markdown(heads, rows), source, sep="\n\n")
        return
    parts.load()
    os.nice(5)
    for task, method, seed in missing(given.records, given.tasks.split(";"), given.methods.split(";")):
        record = training(task, method, seed, given.data)
        given.records.parent.mkdir(exist_ok=True)
        with given.records.open("a") as file:
            file.write(json.dumps(record) + "\n")
        total = record["bytes_up"] + record["bytes_down"]
        print(f"{task:12} {method:18} seed {seed}: {record['scores'][-1]}, {total:,} bytes", flush=True)


if __name__ == "__main__":
    main()
