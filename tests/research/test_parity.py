"""Curves are compared seed by seed and as means over seeds, beside two curves without compression."""

import pytest

from dagc import Plan
from research.parity import BRIEF, FLOOR, brief_table, curve_table
from research.shares import ByEnergy


def trained(method, seed, *scores, task="logistic"):
    return {"task": task, "method": method, "seed": seed, "scores": [[5 + n, score] for n, score in enumerate(scores)]}


def rows(*ours, floor=()):
    every = [trained("FedAvg", seed, 0.5, 0.8, 0.8) for seed in range(2)]
    every += [trained("dagc", seed, *scores) for seed, scores in enumerate(ours)]
    every += [trained(FLOOR, seed, *scores) for seed, scores in enumerate(floor)]
    heads, (row,), _ = curve_table(every)
    return dict(zip(range(len(heads)), row, strict=True))


@pytest.mark.parametrize(
    ("ours", "floor", "figures", "verdict"),
    [
        (((0.1, 0.79, 0.8), (0.1, 0.802, 0.8)), (), ["−1.0", "−0.4", "–", "–"], "within 0.5"),
        (((0.1, 0.79, 0.8),) * 2, (), ["−1.0", "−1.0", "–", "–"], "below by more than 0.5; noise not known"),
        (((0.1, 0.79, 0.8),) * 2, ((0.5, 0.78, 0.8),), ["−1.0", "−1.0", "−2.0", "−2.0"], "within noise"),
        (((0.1, 0.79, 0.8),) * 2, ((0.5, 0.8, 0.8),), ["−1.0", "−1.0", "+0.0", "+0.0"], "below noise"),
    ],
)
def test_what_is_said_of_a_curve(ours, floor, figures, verdict):
    """The fifth round does not count."""
    row = rows(*ours, floor=floor)
    assert [row[place] for place in range(1, 5)] == figures
    assert row[6] == verdict


def test_the_end_is_the_mean_of_the_last_three_evaluations():
    task = next(iter(BRIEF))
    every = [trained("FedAvg", 0, 0.1, 0.7, 0.8, 0.9, task=task), trained("dagc", 0, 0.1, 0.8, 0.8, 0.5, task=task)]
    _, (row,), source = brief_table([{**run, "bytes_up": 10, "bytes_down": 10} for run in every])
    assert row[2:4] == ["80.0 %", "70.0 %"]
    assert "the last three" in source


def test_a_training_by_energy_takes_the_bytes_that_it_was_given():
    extras = ByEnergy(Plan(bytes=1000), 100_000, {"a": 1.0, "b": 3.0}, target=2000)
    assert extras.weights == {"a": 0.5, "b": 1.5}
    spent = []
    for _ in range(60):
        spent.append(40_000 * extras.level**1.5)
        extras.note(spent[-1])
    assert sum(spent) == pytest.approx(60 * 2000, rel=0.03)
