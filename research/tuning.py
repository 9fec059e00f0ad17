"""Tuning before an experiment: settings are chosen for each variant, on seeds that the experiment does not use."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dagc.comparison.runner import Progress, Train, run_all, train_in
from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.report import Series, read_run
from dagc.report.numbers import final, reached
from dagc.training import Config

__all__ = ["TUNING_SEEDS", "Choice", "best_of", "candidates_hash", "tune"]

TUNING_SEEDS = 1000
"""The first seed for tuning; experiments use 0, 1, 2, …"""
NOTHING: dict[str, float | None] = {"bytes_total": None, "reached": 0, "score": None}
"""What is known of a candidate that diverged."""


@dataclass(frozen=True)
class Choice:
    """What was chosen for one variant.

    Attributes:
        chosen: The settings that the other candidates have otherwise; empty if there was nothing to choose.
        by: What decided: `bytes_total`, the bytes both ways to the target, or `score`, the final one.
        tried: For each candidate its settings, `bytes_total` (None if a seed did not reach the target), `reached` (how
            many seeds did) and `score` (None if a seed diverged), means over the seeds.
    """

    chosen: dict[str, Any]
    by: str
    tried: list[dict[str, Any]]

    @property
    def at_the_edge(self) -> list[str]:
        """The settings for which the smallest or largest value tried was best: values beyond may be better still."""
        names = []
        for name, value in self.chosen.items():
            numbers = [candidate[name] for candidate in self.tried if isinstance(candidate.get(name), int | float)]
            if len(set(numbers)) > 1 and value in (min(numbers), max(numbers)):
                names.append(name)
        return names


def tune(
    ways: Sequence[Sequence[Mapping[str, Any]]],
    names: Sequence[str],
    seeds: Sequence[int],
    target: float | None,
    folder: Path,
    jobs: int,
    watch: Callable[[Sequence[Config]], Progress] = lambda configs: lambda run, done: None,
    known: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda fields: None,
    train: Train = train_in,
) -> list[Choice]:
    """Choose one of the candidates for every way: the fewest total bytes to the target, or the highest score.

    By score where there is no target, or no candidate reaches it with all seeds: then of those that reach it with
    most. If two need equally many bytes, the higher score decides. What was chosen is kept in `tuning.json`, so
    that it is done once; the runs are kept in a folder beside it.

    Args:
        ways: For each variant, the fields of its candidates.
        names: The settings to choose.
        seeds: The seeds, other than those of the experiment.
        target: The score to reach.
        folder: Where the runs go, and what was chosen.
        jobs: Runs at a time.
        watch: Makes what is called with the progress of the runs.
        known: What is known of a candidate from before, as in `Choice.tried`; None if it is to be run.
        train: As for `run_all`.
    """
    asked = candidates_hash(ways, seeds, target)
    before = _read(folder / "tuning.json", asked)
    if before is not None:
        return before
    new = [fields for way in ways if len(way) > 1 for fields in way if known(fields) is None]
    configs = [Config(**{**fields, "seed": seed}) for fields in new for seed in seeds]
    failed: set[int] = set()
    paths = []
    if configs:
        paths = run_all(
            configs, folder / "tuning", jobs, watch(configs), lambda run, error: failed.add(run), train=train
        )
    choices, position = [], 0
    for way in ways:
        tried = []
        for fields in way if len(way) > 1 else ():
            config = Config(**{**fields, "seed": seeds[0]})
            scores = known(fields)
            if scores is None:
                numbers = range(position, position + len(seeds))
                position += len(seeds)
                diverged = failed.intersection(numbers)
                scores = NOTHING if diverged else _scores([paths[number] for number in numbers], target)
            measured = {name: scores[name] for name in NOTHING}
            tried.append({**{name: getattr(config, name) for name in names}, **measured})
        choices.append(best_of(tried, names))
    _write(
        folder / "tuning.json",
        {"candidates": asked, "seeds": list(seeds), "ways": [asdict(choice) for choice in choices]},
    )
    return choices


def candidates_hash(ways: Sequence[Sequence[Mapping[str, Any]]], seeds: Sequence[int], target: float | None) -> str:
    """A short hash of these candidates, seeds and target."""
    keys = [[Config(**fields).key() for fields in way] for way in ways]
    return hashlib.sha256(json.dumps([keys, list(seeds), target]).encode()).hexdigest()[:12]


def _scores(paths: Sequence[Path], target: float | None) -> dict[str, float | None]:
    series = Series("", tuple(map(read_run, paths)))
    score = final(series).mean
    goal = None if target is None else reached(series, target)
    return {
        "bytes_total": None if goal is None or goal.bytes_total is None else goal.bytes_total.mean,
        "reached": 0 if goal is None else goal.seeds,
        "score": score if math.isfinite(score) else None,
    }


def best_of(tried: list[dict[str, Any]], names: Sequence[str]) -> Choice:
    """Choose one of the candidates that were tried, as `tune` describes."""
    successful = [each for each in tried if each["bytes_total"] is not None]
    by = "bytes_total" if successful else "score"
    if not tried:
        return Choice({}, by, [])
    measured = successful or [each for each in tried if each["score"] is not None]
    if not measured:
        raise InvalidInput(f"every candidate of {', '.join(names)} diverged: try smaller learning rates")
    if successful:
        best = min(successful, key=lambda each: (each["bytes_total"], -(each["score"] or 0.0)))
    else:
        best = max(measured, key=lambda each: (each["reached"], each["score"]))
    return Choice({name: best[name] for name in names}, by, tried)


def _read(path: Path, asked: str) -> list[Choice] | None:
    """What was chosen before; None if nothing was, or for other candidates, seeds or target."""
    try:
        stored = json.loads(path.read_bytes())
        if stored["candidates"] != asked:
            return None
        return [best_of(way["tried"], list(way["chosen"])) for way in stored["ways"]]  # by the rule of today
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        with write_atomically(path) as file:
            file.write(json.dumps(content, indent=1).encode())
    except OSError as error:
        raise InvalidInput(f"the result of tuning cannot be written to {path}: {failure(error)}") from error
