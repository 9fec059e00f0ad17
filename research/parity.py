"""Parity: does `dagc` end where uncompressed training ends, at its rounds? The source of `docs/studies/results.md`.

`python -m research.parity --data FOLDER` runs what is missing, a curve at a time, and appends it to
`results/parity.jsonl`; `python -m research.parity --table` prints the table, `make results` writes it into the
documents. It can be stopped and started again at any time.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagc.text import count, in_bytes
from dagc.training import Config, iterate
from research import parts
from research.measured import in_markdown
from research.origin import source_commit

__all__ = ["METHODS", "TABLES", "TASKS", "records"]

RESULTS = Path(__file__).parents[1] / "results" / "parity.jsonl"
NESTEROV: dict[str, Any] = {"optimizer_options": {"momentum": 0.9, "nesterov": True}, "server_rate": 0.5}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"method": "none"},
    "dagc": {"method": "dagc"},
    "FedAvg + Nesterov": {"method": "none", **NESTEROV},
    "dagc + Nesterov": {"method": "dagc", **NESTEROV},
    "thrifty": {"method": "thrifty"},
    "FedAvg, first model in 8 bits": {"method": "none", "first_bits": 8},
}
"""Each with and without the server's momentum, the fewest bytes, and how far equal curves lie apart."""
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"task": "mlp@digits", "rounds": 60, "local_steps": 10, "learning_rate": 0.1, "evaluate_every": 2},
    "mlp": {"task": "mlp@fashion-mnist", "rounds": 30, "local_steps": 20, "learning_rate": 0.1, "evaluate_every": 1},
    "mlp, 6 rounds": {
        "task": "mlp@fashion-mnist",
        "rounds": 6,
        "local_steps": 20,
        "learning_rate": 0.1,
        "evaluate_every": 1,
    },
    "logistic": {
        "task": "logistic@fashion-mnist",
        "rounds": 60,
        "local_steps": 60,
        "learning_rate": 0.1,
        "evaluate_every": 2,
    },
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
    "fifty, MLP": {
        "task": "mlp@fashion-mnist",
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
}
"""Tasks at rounds that people would give them. Ten unequal clients (100:1) unless a name says otherwise."""
TITLES = {
    "digits": "MLP, digits",
    "mlp": "MLP, Fashion-MNIST",
    "mlp, 6 rounds": "the same, 6 rounds",
    "logistic": "logistic regression, Fashion-MNIST",
    "hospitals": "the same, six hospitals",
    "adult": "logistic regression, census by country",
    "fifty": "logistic regression, Fashion-MNIST, ten of 50 clients",
    "fifty, MLP": "MLP, Fashion-MNIST, ten of 50 clients",
    "cnn": "CNN, CIFAR-10",
    "cnn, alpha 0.1": "the same, very unequal labels",
    "lstm": "LSTM, Shakespeare by role",
    "five hundred": "logistic regression, Fashion-MNIST, ten of 500 clients",
    "roles": "LSTM, Shakespeare, ten of 198 roles",
}
"""What documents call the tasks."""
SAME = "the same"
FLOOR = "FedAvg, first model in 8 bits"
NEAR = 0.5
"""Points: where a curve should be, after the fifth round; and trainings that show how near equal ones are."""
BRIEF = {
    "mlp": "MLP on Fashion-MNIST, 10 clients",
    "fifty, MLP": "the same, 10 of 50 clients in a round",
    "cnn": "CNN on CIFAR-10, 10 clients",
    "lstm": "LSTM on Shakespeare, 10 roles",
    "hospitals": "logistic regression on Fashion-MNIST, 6 clients sized like hospitals",
    "adult": "logistic regression on a census, a client per country",
    "fifty": "logistic regression on Fashion-MNIST, 10 of 50 clients in a round",
    "five hundred": "the same, 10 of 500 clients",
}
"""The tasks of the README, and what it calls them."""


