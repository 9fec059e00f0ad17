"""Forms of an update at equal bytes and equal rounds: where does training end if nothing else differs?

`python -m research.equal_bytes --data FOLDER` runs what is missing, a training at a time, and appends it to
`results/equal-bytes.jsonl`; `--table` prints the table. It can be stopped and started again at any time.

Each form has 16 and 64 times ½√d bytes per client and round, up and down, shared by p^(2/3) on the way up. All have
error feedback both ways, no waiting, no step-ahead, and a first model of four bits. The server has Nesterov momentum
of 0.9 and a rate of 0.5, as in the study that this library began with; `--momentum 0` is plain averaging.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dagc.data import load
from dagc.feedback import ErrorFeedback
from dagc.models import build, parameter_count
from dagc.protocol import broadcasts, uplink
from dagc.text import count
from dagc.training import Config, iterate
from dagc.updates import encode_update
from research import parts
from research.measured import in_markdown
from research.parity import TASKS as PARITY
from research.parity import TITLES, records

__all__ = ["EQUAL", "FORMS", "TASKS", "configured", "end_table", "levels_alone"]

RESULTS = Path(__file__).parents[1] / "results" / "equal-bytes.jsonl"
ENTRIES: dict[str, Any] = {"method": "power", "frames": "compact", "overhead": 0.0, "step_ahead": 0.0, "first_bits": 4}
FORMS: dict[str, dict[str, Any]] = {
    "signs": {**ENTRIES, "values": "sign"},
    "int8": {**ENTRIES, "values": "int8"},
    "levels": {"method": "dagc"},
    "chosen": {"method": "dagc"},
}
"""The largest entries with one magnitude or int8 values, entries with levels, and what `dagc` sends."""
STEPS: dict[str, dict[str, Any]] = {
    "Top-k, int32 and fp32": {**ENTRIES, "method": "top-k", "values": "int32+fp32"},
    "compact frames with int8 values": {**ENTRIES, "method": "top-k", "values": "int8"},
    "int8": FORMS["int8"],
    "levels": FORMS["levels"],
    "chosen": FORMS["chosen"],
}
STEP_TITLES = (
    "Top-k both ways, int32 and fp32",
    "+ compact frames, int8 values",
    "+ bytes divided by data",
    "+ levels, entropy coded",
    "+ low-rank terms",
    "+ server momentum",
)
"""From Top-k as others send it to what `dagc` sends, a step at a time, and then momentum, which the server adds."""
EXPONENTS: dict[str, dict[str, Any]] = {
    f"exponent {name}": {"method": "dagc", "exponent": value}
    for name, value in (("0", 0.0), ("1/3", 1 / 3), ("1", 1.0))
}
"""Other divisions of the bytes among clients: in proportion to p^exponent. `chosen` has 2/3."""
RESETS: dict[str, dict[str, Any]] = {f"{name}, reset": FORMS[name] for name in ("signs", "levels")}
"""Forms whose entries leave no residual where they were sent."""
EVERY = {**FORMS, **STEPS, **EXPONENTS, **RESETS}
LEVELS = "levels"
TASKS: dict[str, dict[str, Any]] = {name: PARITY[name] for name in ("mlp", "cnn", "lstm")}
BUDGETS = (16, 64)
"""In multiples of ½√d bytes."""
MOMENTUM = 0.9
Key = tuple[str, str, float, float, int]
"""Task, form, budget, momentum, seed."""
Rows = Sequence[Mapping[str, Any]]


@contextmanager
def levels_alone() -> Iterator[None]:
    """Let both sides encode entries with levels, without terms."""
    alone = partial(encode_update, most_terms=0)
    with ExitStack() as patches:
        for module in (uplink, broadcasts):
            patches.enter_context(patch.object(module, "encode_update", alone))
        yield


@contextmanager
def reset() -> Iterator[None]:
    """Let both sides forget what is left of an entry that they sent, instead of keeping it."""
    step, encode, broadcast = ErrorFeedback.step, ErrorFeedback.encode, broadcasts.Broadcaster.broadcast

    def stepped(self: ErrorFeedback, *arguments: Any) -> Any:
        sparse = step(self, *arguments)
        self.residual[sparse.indices] = 0
        return sparse

    def encoded(self: ErrorFeedback, *arguments: Any, **named: Any) -> Any:
        frame, update = encode(self, *arguments, **named)
        self.residual[update.sparse.indices] = 0
        return frame, update

    def sent(self: broadcasts.Broadcaster, model: Any, *arguments: Any) -> Any:
        update = broadcast(self, model, *arguments)
        if update is not None:
            places = update.sparse.indices
            self.target[places] = model[places] + update.sparse.values
        return update

    with ExitStack() as patches:
        for owner, name, new in (
            (ErrorFeedback, "step", stepped),
            (ErrorFeedback, "encode", encoded),
            (broadcasts.Broadcaster, "broadcast", sent),
        ):
            patches.enter_context(patch.object(owner, name, new))
        yield


def configured(key: Key, data: str | None, rounds: int | None = None) -> Config:
    """The configuration of a training; the budget depends on the size of its model."""
    task, form, budget, momentum, seed = key
    fields = {**TASKS[task], **EVERY[form], "seed": seed, "data_dir": data, "threads": 1}
    if rounds is not None:
        fields |= {"rounds": rounds, "evaluate_every": 1}
    if momentum:
        fields |= {"optimizer_options": {"momentum": momentum, "nesterov": True}, "server_rate": 0.5}
    config = Config(**fields)
    size = parameter_count(build(config.model, load(config.data, data)))
    most = float(int(budget * 0.5 * math.sqrt(size)))
    return Config(**{**fields, "bytes": most, "down": most})


def run(key: Key, data: str | None, rounds: int | None = None) -> dict[str, Any]:
    """Train once: the score at every evaluation, and total bytes at the end, the first model included."""
    config, scores = configured(key, data, rounds), []
    with ExitStack() as changes:
        if key[1].startswith(LEVELS):
            changes.enter_context(levels_alone())
        if key[1] in RESETS:
            changes.enter_context(reset())
        for round in iterate(config):
            if round.score is not None:
                scores.append([round.round, float(f"{round.score:.5f}")])
    task, form, budget, momentum, seed = key
    record = {"task": task, "form": form, "budget": budget, "momentum": momentum, "seed": seed, "scores": scores}
    return record | {"bytes_up": round.bytes_up, "bytes_down": round.bytes_down}


def key_of(record: Mapping[str, Any]) -> Key:
    """What was trained."""
    return record["task"], record["form"], record["budget"], record["momentum"], record["seed"]


def missing(path: Path, keys: Sequence[Key]) -> Iterator[Key]:
    """What is to be run; others may add to the record meanwhile."""
    for key in keys:
        if key not in {key_of(record) for record in records(path)}:
            yield key


def end_table(rows: Rows) -> tuple[list[str], list[list[str]], str]:
    """For each task and budget: where each form ends, and by how much `chosen` is above the others."""
    heads = ["task", "bytes", "server", *FORMS, "chosen − signs", "chosen − int8", "seeds"]
    body = []
    for task in TASKS:
        for budget, momentum in sorted({(row["budget"], row["momentum"]) for row in rows if row["task"] == task}):
            ends = {form: _ends(rows, task, form, budget, momentum) for form in FORMS}
            server = f"momentum {momentum:g}" if momentum else "average"
            gaps = [_gap(ends["chosen"], ends[form]) for form in ("signs", "int8")]
            counts = sorted({len(each) for each in ends.values() if each})
            seeds = "–".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
            cells = [_mean(list(each.values())) for each in ends.values()]
            body.append([TITLES[task], f"{budget:g} ×", server, *cells, *gaps, seeds])
    source = "Record: `results/equal-bytes.jsonl`. Accuracy in %, the mean of the last three evaluations"
    return heads, body, f"{source}; bytes in multiples of ½√d per client and round, each way."


def step_table(rows: Rows) -> tuple[list[str], list[list[str]], str]:
    """What each step from Top-k to `dagc` is worth at the end, at 40 times ½√d bytes, with plain averaging at first."""
    steps = [*((form, 0.0) for form in STEPS), ("chosen", MOMENTUM)]
    return _by_task(rows, dict(zip(steps, STEP_TITLES, strict=True)), 40.0)


def exponent_table(rows: Rows) -> tuple[list[str], list[list[str]], str]:
    """Where training ends with other divisions of the same bytes among clients, at 16 times ½√d bytes."""
    titles = {"exponent 0": "0", "exponent 1/3": "1/3", "chosen": "2/3", "exponent 1": "1"}
    return _by_task(rows, {(form, MOMENTUM): title for form, title in titles.items()}, 16.0)


def _by_task(
    rows: Rows, titles: Mapping[tuple[str, float], str], budget: float
) -> tuple[list[str], list[list[str]], str]:
    """A row for each form and momentum: the end of each task, and the difference to the row before."""
    body, before = [], dict[str, dict[int, float]]()
    momentum = next(iter(titles))[1]
    needed = [form for form, each in titles if each == momentum]
    tasks = [task for task in TASKS if all(_ends(rows, task, form, budget, momentum) for form in needed)]
    for (form, also), title in titles.items():
        ends = {task: _ends(rows, task, form, budget, also) for task in tasks}
        if not any(ends.values()):
            continue
        cells = [[_mean(list(ends[task].values())), _gap(ends[task], before.get(task, {}))] for task in tasks]
        body.append([title, *(cell for pair in cells for cell in pair)])
        before = ends
    seeds = sorted({row["seed"] for row in rows if (row["budget"], row["momentum"]) == (budget, momentum)})
    heads = ["", *(head for task in tasks for head in (f"{TITLES[task]}, %", "to the row above"))]
    server = f"momentum {momentum:g}" if momentum else "plain averaging"
    record = f"Record: `results/equal-bytes.jsonl`; {count(len(seeds), 'seed', words=True)}, {server}"
    how = f"Mean of the last three evaluations; {budget:g} × ½√d bytes per client and round, each way."
    return heads, body, f"{record}. {how}"


def reset_table(rows: Rows) -> tuple[list[str], list[list[str]], str]:
    """Where training ends if entries leave no residual where they were sent."""
    heads, body = ["task", "bytes", "signs", "signs, reset", "levels", "levels, reset"], []
    for task in TASKS:
        for budget in sorted({row["budget"] for row in rows if row["task"] == task and row["form"] in RESETS}):
            ends = [_ends(rows, task, form, budget, MOMENTUM) for form in heads[2:]]
            shared = set.intersection(*(set(each) for each in ends))
            cells = [_mean([each[seed] for seed in sorted(shared)]) for each in ends]
            body.append([TITLES[task], f"{budget:g} ×", *cells])
    source = "Record: `results/equal-bytes.jsonl`; momentum 0.9, seed 0. Accuracy in %, the mean of the last three"
    return heads, body, f"{source} evaluations; bytes in multiples of ½√d per client and round, each way."


EQUAL: dict[str, Callable[[Rows], tuple[list[str], list[list[str]], str]]] = {
    "end": end_table,
    "steps": step_table,
    "exponents": exponent_table,
    "resets": reset_table,
}
"""What documents may show: `<!-- begin: table equal NAME -->`."""


def _ends(rows: Rows, task: str, form: str, budget: float, momentum: float) -> dict[int, float]:
    """The accuracy at the end in %, by seed."""
    return {
        row["seed"]: 100 * statistics.mean(score for _, score in row["scores"][-3:])
        for row in rows
        if key_of(row)[:4] == (task, form, budget, momentum)
    }


def _gap(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """The mean difference on shared seeds."""
    shared = ours.keys() & theirs.keys()
    return _mean([ours[seed] - theirs[seed] for seed in sorted(shared)], sign="+") if shared else "–"


def _mean(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}z.1f}".replace("-", "−") + spread


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=";".join(FORMS), help=f"forms, of {'; '.join(EVERY)}")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="multiples of ½√d bytes")
    parser.add_argument("--momentum", type=float, default=MOMENTUM, help="the server's; 0 for plain averaging")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, help="fewer, to try it; then nothing is recorded")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    parts.load()
    if options.table:
        heads, rows, source = end_table(records(options.records))
        print(in_markdown(heads, rows), source, sep="\n\n")
        return
    os.nice(10)
    keys = [
        (task, form, float(budget), options.momentum, int(seed))
        for seed in options.seeds.split(",")
        for task in options.tasks.split(",")
        for budget in options.budgets.split(",")
        for form in options.methods.split(";")
    ]
    for key in missing(options.records, keys) if options.rounds is None else keys:
        record = run(key, options.data, options.rounds)
        if options.rounds is None:
            options.records.parent.mkdir(exist_ok=True)
            with options.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
        total = record["bytes_up"] + record["bytes_down"]
        print(*key, f"{record['scores'][-1][1]:.4f}, {total:,} bytes", flush=True)


if __name__ == "__main__":
    main()
