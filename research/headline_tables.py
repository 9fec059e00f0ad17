"""What the headline's records say: Cost-to-Target and Quality-under-Budget (EdgeFlowerTune's terms), as tables."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dagc.text import count, in_bytes
from research.parity import TITLES

__all__ = ["TABLES", "Reached", "best_uncompressed", "end", "reached", "within"]

Rows = Sequence[Mapping[str, Any]]
Curve = Sequence[Sequence[float]]
Table = tuple[list[str], list[list[str]], str]
"""The heads of the columns, the rows, and where they come from."""
WINDOW = 3
"""How many evaluations an accuracy is the mean of."""
BASELINE, OURS = "FedAvg", "dagc"
MOMENTUM = "dagc + Nesterov"
LEVEL = 0.005
"""By how much an accuracy may be lower and still count as the same: half a point."""
UNCOMPRESSED = ("FedAvg", "server Nesterov", "FedAdam", "local AdamW")
SHORT = {"digits": "digits", "hospitals": "hospitals", "mlp": "MLP", "cnn": "CNN", "lstm": "LSTM"}
"""What heads of columns call the tasks."""


class Reached(NamedTuple):
    """What a training took until it was as accurate as another one at its end."""

    round: int
    bytes: int


def end(curve: Curve) -> float:
    """The accuracy at the end: the mean of the last evaluations.

    Example:
        >>> end([[1, 0.1, 10], [2, 0.2, 20], [3, 0.3, 30], [4, 0.4, 40]])
        0.3
    """
    return round(statistics.mean(row[1] for row in curve[-WINDOW:]), 6)


def reached(curve: Curve, target: float) -> Reached | None:
    """When the mean of three evaluations is first as high as a target; None if it never is.

    Example:
        >>> curve = [[1, 0.1, 10], [2, 0.2, 20], [3, 0.3, 30], [4, 0.4, 40]]
        >>> reached(curve, 0.2), reached(curve, 0.31)
        (Reached(round=3, bytes=30), None)
    """
    ends = (curve[: i + 1] for i in range(WINDOW - 1, len(curve)))
    return next((Reached(int(some[-1][0]), int(some[-1][2])) for some in ends if end(some) >= target), None)


def within(curve: Curve, budget: float) -> float | None:
    """The accuracy at the last evaluation within a number of total bytes; None if there is none.

    Example:
        >>> curve = [[1, 0.1, 10], [2, 0.2, 20], [3, 0.3, 30]]
        >>> within(curve, 25), within(curve, 5)
        (0.15, None)
    """
    some = [row for row in curve if row[2] <= budget]
    return end(some) if some else None


class Runs:
    """The test runs of a task: for each method, the curves by seed. Methods in the order of their first records."""

    def __init__(self, every: Rows, task: str) -> None:
        self.every, self.task = every, task
        self.curves: dict[str, dict[int, Curve]] = {}
        for row in every:
            if row["task"] == task and "curve" in row:
                self.curves.setdefault(row["method"], {})[row["seed"]] = row["curve"]

    def ends(self, method: str) -> dict[int, float]:
        """Accuracies at the end, by seed."""
        return {seed: end(curve) for seed, curve in sorted(self.curves.get(method, {}).items())}

    def validated(self, method: str) -> float:
        """The best accuracy that the search for rates found."""
        some = (row for row in self.every if (row["task"], row["method"]) == (self.task, method) and "point" in row)
        return max((float(row["score"]) for row in some), default=0.0)

    def cost(self, method: str, target_of: str) -> list[Reached | None]:
        """What it took to the other's accuracy at its end, for each seed that both have."""
        targets, curves = self.ends(target_of), self.curves.get(method, {})
        return [reached(curves[seed], target) for seed, target in targets.items() if seed in curves]


def tasks_of(every: Rows) -> dict[str, Runs]:
    """The runs of every task in which the baseline was tested."""
    found = {task: Runs(every, task) for task in SHORT}
    return {task: runs for task, runs in found.items() if BASELINE in runs.curves}


def best_uncompressed(runs: Runs) -> str:
    """The uncompressed method that the validation split says is best."""
    return max((name for name in UNCOMPRESSED if name in runs.curves), key=runs.validated)


def brief_table(every: Rows) -> Table:
    """For each task: where the best uncompressed method ends, and who gets there with the fewest bytes."""
    heads = ["task", "FedAvg, %", "best uncompressed, %", "its bytes", "`dagc` and its like", "best of the others"]
    rows = []
    for task, runs in tasks_of(every).items():
        best = best_uncompressed(runs)
        end_of_best = f"{best}: {_points(list(runs.ends(best).values()))}"
        took = runs.cost(best, best)
        base = _points(list(runs.ends(BASELINE).values()))
        rows.append(
            [
                TITLES[task],
                base,
                end_of_best,
                _bytes(took),
                *(_fewest(runs, some, best) for some in (_ours(runs), _others(runs))),
            ]
        )
    return heads, rows, _source(every)