def curve(task: str, method: str, seed: int, data: str | None) -> dict[str, Any]:
    """Train once: the score at every evaluation, and total bytes at the end, the first model included."""
    config = Config(**{**TASKS[task], **METHODS[method], "seed": seed, "data_dir": data, "threads": 1})
    scores: list[list[float]] = []
    start = time.process_time()
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
        "cpu_seconds": int(time.process_time() - start),
        "commit": source_commit(Path(__file__).parent),
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


Table = tuple[list[str], list[list[str]], str]
"""The heads of the columns, the rows, and where they come from."""


def brief_table(every: Sequence[Mapping[str, Any]]) -> Table:
    """For each task: the score at the end without and with `dagc`, the rounds, and total bytes."""
    heads = ["task", "rounds", "accuracy without", "with dagc", "bytes without", "with dagc", "times fewer"]
    rows = []
    for task in BRIEF:
        pairs = _pairs(every, task, "dagc")
        if pairs:
            ours, base = zip(*pairs, strict=True)
            scores = [statistics.mean(map(_end, runs)) for runs in (base, ours)]
            totals = [statistics.mean(map(_total, runs)) for runs in (base, ours)]
            rounds = f"{base[0]['scores'][-1][0]:,}"
            accuracies = [f"{100 * score:.1f} %" for score in scores]
            amounts = [*map(in_bytes, totals), f"**{totals[0] / totals[1]:.0f}**"]
            rows.append([BRIEF[task], rounds, *accuracies, *amounts])
    return heads, rows, f"{_source(every, BRIEF, ('dagc',))} Accuracy: mean of the last three evaluations."


def full_table(every: Sequence[Mapping[str, Any]]) -> Table:
    """For each task: the end without compression, how far `dagc` ends from it and was below, and total bytes."""
    heads = ["task", "FedAvg, %", "dagc − FedAvg", "lowest", "8 bits − FedAvg", "Nesterov, %", "dagc − Nesterov"]
    rows = []
    for task in TASKS:
        pairs = _pairs(every, task, "dagc")
        if pairs:
            ours, base = zip(*pairs, strict=True)
            lowest = max(100 * _gap(run, other) for run, other in pairs)
            totals = [statistics.mean(map(_total, runs)) for runs in (ours, base)]
            nesterov = [run for run, _ in _pairs(every, task, "FedAvg + Nesterov")]
            cells = [_ends(base), _gaps(pairs), _spread([-lowest], sign="+")]
            cells += [_gaps(_pairs(every, task, "FedAvg, first model in 8 bits"))]
            cells += [_ends(nesterov), _gaps(_pairs(every, task, "dagc + Nesterov"))]
            rows.append([TITLES[task], *cells, in_bytes(totals[0]), f"{totals[1] / totals[0]:.0f}"])
    return [*heads, "dagc's bytes", "times fewer"], rows, _source(every, TASKS, METHODS)


def curve_table(every: Sequence[Mapping[str, Any]]) -> Table:
    """By how much each task's curve falls below the baseline's, and two curves without compression below each other."""
    heads = ["task", "dagc, one seed", "mean of seeds", "without, one seed", "mean of seeds", "seeds", "dagc's mean is"]
    rows = []
    for task in TASKS:
        ours, floor = _pairs(every, task, "dagc"), _pairs(every, task, FLOOR)
        if not ours:
            continue
        figures = [100 * lowest for pairs in (ours, floor) for lowest in _lowest(pairs)]
        cells = [_spread([-figure], sign="+") for figure in figures]
        seeds = "–".join(dict.fromkeys(str(len(pairs)) for pairs in (ours, floor) if pairs))
        rows.append([_full_title(task), *cells, *["–"] * (4 - len(cells)), seeds, _verdict(figures)])
    return heads, rows, _source(every, TASKS, ("dagc", FLOOR))


TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], Table]] = {
    "brief": brief_table,
    "full": full_table,
    "curves": curve_table,
}
"""What documents may show: `<!-- begin: table parity NAME -->`."""


