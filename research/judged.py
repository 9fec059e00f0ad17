"""Verdicts: who needs fewer bytes or ends higher, judged seed by seed."""

import math
from collections.abc import Sequence
from dataclasses import replace

from dagc.report import Series
from dagc.report.numbers import difference, reached
from dagc.text import Spread, in_bytes

__all__ = ["against_the_best", "judged", "on_shared_seeds"]

CLEAR = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
PERHAPS = (3.08, 1.89, 1.64, 1.53, 1.48, 1.44, 1.41, 1.40, 1.38)
"""Student's t for two-sided intervals of 95 and of 80 %, for 2 to 10 seeds."""


def on_shared_seeds(*some: Series) -> tuple[Series, ...]:
    """With the runs of the seeds that all of them have."""
    shared = set.intersection(*({run.seed for run in series.runs} for series in some))
    return tuple(replace(series, runs=tuple(run for run in series.runs if run.seed in shared)) for series in some)


def judged(gap: Spread, seeds: int, above: str, below: str) -> str:
    """Words for a difference that was measured seed by seed.

    It is clear if zero is outside its interval of 95 %, and perhaps one if zero is outside that of 80 %. Two seeds are
    never clear: runs are evaluated now and then, so two differences may be equal by chance.

    Example:
        >>> [judged(Spread(mean, 1.0), 5, "more", "**fewer**") for mean in (1.3, 1.1, 0.6, -1.1, -1.3)]
        ['more', 'perhaps more', 'no clear difference', 'perhaps **fewer**', '**fewer**']
        >>> judged(Spread(5.0, 0.0), 2, "more", "fewer"), judged(Spread(0.95, 1.0), 10, "more", "fewer")
        ('perhaps more', 'more')
        >>> judged(Spread(5.0, None), 1, "more", "fewer"), judged(Spread(math.nan, None), 5, "more", "fewer")
        ('one seed cannot say', 'a run diverged')
    """
    if math.isnan(gap.mean):
        return "a run diverged"
    if gap.sd is None:
        return "one seed cannot say"
    words, place = above if gap.mean > 0 else below, min(seeds, len(CLEAR) + 1) - 2
    if seeds > 2 and abs(gap.mean) > CLEAR[place] * gap.sd / math.sqrt(seeds):
        return words
    return f"perhaps {words}" if abs(gap.mean) > PERHAPS[place] * gap.sd / math.sqrt(seeds) else "no clear difference"


def against_the_best(first: Series, others: Sequence[Series], goal: float) -> list[str]:
    """Who else needs the fewest bytes to a target, the multiple, how many seeds, and a verdict.

    Another that gets there with more than half of the seeds is compared on these. The first has to get there with all.
    """
    mine = reached(first, goal)
    missed = "" if mine.bytes_total else f"{first.label} with {mine.seeds} of {mine.of} seeds"
    there = []
    for each in others:
        every = on_shared_seeds(first, each)[1]
        some = _there(every, goal)
        enough = len(every.runs) if missed else len(every.runs) // 2 + 1
        if some.runs and len(some.runs) >= enough:
            there.append((every, some))
    if not there:
        alone = f"nobody gets there: {missed}" if missed else f"only {first.label} gets there"
        return ["", "", f"{mine.of}", alone + _sometimes(others, goal, math.inf)]
    (every, rival), fewest = min(((one, _taken(one[1], goal)) for one in there), key=lambda one: one[1])
    if missed:
        return [rival.label, "", f"{mine.of}", f"**{rival.label} gets there**, {missed}"]
    of = "" if len(rival.runs) == len(every.runs) else f" ({len(rival.runs)} of {len(every.runs)} seeds)"
    first, rival = on_shared_seeds(first, rival)
    words = f"{first.label} needs fewer", f"**{rival.label} needs fewer**"
    verdict = judged(difference(rival, first, goal), len(first.runs), *words) + _sometimes(others, goal, fewest)
    ours, theirs = _taken(first, goal), _taken(rival, goal)
    return [rival.label + of, f"{theirs / ours:.2f}" if ours else "", f"{len(first.runs)}", verdict]


def _there(series: Series, goal: float) -> Series:
    """With the runs that get to a target."""
    return replace(
        series, runs=tuple(run for run in series.runs if reached(replace(series, runs=(run,)), goal).bytes_total)
    )


def _taken(series: Series, goal: float) -> float:
    """The mean of the bytes to a target that all runs get to."""
    total = reached(series, goal).bytes_total
    assert total is not None
    return total.mean


def _sometimes(others: Sequence[Series], goal: float, best: float) -> str:
    """Who needs fewer bytes than the best, but gets there with some of its seeds only."""
    found = []
    for series in others:
        there = _there(series, goal)
        if 0 < len(there.runs) < len(series.runs) and (taken := _taken(there, goal)) < best:
            found.append(f"{series.label} with {len(there.runs)} of {len(series.runs)} seeds: {in_bytes(taken)}")
    return "; ".join(["", *found])