def cost_table(every: Rows, target: Callable[[Runs], str]) -> Table:
    """For each method and task: total bytes and rounds to an accuracy, or by how much it ends below."""
    tasks = tasks_of(every)
    methods = dict.fromkeys(method for runs in tasks.values() for method in runs.curves)
    heads = [
        "method",
        *(f"{SHORT[task]}: {target(runs)}, {_points(_mean(runs, target(runs)))} %" for task, runs in tasks.items()),
    ]
    rows = [[method, *(_cost(runs, method, target(runs)) for runs in tasks.values())] for method in methods]
    return heads, rows, _source(every)


def quality_table(every: Rows) -> Table:
    """For each method and task: accuracy at equal rounds, and the difference to FedAvg."""
    tasks = tasks_of(every)
    methods = dict.fromkeys(method for runs in tasks.values() for method in runs.curves)
    heads = ["method", *(head for task in tasks for head in (f"{SHORT[task]}, %", "− FedAvg"))]
    rows = []
    for method in methods:
        cells = []
        for runs in tasks.values():
            gaps = [] if method == BASELINE else _differences(runs, method, BASELINE)
            cells += [_points(list(runs.ends(method).values())), _points(gaps, "+")]
        rows.append([method, *cells])
    return heads, rows, _source(every)


def budget_table(every: Rows) -> Table:
    """For each method and task: accuracy when as many bytes are used up as `dagc` takes in all its rounds."""
    tasks = {task: runs for task, runs in tasks_of(every).items() if OURS in runs.curves}
    methods = dict.fromkeys(method for runs in tasks.values() for method in runs.curves)
    budgets = {task: {seed: curve[-1][2] for seed, curve in runs.curves[OURS].items()} for task, runs in tasks.items()}
    heads = ["method", *(f"{SHORT[task]}, {in_bytes(statistics.mean(budgets[task].values()))}" for task in tasks)]
    rows = []
    for method in methods:
        cells = []
        for task, runs in tasks.items():
            curves = runs.curves.get(method, {})
            some = [within(curve, budgets[task][seed]) for seed, curve in curves.items() if seed in budgets[task]]
            known = [each for each in some if each is not None]
            cells.append(_points(known) if len(known) == len(some) else "no evaluation")
        rows.append([method, *cells])
    return heads, rows, _source(every)


def rates_table(every: Rows) -> Table:
    """For each method and task: the rates found, the clients' and the server's, and after how many trainings."""
    tasks = tasks_of(every)
    methods = dict.fromkeys(method for runs in tasks.values() for method in runs.curves)
    rows = [[method, *(_rates(every, task, method) for task in tasks)] for method in methods]
    return ["method", *(SHORT[task] for task in tasks)], rows, "Record: `results/headline.jsonl`; seed 1000."


def verdict_table(every: Rows) -> Table:
    """For each claim and task: whether it holds, and the figures that say so."""
    tasks = tasks_of(every)
    claims: dict[str, Callable[[Runs], str]] = {
        "`dagc` ends where FedAvg ends": lambda runs: _level(runs, OURS, BASELINE),
        "`dagc` + Nesterov ends where server Nesterov ends": lambda runs: _level(runs, MOMENTUM, "server Nesterov"),
        "`dagc` + FedAdam ends where FedAdam ends": lambda runs: _level(runs, "dagc + FedAdam", "FedAdam"),
        "a `dagc` ends where the best uncompressed method ends": _level_with_best,
        "nobody else gets there with fewer bytes": _cheapest,
        "nobody else is more accurate at the bytes of `dagc`": _most_accurate,
    }
    rows = [[claim, *(judge(runs) for runs in tasks.values())] for claim, judge in claims.items()]
    how = f"*Where another ends* is at most {100 * LEVEL:g} points below it, in the mean over seeds"
    return ["claim", *(SHORT[task] for task in tasks)], rows, f"{_source(every)} {how}."


TABLES: dict[str, Callable[[Rows], Table]] = {
    "brief": brief_table,
    "verdicts": verdict_table,
    "best": lambda every: cost_table(every, best_uncompressed),
    "fedavg": lambda every: cost_table(every, lambda runs: BASELINE),
    "rounds": quality_table,
    "bytes": budget_table,
    "rates": rates_table,
}
"""What documents may show: `<!-- begin: table headline NAME -->`."""


def _level(runs: Runs, method: str, other: str) -> str:
    """Whether a method ends as high as another one, seed by seed."""
    gaps = _differences(runs, method, other)
    if not gaps:
        return ""
    return f"{'holds' if statistics.mean(gaps) >= -LEVEL else '**no**'}: {_points(gaps, '+')}"


def _level_with_best(runs: Runs) -> str:
    """Whether the `dagc` that validation says is best ends as high as the best uncompressed method."""
    ours = _ours(runs)
    if not ours:
        return ""
    method = max(ours, key=runs.validated)
    return f"{_level(runs, method, best_uncompressed(runs))}, {method}"