def _pairs(every: Sequence[Mapping[str, Any]], task: str, method: str) -> list[tuple[Any, Any]]:
    """The runs of a method, each with its baseline's of the same seed."""
    baseline = "FedAvg + Nesterov" if "Nesterov" in method else "FedAvg"
    runs, base = (
        {each["seed"]: each for each in every if (each["task"], each["method"]) == (task, name)}
        for name in (method, baseline)
    )
    return [(runs[seed], base[seed]) for seed in sorted(runs.keys() & base.keys())]


def _lowest(pairs: Sequence[tuple[Any, Any]]) -> list[float]:
    """The largest shortfall after the fifth round: of any seed, and of the mean over seeds."""
    means = [
        {"scores": [(points[0][0], statistics.mean(point[1] for point in points)) for points in curves]}
        for runs in zip(*pairs, strict=True)
        if (curves := list(zip(*(run["scores"] for run in runs), strict=True)))
    ]
    return [max(_gap(*pair) for pair in pairs), _gap(*means)] if pairs else []


def _verdict(figures: Sequence[float]) -> str:
    """Whether the mean curve is as near as it should be, or as near as curves without compression are."""
    if figures[1] <= NEAR:
        return f"within {NEAR}"
    if len(figures) < 4:
        return f"below by more than {NEAR}; noise not known"
    return "within noise" if figures[1] <= figures[3] else "below noise"


def _full_title(task: str) -> str:
    """What documents call a task whose title says what differs from the task before."""
    before = list(TITLES)[: list(TITLES).index(task)]
    title = TITLES[task]
    if not title.startswith(SAME):
        return title
    first = next(TITLES[each] for each in reversed(before) if not TITLES[each].startswith(SAME))
    return first + title.removeprefix(SAME)


def _source(every: Sequence[Mapping[str, Any]], tasks: Iterable[str], methods: Iterable[str]) -> str:
    counts = [len(pairs) for task in tasks for method in methods if (pairs := _pairs(every, task, method))]
    fewest, most = (min(counts), max(counts)) if counts else (0, 0)
    seeds = count(most, "seed", words=True) if fewest == most else f"{fewest} to {most} seeds"
    return (
        f"Record: `results/parity.jsonl`; {seeds}. Bytes of all clients, both ways, the first model included; not "
        "included is Flower's envelope of one to two kB per message."
    )


def _ends(runs: Iterable[Mapping[str, Any]]) -> str:
    ends = [100 * _end(run) for run in runs]
    return _spread(ends) if ends else ""


def _gaps(pairs: Iterable[tuple[Any, Any]]) -> str:
    """By how many points runs end above their baselines."""
    gaps = [100 * (_end(run) - _end(other)) for run, other in pairs]
    return _spread(gaps, sign="+") if gaps else ""


def _total(run: Mapping[str, Any]) -> float:
    return float(run["bytes_up"] + run["bytes_down"])


def _spread(values: Sequence[float], sign: str = "") -> str:
    mean = f"{statistics.mean(values):{sign}z.1f}".replace("-", "−")
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def _end(run: Mapping[str, Any]) -> float:
    return float(statistics.mean(score for _, score in run["scores"][-3:]))


def _gap(run: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    """By how much the run is below the baseline at most, after the fifth round."""
    pairs = zip(run["scores"], base["scores"], strict=True)
    return max((float(theirs[1] - ours[1]) for ours, theirs in pairs if ours[0] > 5), default=0.0)


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--tasks", default=";".join(TASKS), help="separated by semicolons")
    parser.add_argument("--methods", default=";".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    parts.load()
    if given.table:
        heads, rows, source = full_table(records(given.records))
        print(in_markdown(heads, rows), source, sep="\n\n")
        return
    os.nice(10)
    for task, method, seed in missing(
        given.records, given.tasks.split(";"), given.methods.split(";"), range(given.seeds)
    ):
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
