"""Parity: does `dagc` end where uncompressed training ends, at its number of rounds? The source of `docs/studies/parity.md`.

`python -m research.parity --data FOLDER` runs what is missing, a curve at a time, and appends it to `results/parity.jsonl`;
`python -m research.parity --table` prints the table. It can be stopped and started again at any time.
"""

import argparse
import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagc.training import Config, iterate

__all__ = ["METHODS", "TASKS"]

RESULTS = Path(__file__).parents[1] / "results" / "parity.jsonl"
NESTEROV: dict[str, Any] = {"optimizer_options": {"momentum": 0.9, "nesterov": True}, "server_rate": 0.5}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "none"},
    "dagc": {"method": "dagc"},
    "FedAvg + Nesterov": {"method": "none", **NESTEROV},
    "dagc + Nesterov": {"method": "dagc", **NESTEROV},
    "thrifty": {"method": "thrifty"},
}
"""What is compared: each with and without the server's momentum, and the fewest bytes."""
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"task": "mlp@digits", "rounds": 60, "local_steps": 10, "learning_rate": 0.1, "evaluate_every": 2},
    "mlp": {"task": "mlp@fashion-mnist", "rounds": 30, "local_steps": 20, "learning_rate": 0.1, "evaluate_every": 1},
    "mlp, 6 rounds": {"task": "mlp@fashion-mnist", "rounds": 6, "local_steps": 20, "learning_rate": 0.1, "evaluate_every": 1},
    "logistic": {"task": "logistic@fashion-mnist", "rounds": 60, "local_steps": 60, "learning_rate": 0.1, "evaluate_every": 2},
    "hospitals": {
        "task": "logistic@fashion-mnist",
        "partition": "from-sizes:sizes=12413/3954/3363/2259/819/439,scale=true,label_alpha=0.5",
        "rounds": 100,
        "local_steps": 20,
        "learning_rate": 0.2,
        "evaluate_every": 4,
    },
    "adult": {
        "task": "logistic@adult",
        "partition": "by-client:min_size=10",
        "rounds": 100,
        "local_steps": 10,
        "learning_rate": 0.1,
        "evaluate_every": 4,
    },
    "fifty": {
        "task": "logistic@fashion-mnist",
        "clients": 50,
        "participation": 0.2,
        "rounds": 60,
        "local_steps": 20,
        "learning_rate": 0.1,
        "evaluate_every": 3,
    },
    "cnn": {"task": "cnn@cifar-10", "rounds": 50, "local_steps": 10, "learning_rate": 0.05, "evaluate_every": 5},
    "cnn, alpha 0.1": {
        "task": "cnn@cifar-10",
        "rounds": 50,
        "local_steps": 10,
        "learning_rate": 0.05,
        "label_alpha": 0.1,
        "evaluate_every": 5,
    },
    "lstm": {
        "task": "token-lstm@shakespeare",
        "partition": "by-client:clients=10",
        "rounds": 48,
        "local_steps": 10,
        "learning_rate": 4.0,
        "evaluate_every": 4,
    },
    "five hundred": {
        "task": "logistic@fashion-mnist",
        "clients": 500,
        "participation": 0.02,
        "rounds": 100,
        "local_steps": 20,
        "learning_rate": 0.1,
        "evaluate_every": 5,
    },
    "roles": {
        "task": "token-lstm@shakespeare",
        "partition": "by-client:min_size=5",
        "participation": 0.05,
        "rounds": 80,
        "local_steps": 10,
        "learning_rate": 4.0,
        "evaluate_every": 8,
    },
}  # fmt: skip
"""The tasks of `docs/studies/rivals.md`, at rounds that people would give them."""


def curve(task: str, method: str, seed: int, data: str | None) -> dict[str, Any]:
    """Train once: the score at every evaluation, and total bytes at the end, the first model included."""
    config = Config(**{**TASKS[task], **METHODS[method], "seed": seed, "data_dir": data, "threads": 1})
    scores: list[list[float]] = []
    for round in iterate(config):
        if round.score is not None:
            scores.append([round.round, float(f"{round.score:.5f}")])
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "scores": scores,
        "bytes_up": round.bytes_up,
        "bytes_down": round.bytes_down,
    }


def records(path: Path) -> list[dict[str, Any]]:
    """Every curve that was recorded."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(path: Path, tasks: list[str], methods: list[str], seeds: range) -> Iterator[tuple[str, str, int]]:
    """What is to be run, the first seed of everything first."""
    for seed in seeds:
        for task in tasks:
            for method in methods:
                known = {(each["task"], each["method"], each["seed"]) for each in records(path)}
                if (task, method, seed) not in known:
                    yield task, method, seed


def table(path: Path) -> str:
    """For each task: final scores (mean of the last three evaluations), the largest gap to FedAvg, total bytes."""
    lines = [
        "| task | method | seeds | final | difference | largest gap after round 5 | MB | times fewer |",
        "|---|---|---|---|---|---|---|---|",
    ]
    every = records(path)
    for task in TASKS:
        by_method = {
            name: {each["seed"]: each for each in every if (each["task"], each["method"]) == (task, name)}
            for name in METHODS
        }
        for name, runs in by_method.items():
            base = by_method["FedAvg + Nesterov" if "Nesterov" in name else "FedAvg"]
            shared = sorted(runs.keys() & base.keys())
            if not shared:
                continue
            ends = [_end(runs[seed]) for seed in shared]
            paired = [_end(runs[seed]) - _end(base[seed]) for seed in shared]
            gaps = [_gap(runs[seed], base[seed]) for seed in shared]
            total = statistics.mean(runs[seed]["bytes_up"] + runs[seed]["bytes_down"] for seed in shared)
            dense = statistics.mean(base[seed]["bytes_up"] + base[seed]["bytes_down"] for seed in shared)
            lines.append(
                f"| {task} | {name} | {len(shared)} | {100 * statistics.mean(ends):.1f} | {100 * statistics.mean(paired):+.2f} "
                f"| {100 * statistics.mean(gaps):.2f} | {total / 1e6:.2f} | {dense / total:.0f} |"
            )
    return "\n".join(lines)


def _end(run: dict[str, Any]) -> float:
    return statistics.mean(score for _, score in run["scores"][-3:])


def _gap(run: dict[str, Any], base: dict[str, Any]) -> float:
    """By how much the run is below the baseline at most, after the fifth round."""
    pairs = zip(run["scores"], base["scores"], strict=True)
    return max((theirs[1] - ours[1] for ours, theirs in pairs if ours[0] > 5), default=0.0)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--tasks", default=",".join(TASKS), help="separated by semicolons")
    parser.add_argument("--methods", default=";".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table(given.records))
        return
    os.nice(10)
    tasks = given.tasks.split(";") if ";" in given.tasks or given.tasks in TASKS else list(TASKS)
    for task, method, seed in missing(given.records, tasks, given.methods.split(";"), range(given.seeds)):
        record = curve(task, method, seed, given.data)
        given.records.parent.mkdir(exist_ok=True)
        with given.records.open("a") as file:
            file.write(json.dumps(record) + "\n")
        end = record["scores"][-1][1]
        print(
            f"{task:16} {method:18} seed {seed}: {end:.4f}, {record['bytes_up'] + record['bytes_down']:,} bytes",
            flush=True,
        )


if __name__ == "__main__":
    main()
