"""Methods side by side: the same data, seeds, model and budget for all, and what each made of it."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dagc.errors import InvalidInput
from dagc.policies import POLICIES
from dagc.training import Config, read_metrics, summary

__all__ = ["compared", "comparison_configs"]


def comparison_configs(
    base: dict[str, Any], methods: Sequence[str], seeds: Sequence[int], budgets: dict[str, Any]
) -> list[Config]:
    """A configuration for every method and seed, each with the budget that it takes.

    Args:
        base: All other fields of `Config`.
        methods: Names of methods.
        seeds: The seeds, the same for all methods.
        budgets: `ratio`, `budget_bytes`, `budget_rate`, `threshold`; a method gets the first of them that it takes and
            is given. A rate per hour goes with `budget_bytes`.
    """
    fields = {"ratio": "ratio", "bytes": "budget_bytes", "threshold": "threshold"}
    rate = budgets.get("budget_rate")
    if rate is not None and budgets.get("budget_bytes") is None:
        fields["bytes"] = "budget_rate"
    configs = []
    for method in methods:
        if method not in POLICIES:
            raise InvalidInput(f"no method is called {method!r}: choose one of {', '.join(POLICIES)}")
        takes = [fields[name] for name in POLICIES[method].budgets]
        usable = [name for name in takes if budgets.get(name) is not None]
        if takes and not usable:
            options = " or ".join(f"--{name.replace('_', '-')}" for name in takes)
            raise InvalidInput(f"method {method!r} needs a budget: give {options}")
        own = {usable[0]: budgets[usable[0]]} if usable else {}
        if rate is not None and "budget_bytes" in own:
            own["budget_rate"] = rate
        configs += [Config(**{**base, **own, "method": method, "seed": seed}) for seed in seeds]
    return configs


def compared(configs: Sequence[Config], paths: Sequence[Path], target: float | None = None) -> dict[str, Any]:
    """What came of finished runs, by method, in the order given.

    Args:
        configs: What was run.
        paths: The folders of the runs.
        target: The accuracy to be reached; if not given, the highest whole percent that every method ended at.
    """
    methods = list(dict.fromkeys(config.method for config in configs))
    curves = {
        method: [read_metrics(p) for c, p in zip(configs, paths, strict=True) if c.method == method]
        for method in methods
    }
    ends = {method: [summary(rows) for rows in curves[method]] for method in methods}
    if target is None:
        lowest = min(mean(end["final_accuracy"] for end in ends[method]) for method in methods)
        target = math.floor(100 * lowest) / 100
    told = []
    for method in methods:
        row: dict[str, Any] = {"method": method, "seeds": len(ends[method])}
        for name in ("final_accuracy", "best_accuracy", "bytes_up", "bytes_down", "seconds"):
            row[name], row[f"{name}_sd"] = _spread([end[name] for end in ends[method]])
        row["to_target"] = _to_target(curves[method], target)
        told.append(row)
    return {"task": configs[0].task, "rounds": configs[0].rounds, "target": target, "methods": told}


def _to_target(curves: list[list[dict[str, Any]]], target: float) -> dict[str, Any]:
    """Where runs first evaluate at the target or above; means over the seeds, only if all of them reach it."""
    reached = []
    for rows in curves:
        first = next((row for row in rows if row.get("accuracy", 0) >= target), None)
        if first is not None:
            reached.append(first)
    found = {"accuracy": target, "reached": len(reached), "iterations": None, "bytes": None, "seconds": None}
    if len(reached) == len(curves):
        for name, column in (("iterations", "round"), ("bytes", "bytes_up"), ("seconds", "seconds")):
            found[name] = mean(row[column] for row in reached)
    return found


def _spread(numbers: list[float]) -> tuple[float, float | None]:
    return mean(numbers), stdev(numbers) if len(numbers) > 1 else None
