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
        ours = [name for name in runs.curves if name.startswith(OURS) and not name.startswith("dagc-")]
        others = [name for name in runs.curves if name not in (*ours, "thrifty", best)]
        end_of_best = f"{best}: {_points(list(runs.ends(best).values()))}"
        took = runs.cost(best, best)
        base = _points(list(runs.ends(BASELINE).values()))
        rows.append(
            [TITLES[task], base, end_of_best, _bytes(took), *(_fewest(runs, some, best) for some in (ours, others))]
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
            ends, base = runs.ends(method), runs.ends(BASELINE)
            gaps = [ends[seed] - base[seed] for seed in ends if seed in base]
            cells += [_points(list(ends.values())), "" if method == BASELINE else _points(gaps, "+")]
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


TABLES: dict[str, Callable[[Rows], Table]] = {
    "brief": brief_table,
    "best": lambda every: cost_table(every, best_uncompressed),
    "fedavg": lambda every: cost_table(every, lambda runs: BASELINE),
    "rounds": quality_table,
    "bytes": budget_table,
    "rates": rates_table,
}
"""What documents may show: `<!-- begin: table headline NAME -->`."""


def _cost(runs: Runs, method: str, target: str) -> str:
    """Bytes and rounds to the accuracy that another method ends at, or by how much this one ends below."""
    took = runs.cost(method, target)
    there = [each for each in took if each is not None]
    if not took:
        return ""
    if 2 * len(there) <= len(took):
        ends, targets = runs.ends(method), runs.ends(target)
        return f"ends at {_points([ends[seed] - targets[seed] for seed in ends if seed in targets], '+', spread=False)}"
    rounds = round(statistics.mean(each.round for each in there))
    some = "" if len(there) == len(took) else f", {len(there)} of {len(took)} seeds"
    return f"{_bytes(took)} in {rounds:,}{some}"


def _fewest(runs: Runs, methods: Sequence[str], target: str) -> str:
    """The method of these with the fewest bytes to a target, if most seeds reach it."""
    costs = {method: runs.cost(method, target) for method in methods}
    there = {name: [each.bytes for each in some if each] for name, some in costs.items()}
    fit = {name: statistics.mean(some) for name, some in there.items() if 2 * len(some) > len(costs[name])}
    if not fit:
        nearest = max(methods, key=lambda name: statistics.mean(runs.ends(name).values()), default=None)
        return "" if nearest is None else f"none; nearest is {nearest}, {_cost(runs, nearest, target)}"
    name = min(fit, key=lambda each: fit[each])
    return f"{name}: {_cost(runs, name, target)}"


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
