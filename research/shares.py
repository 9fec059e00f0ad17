"""Division by data, in bytes or in the share of energy that a frame carries: what each is worth at equal total bytes.

`python -m research.shares --data FOLDER` runs what is missing and appends it to `results/shares.jsonl`; `--table`
prints the table. It can be stopped and started again at any time.

The paper's δ is the share of an update's energy that is sent. Here client i gets bytes in proportion to p_i^exponent,
as `dagc` does, or its frames carry δ_i = c · p_i^exponent of the energy, at most 98 %, in as few bytes as that takes.
After each round, c follows what was sent, so that a training takes the same bytes in total. Without momentum.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagc.policies.plan import level_bytes
from dagc.protocol import Member
from dagc.protocol.extras import Extra, Extras
from dagc.text import count
from dagc.training import Config, Federation
from research import parts
from research.measured import in_markdown
from research.parity import TASKS as PARITY
from research.parity import TITLES, records

__all__ = ["SHARES", "run"]

RESULTS = Path(__file__).parents[1] / "results" / "shares.jsonl"
TASKS = ("mlp", "logistic")
PARTS = (0.25, 1.0)
"""Of the default budget."""
RULES = {f"{what}, {name}": (what, value) for what in ("bytes", "energy") for name, value in (
    ("0", 0.0), ("1/3", 1 / 3), ("2/3", 2 / 3), ("1", 1.0)
)}  # fmt: skip
"""What is divided, and the exponent of a client's share of the data."""
MOST = 0.98
Key = tuple[str, str, float, int]
"""Task, rule, part of the default budget, seed."""


class ByEnergy(Extras):
    """Frames of client i carry c · p_i^exponent of the energy, for a c that spends the budget."""

    def __init__(self, plan: Any, size: int, weights: Mapping[str, float], target: float) -> None:
        super().__init__(plan, size)
        self.most, self.target, self.spent, self.rounds = size, target, 0.0, 0
        mean = statistics.mean(weights.values())
        self.weights, self.level = {name: weight / mean for name, weight in weights.items()}, 0.5

    def upload(self, member: Member, amount: Any) -> Extra:
        """As few bytes as carry the client's share."""
        return Extra(self.most, min(MOST, self.level * self.weights[member.name]))

    def note(self, sent: float) -> None:
        """Follow what the training has taken: spend what is left over the next rounds."""
        self.rounds, self.spent = self.rounds + 1, self.spent + sent
        wanted = max(0.2 * self.target, 2 * self.target * self.rounds + self.target - 2 * self.spent)
        self.level = min(50.0, max(1e-4, self.level * min(1.5, max(0.67, (wanted / max(1.0, sent)) ** 0.5))))


def run(key: Key, data: str | None, rounds: int | None = None) -> dict[str, Any]:
    """Train once: the score at every evaluation, and the bytes of all rounds."""
    task, rule, part, seed = key
    what, exponent = RULES[rule]
    fields = {**PARITY[task], "method": "dagc", "seed": seed, "data_dir": data, "threads": 1}
    if rounds is not None:
        fields |= {"rounds": rounds, "evaluate_every": 1}
    size = Federation(Config(**fields)).size
    budget = float(int(part * level_bytes(size)))
    federation = Federation(Config(**fields, bytes=budget, down=budget, exponent=exponent))
    sizes = federation.partition.sizes
    if what == "energy":
        weights = {name: float(n) ** exponent for name, n in zip(federation.names, sizes, strict=True)}
        server = federation.server
        server.extras = ByEnergy(server.plan, server.size, weights, budget * len(sizes))
    scores = []
    for number in range(1, federation.config.rounds + 1):
        done = federation.step()
        if what == "energy":
            federation.server.extras.note(done.up)  # type: ignore[attr-defined]
        if not number % int(fields["evaluate_every"]):
            scores.append([number, float(f"{federation.evaluate()[0]:.5f}")])
    record = {"task": task, "rule": rule, "part": part, "seed": seed, "scores": scores}
    return record | {"bytes_up": done.bytes_up, "bytes_down": done.bytes_down}


def key_of(record: Mapping[str, Any]) -> Key:
    """What was trained."""
    return record["task"], record["rule"], record["part"], record["seed"]


def missing(path: Path, seeds: range) -> Iterator[Key]:
    """What is to be run, the first seed of everything first."""
    for seed in seeds:
        for part in PARTS:
            for task in TASKS:
                for rule in RULES:
                    key = task, rule, part, seed
                    if key not in {key_of(record) for record in records(path)}:
                        yield key


def share_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], str]:
    """Where each rule ends, and the bytes that clients have sent, beside bytes by data^(2/3)."""
    done = {key_of(row)[:3] for row in rows}
    columns = [(task, part) for part in PARTS for task in TASKS if (task, USUAL, part) in done]
    heads = ["divided by data", *(f"{TITLES[task]}, {part:g} ×" for task, part in columns), "bytes up"]
    body = []
    for rule in (each for each in RULES if each in {name for _, name, _ in done}):
        cells, factors = [], []
        for task, part in columns:
            ours, usual = ({r["seed"]: r for r in rows if key_of(r)[:3] == (task, one, part)} for one in (rule, USUAL))
            shared = sorted(ours.keys() & usual.keys())
            factors += [ours[seed]["bytes_up"] / usual[seed]["bytes_up"] for seed in shared]
            ends = [_end(ours[seed]) for seed in shared]
            gaps = [_end(ours[seed]) - _end(usual[seed]) for seed in shared]
            gap = "" if rule == USUAL or not gaps else f" ({statistics.mean(gaps):+z.1f})".replace("-", "−")
            cells.append(f"{statistics.mean(ends):.1f}{gap}" if ends else "–")
        low, high = (f"{100 * each(factors, default=1.0):.0f}" for each in (min, max))
        body.append([rule, *cells, f"{low} %" if low == high else f"{low}–{high} %"])
    seeds = count(len({row["seed"] for row in rows}), "seed", words=True)
    source = f"Record: `results/shares.jsonl`; {seeds}, plain averaging. Mean of the last three evaluations; "
    return heads, body, source + "in brackets the difference to bytes by data^(2/3), seed by seed."


USUAL = "bytes, 2/3"
SHARES: dict[str, Callable[[Sequence[Mapping[str, Any]]], tuple[list[str], list[list[str]], str]]] = {
    "rules": share_table
}
"""What documents may show: `<!-- begin: table shares NAME -->`."""


def _end(record: Mapping[str, Any]) -> float:
    return float(100 * statistics.mean(score for _, score in record["scores"][-3:]))


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, help="fewer, to try it; then nothing is recorded")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    parts.load()
    if options.table:
        heads, rows, source = share_table(records(options.records))
        print(in_markdown(heads, rows), source, sep="\n\n")
        return
    os.nice(10)
    for key in missing(options.records, range(options.seeds)):
        record = run(key, options.data, options.rounds)
        if options.rounds is None:
            options.records.parent.mkdir(exist_ok=True)
            with options.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
        print(*key, f"{record['scores'][-1][1]:.4f}, {record['bytes_up']:,} bytes up", flush=True)


if __name__ == "__main__":
    main()
