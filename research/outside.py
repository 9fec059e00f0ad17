"""Programs from elsewhere, without dagc and with it: tables of `docs/studies/results.md` from their records.

`results/outside.jsonl` has a line for each training. No command adds to it: the programs are not in this repository.
`benchmarks.nanogpt` prints lines that can be added.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dagc.text import count, in_bytes

__all__ = ["TABLES"]

Records = Sequence[Mapping[str, Any]]
Table = tuple[list[str], list[list[str]], str]
"""The heads of the columns, the rows, and where they come from."""
PLAIN, OURS = "none", "dagc"
GPT = "nanoGPT"
SOURCE = "Record: `results/outside.jsonl`; {seeds}, mean and standard deviation{more}."


def apps_table(every: Records) -> Table:
    """For each Flower app: the accuracy of its last model without and with dagc, and the bytes of all messages."""
    heads = ["app", "rounds", "accuracy without", "with dagc", "difference, points", "bytes without", "with dagc"]
    rows, counts = [], []
    for program in dict.fromkeys(each["program"] for each in every if not each["program"].startswith(GPT)):
        runs = [{each["seed"]: each for each in _runs(every, program, variant)} for variant in (PLAIN, OURS)]
        seeds = sorted(runs[0].keys() & runs[1].keys())
        if not seeds:
            continue
        plain, ours = ([run[seed] for seed in seeds] for run in runs)
        ends = [[100 * run["scores"][-1][1] for run in some] for some in (plain, ours)]
        gaps = [after - before for before, after in zip(*ends, strict=True)]
        totals = [statistics.mean(run["bytes"] for run in some) for some in (plain, ours)]
        rounds = str(plain[0]["scores"][-1][0])
        accuracies = [f"{_spread(end, 1)} %" for end in ends]
        factor = f"{in_bytes(totals[1])}, {totals[0] / totals[1]:.0f} times fewer"
        rows.append([program, rounds, *accuracies, _spread(gaps, 1, "+"), in_bytes(totals[0]), factor])
        counts.append(len(seeds))
    return heads, rows, _source(counts, ". Bytes of all messages, both ways, as Flower encodes them")


def gpt_table(every: Records) -> Table:
    """For each way to exchange: the loss on held-out text, the difference from DDP's, and what a rank sends."""
    heads = ["steps", "exchange", "loss", "difference", "a rank sends", "times fewer"]
    rows, counts = [], []
    kinds = dict.fromkeys((each["program"], each["steps"]) for each in every if each["program"].startswith(GPT))
    for program, steps in kinds:
        some = [each for each in _runs(every, program) if each["steps"] == steps]
        first = f"{steps:,}{program.removeprefix(GPT)}"
        dense = {each["seed"]: each for each in some if each["variant"] == PLAIN}
        for variant in dict.fromkeys(each["variant"] for each in some):
            runs = [each for each in some if each["variant"] == variant and each["seed"] in dense]
            gaps = [run["loss"] - dense[run["seed"]]["loss"] for run in runs]
            sent = statistics.mean(run["bytes"] for run in runs)
            fewer = statistics.mean(dense[run["seed"]]["bytes"] for run in runs) / sent
            same = variant == PLAIN
            compared = ["", in_bytes(sent), ""] if same else [_spread(gaps, 3, "+"), in_bytes(sent), f"{fewer:,.0f}"]
            rows.append([first, "plain DDP" if same else variant, _spread([run["loss"] for run in runs], 3), *compared])
            first = ""
            counts.append(len(runs))
    return heads, rows, _source(counts, "")


TABLES: dict[str, Callable[[Records], Table]] = {"apps": apps_table, "gpt": gpt_table}
"""What documents may show: `<!-- begin: table outside NAME -->`."""


def _runs(every: Records, program: str, variant: str | None = None) -> Records:
    return [each for each in every if each["program"] == program and variant in (None, each["variant"])]


def _source(counts: Sequence[int], more: str) -> str:
    fewest, most = min(counts, default=0), max(counts, default=0)
    seeds = count(most, "seed", words=True) if fewest == most else f"{fewest} to {most} seeds"
    return SOURCE.format(seeds=seeds, more=more)


def _spread(values: Sequence[float], digits: int, sign: str = "") -> str:
    mean = f"{statistics.mean(values):{sign}z.{digits}f}".replace("-", "−")
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"