def _cheapest(runs: Runs) -> str:
    """Whether one of ours has the fewest bytes to the accuracy that the best uncompressed method ends at."""
    best = best_uncompressed(runs)
    (own, mine), (other, rival) = (_least(runs, some, best) for some in (_ours(runs), _others(runs)))
    if not mine:
        return "**no**: none of ours gets there" if _ours(runs) else ""
    if not rival:
        return f"holds: {mine} {in_bytes(own)}, nobody else gets there"
    return f"{'holds' if own < other else '**no**'}: {mine} {in_bytes(own)}, {rival} {in_bytes(other)}"


def _most_accurate(runs: Runs) -> str:
    """Whether one of ours is the most accurate when as many bytes are used up as `dagc` takes."""
    if OURS not in runs.curves:
        return ""
    found = {}
    for method, curves in runs.curves.items():
        budgets = {seed: curve[-1][2] for seed, curve in runs.curves[OURS].items() if seed in curves}
        scores = [within(curves[seed], budget) for seed, budget in budgets.items()]
        known = [score for score in scores if score is not None]
        if known and len(known) == len(scores):
            found[method] = statistics.mean(known)
    sides = [{name: found[name] for name in some if name in found} for some in (_ours(runs), _others(runs))]
    if not all(sides):
        return "" if not sides[0] else "holds: nobody else has an evaluation within them"
    ours, theirs = (max(side, key=found.__getitem__) for side in sides)
    verdict = "holds" if found[ours] >= found[theirs] else "**no**"
    return f"{verdict}: {ours} {_points([found[ours]])}, {theirs} {_points([found[theirs]])}"


def _ours(runs: Runs) -> list[str]:
    return [name for name in runs.curves if name == OURS or name.startswith(f"{OURS} +")]


def _others(runs: Runs) -> list[str]:
    """Everybody else's methods, without the one that sets the target."""
    return [name for name in runs.curves if name not in (*_ours(runs), "thrifty", best_uncompressed(runs))]


def _differences(runs: Runs, method: str, other: str) -> list[float]:
    ends, base = runs.ends(method), runs.ends(other)
    return [ends[seed] - base[seed] for seed in ends if seed in base]


def _least(runs: Runs, methods: Sequence[str], target: str) -> tuple[float, str]:
    """The fewest bytes to a target among methods that most seeds of get there, and whose they are."""
    costs = {method: runs.cost(method, target) for method in methods}
    there = {name: [each.bytes for each in some if each] for name, some in costs.items()}
    fit = [(statistics.mean(some), name) for name, some in there.items() if 2 * len(some) > len(costs[name])]
    return min(fit, default=(0.0, ""))


def _cost(runs: Runs, method: str, target: str) -> str:
    """Bytes and rounds to the accuracy that another method ends at, or by how much this one ends below."""
    took = runs.cost(method, target)
    there = [each for each in took if each is not None]
    if not took:
        return ""
    if 2 * len(there) <= len(took):
        return f"ends at {_points(_differences(runs, method, target), '+', spread=False)}"
    rounds = round(statistics.mean(each.round for each in there))
    some = "" if len(there) == len(took) else f", {len(there)} of {len(took)} seeds"
    return f"{_bytes(took)} in {rounds:,}{some}"


def _fewest(runs: Runs, methods: Sequence[str], target: str) -> str:
    """The method of these with the fewest bytes to a target, if most seeds reach it; else the one that is nearest."""
    _, name = _least(runs, methods, target)
    if name:
        return f"{name}: {_cost(runs, name, target)}"
    nearest = max(methods, key=lambda each: statistics.mean(runs.ends(each).values()), default=None)
    return "" if nearest is None else f"none; {nearest} {_cost(runs, nearest, target)}"


def _bytes(took: Sequence[Reached | None]) -> str:
    return in_bytes(statistics.mean(each.bytes for each in took if each is not None))


def _mean(runs: Runs, method: str) -> list[float]:
    return [statistics.mean(runs.ends(method).values())]


def _points(values: Sequence[float], sign: str = "", spread: bool = True) -> str:
    """Shares in %, or their differences in points."""
    if not values:
        return ""
    mean = f"{100 * statistics.mean(values):{sign}z.1f}".replace("-", "−")
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if spread and len(values) > 1 else mean


def _rates(every: Rows, task: str, method: str) -> str:
    some = [row for row in every if (row["task"], row["method"]) == (task, method)]
    rates = next((row["rates"] for row in some if "rates" in row), None)
    trainings = sum("point" in row for row in some)
    return "" if rates is None else f"{rates['client']:.3g}, {rates['server']:.3g}; {trainings}"


def _source(every: Rows) -> str:
    counts = sorted({len(curves) for runs in tasks_of(every).values() for curves in runs.curves.values()} or {0})
    seeds = count(counts[-1], "seed", words=True) if len(set(counts)) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    return f"Record: `results/headline.jsonl`; {seeds}. Bytes of all clients, both ways, the first model included."
