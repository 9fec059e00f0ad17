"""The kinds of tables that are made of records of runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dagc.errors import InvalidInput
from dagc.report import Series
from dagc.report.numbers import BYTES, Reached, difference, final, part_sent, reached
from dagc.report.panels import in_words
from dagc.text import Spread, brief, in_bytes, percent
from research.judged import against_the_best, judged, on_shared_seeds
from research.records import Tuned
from research.shown import Shown
from research.waterfall import highest_shared

__all__ = ["KINDS", "Columns", "points"]

Columns = tuple[list[str], list[list[str]]]
"""The heads of a table, and its rows."""
Text = Callable[[Spread | None], str]


def _to_targets(some: Sequence[Shown], cell: Callable[[Reached], Spread | None], text: Text) -> Columns:
    """One figure to each target, the smallest in bold, and the accuracy at the end."""
    goals = _shared_targets(some)
    heads = [*["setting"] * (len(some) > 1), "", *(f"to {100 * goal:g} %" for goal in goals), "at the end (rounds)"]
    body = []
    for one in some:
        ways = [[reached(series, goal) for goal in goals] for series in one.panel.series]
        fewest = [_fewest([cell(way[place]) for way in ways]) for place in range(len(goals))]
        for number, (series, way) in enumerate(zip(one.panel.series, ways, strict=True)):
            setting = [one.panel.title if not number else ""] * (len(some) > 1)
            cells = [_bold(way[place], cell(way[place]), fewest[place], text) for place in range(len(goals))]
            end = f"{percent(final(series))} ({final(series, 'rounds').mean:,.0f})"
            body.append([*setting, series.label, *cells, end])
    return heads, body


def totals(some: Sequence[Shown]) -> Columns:
    """Total bytes to each target, and the accuracy at the end."""
    return _to_targets(some, lambda way: way.bytes_total, _bytes)


def uploads(some: Sequence[Shown]) -> Columns:
    """Uploaded bytes to each target, the accuracy at the end, and the share of the entries that were sent."""
    heads, body = _to_targets(some, lambda way: way.bytes_up, _bytes)
    shares = [_share(part_sent(series)) for one in some for series in one.panel.series]
    return [*heads, "entries sent"], [[*row, share] for row, share in zip(body, shares, strict=True)]


def rounds(some: Sequence[Shown]) -> Columns:
    """Rounds to each target, and the accuracy at the end."""
    return _to_targets(some, lambda way: way.rounds, _count)


def seconds(some: Sequence[Shown]) -> Columns:
    """Simulated seconds to each target, and the accuracy at the end."""
    return _to_targets(some, lambda way: way.seconds, _seconds)


def targets(some: Sequence[Shown]) -> Columns:
    """For every target and variant: bytes up, down and in total, the difference to the first, rounds, seconds.

    Seconds are those of the links, and with some latency for each download and each upload.
    """
    several = len(some) > 1
    heads = [*["setting"] * several, "to", "", "up", "down", "total", "more than the first", "rounds"]
    heads += ["seconds", f"with {1000 * LATENCY:g} ms latency"]
    body = []
    for one in some:
        for at, goal in enumerate(one.panel.targets):
            first, ways = one.panel.series[0], [reached(series, goal) for series in one.panel.series]
            fewest = _fewest([way.bytes_total for way in ways])
            for number, (series, way) in enumerate(zip(one.panel.series, ways, strict=True)):
                head = [one.panel.title if not number and not at else ""] * several
                head += [f"{100 * goal:g} %" if not number else "", series.label]
                if way.bytes_total is None:
                    body.append([*head, "", "", f"{way.seeds} of {way.of} seeds", "", "", "", ""])
                    continue
                gap = _gap(series, first, goal) if number else ""
                up, down, total = (_bytes(getattr(way, name)) for name in BYTES)
                total = f"**{total}**" if way.bytes_total is fewest else total
                times = _seconds(way.seconds), _seconds(_delayed(way))
                body.append([*head, up, down, total, gap, _count(way.rounds), *times])
    return heads, body


LATENCY = 0.05
"""Seconds for a message to arrive, beside those of its bytes."""


def _delayed(way: Reached) -> Spread | None:
    """The seconds to a target if every download and every upload begins with the latency."""
    if way.seconds is None or way.rounds is None:
        return None
    return Spread(way.seconds.mean + 2 * LATENCY * way.rounds.mean, None)


def accuracy(some: Sequence[Shown]) -> Columns:
    """The accuracy at the end, the paper's in brackets; by how much the first is above the second; uploaded bytes."""
    labels = list(dict.fromkeys(variant.label for one in some for variant in one.cell.variants))
    heads = ["setting", *labels, f"{labels[0]} − {labels[1]}", *(f"up: {label}" for label in labels)]
    body = []
    for one in some:
        series = {each.label: each for each in one.panel.series}
        ends = ["" if label not in series else _end(series[label], one.cell.paper_of(label)) for label in labels]
        first, second = (series.get(label) for label in labels[:2])
        gap = "" if first is None or second is None else points(difference(first, second))
        sent = ["" if label not in series else _bytes(final(series[label], "bytes_up")) for label in labels]
        body.append([one.panel.title, *ends, gap, *sent])
    return heads, body


def claims(some: Sequence[Shown]) -> Columns:
    """By how many points the first variant ends above the second: in the paper and here, with a verdict."""
    heads = ["setting", "difference", "the paper, points", "here", "seeds", "verdict", "record"]
    body = []
    for one in some:
        first, second = on_shared_seeds(*(_ran(one, variant.label) for variant in one.cell.variants[:2]))
        theirs = [variant.paper for variant in one.cell.variants[:2]]
        gap, words, paper = difference(first, second), ("above", "**below**"), ""
        if theirs[0] is not None and theirs[1] is not None:
            claimed = theirs[0] - theirs[1]
            paper = points(Spread(claimed / 100, None))
            if claimed:  # where the paper has no difference, it claims none
                words = ("holds", "**the opposite**") if claimed > 0 else ("**the opposite**", "holds")
        verdict = judged(gap, len(first.runs), *words)
        labels = f"{first.label} − {second.label}"
        body.append([one.panel.title, labels, paper, points(gap), f"{len(first.runs)}", verdict, _name(one)])
    return heads, body


def verdicts(some: Sequence[Shown]) -> Columns:
    """For each target: the best other variant, its bytes as a multiple of the first's, and a verdict.

    Variants of the first's own method are no rivals of it, unless there are no others.
    """
    heads = ["setting", "to", "the best other", "times the bytes", "seeds", "verdict", "record"]
    body = []
    for one in some:
        claimed = one.cell.variants[0]
        others = [variant for variant in one.cell.variants if variant.fields["method"] != claimed.fields["method"]]
        labels = {variant.label for variant in others or one.cell.variants[1:]}
        first, rivals = _ran(one, claimed.label), [series for series in one.panel.series if series.label in labels]
        for number, goal in enumerate(one.panel.targets):
            head, record = [one.panel.title, _name(one)] if not number else ["", ""]
            body.append([head, f"{100 * goal:g} %", *against_the_best(first, rivals, goal), record])
    return heads, body


def costs(some: Sequence[Shown]) -> Columns:
    """What the first variant costs beside each without compression: rounds to the targets, accuracy at the end."""
    variants = [variant for one in some for variant in one.cell.variants]
    dense = list(dict.fromkeys(variant.label for variant in variants if variant.fields["method"] == "none"))
    heads = ["setting", *(f"times the rounds of {label}" for label in dense)]
    heads += [*(f"ends above {label}, points" for label in dense), "rounds of each", "record"]
    body = []
    for one in some:
        first, series = _ran(one, one.cell.variants[0].label), {each.label: each for each in one.panel.series}
        beside = {label: on_shared_seeds(first, series[label]) for label in dense if label in series}
        times = {label: _times(mine, theirs, one.panel.targets) for label, (mine, theirs) in beside.items()}
        gaps = {label: points(difference(mine, theirs)) for label, (mine, theirs) in beside.items()}
        ends = [first, *(series[label] for label in dense if label in series)]
        taken = " / ".join(f"{final(each, 'rounds').mean:,.0f}" for each in ends)
        cells = [part.get(label, "") for part in (times, gaps) for label in dense]
        body.append([one.panel.title, *cells, taken, _name(one)])
    return heads, body


def _times(first: Series, other: Series, goals: Sequence[float]) -> str:
    """How many times as many rounds one takes as another: the range over the targets that both reach."""
    ways = [(reached(first, goal).rounds, reached(other, goal).rounds) for goal in goals]
    found = [mine.mean / theirs.mean for mine, theirs in ways if mine is not None and theirs is not None]
    return " to ".join(dict.fromkeys(f"{part(found):.1f}" for part in (min, max))) if found else ""


def steps(some: Sequence[Shown]) -> Columns:
    """Bytes to the highest target that all variants reach, how many times fewer than the one before, and a verdict.

    With the seeds that all variants share.
    """
    several = len(some) > 1
    total = "total" if several else f"total to {100 * highest_shared(some[0].panel):g} %"
    heads = [*["setting"] * several, "", "up", "down", total, "times fewer", "verdict", "rounds", "seconds"]
    body = []
    for one in some:
        panel = replace(one.panel, series=on_shared_seeds(*one.panel.series))
        goal = highest_shared(panel)
        before: Series | None = None
        for number, series in enumerate(panel.series):
            head = [f"{one.panel.title}, to {100 * goal:g} %" if not number else ""] * several
            way = reached(series, goal)
            if way.bytes_total is None:
                body.append([*head, series.label, "", "", f"{way.seeds} of {way.of} seeds", "", "", "", ""])
                continue
            worth = ["", ""]
            if before is not None and (other := reached(before, goal).bytes_total) is not None:
                gap = difference(before, series, goal)
                worth = [f"{other.mean / way.bytes_total.mean:.2f}", judged(gap, way.of, "fewer", "**more**")]
            bytes = [_bytes(getattr(way, name)) for name in BYTES]
            body.append([*head, series.label, *bytes, *worth, _count(way.rounds), _seconds(way.seconds)])
            before = series
    return heads, body


def tuning(some: Sequence[Shown]) -> Columns:
    """What was tried for each variant, on which seeds, and what was chosen."""
    several = len(some) > 1
    heads = [*["setting"] * several, "", "chosen", "tried"]
    body = []
    for one in some:
        for number, each in enumerate(one.tuned):
            head = [one.panel.title if not number else ""] * several
            tried = "; ".join(f"{_choice(each, point)}: {_score(each, point)}" for point in each.tried)
            edge = f" (at the edge: {', '.join(each.choice.at_the_edge)})" if each.choice.at_the_edge else ""
            body.append([*head, each.variant, _choice(each, each.chosen) + edge, tried])
    if not body:
        raise InvalidInput(f"nothing is tuned in {', '.join(one.cell.name for one in some)}")
    return heads, body


_ALL = (totals, uploads, rounds, seconds, targets, accuracy, claims, verdicts, costs, steps, tuning)
KINDS: dict[str, Callable[[Sequence[Shown]], Columns]] = {kind.__name__: kind for kind in _ALL}
"""Every kind of table."""


def _shared_targets(some: Sequence[Shown]) -> tuple[float, ...]:
    goals = {one.panel.targets for one in some}
    if len(goals) > 1:
        raise InvalidInput(f"{', '.join(one.cell.name for one in some)} have different targets: a table for each")
    return goals.pop()


def _fewest(found: Sequence[Spread | None]) -> Spread | None:
    """The smallest; None if there are fewer than two."""
    there = [one for one in found if one is not None]
    return min(there, key=lambda one: one.mean) if len(there) > 1 else None


def _name(one: Shown) -> str:
    return f"`{one.experiment}/{one.cell.name}`"


def _ran(one: Shown, label: str) -> Series:
    """The runs of a variant that a table cannot do without."""
    for series in one.panel.series:
        if series.label == label:
            return series
    raise InvalidInput(f"there is no record of {label} in {one.experiment} {one.cell.name}, which this table needs")


def _bold(goal: Reached, value: Spread | None, fewest: Spread | None, text: Text) -> str:
    if value is None:
        return f"{goal.seeds} of {goal.of} seeds"
    return f"**{text(value)}**" if value is fewest else text(value)


def _share(part: float) -> str:
    """A part as a percentage with two digits.

    Example:
        >>> _share(0.00099), _share(0.025), _share(1.0)
        ('0.099 %', '2.5 %', '100 %')
    """
    return f"{100 * part:.2g} %" if part < 0.1 else f"{100 * part:.0f} %"


def _bytes(value: Spread | None) -> str:
    """Bytes with their spread in the same unit.

    Example:
        >>> _bytes(Spread(34_712, 2_140)), _bytes(Spread(1e6, None)), _bytes(Spread(500, 0.0)), _bytes(None)
        ('34.7 ± 2.1 kB', '1.00 MB', '500 ± 0 B', '')
    """
    if value is None:
        return ""
    number, _, unit = in_bytes(abs(value.mean)).partition(" ")
    sign = "−" if value.mean < 0 else ""
    if value.sd is None:
        return f"{sign}{number} {unit}"
    size = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    digits = len(number.partition(".")[2])
    return f"{sign}{number} ± {value.sd / size:,.{digits}f} {unit}"


def _gap(series: Series, first: Series, goal: float) -> str:
    """How many bytes more, seed by seed."""
    gap = difference(series, first, goal)
    return "" if math.isnan(gap.mean) else ("+" if gap.mean >= 0 else "") + _bytes(gap)


def points(gap: Spread) -> str:
    """A difference of accuracies, in points.

    Example:
        >>> points(Spread(0.0123, 0.002)), points(Spread(-0.01, None))
        ('+1.23 ± 0.20', '−1.00')
    """
    if math.isnan(gap.mean):
        return ""
    text = f"{100 * gap.mean:+.2f}".replace("-", "−")
    return text if gap.sd is None else f"{text} ± {100 * gap.sd:.2f}"


def _end(series: Series, paper: float | None) -> str:
    text = percent(final(series)).removesuffix(" %")
    return text if paper is None else f"{text} ({paper:.2f})"


def _count(value: Spread | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:,.0f}" + ("" if value.sd is None else f" ± {value.sd:,.0f}")


def _seconds(value: Spread | None) -> str:
    return "" if value is None else brief(value.mean)


def _choice(tuned: Tuned, point: Mapping[str, Any]) -> str:
    return ", ".join(in_words(name, point[name]) for name in tuned.chosen)


def _score(tuned: Tuned, point: Mapping[str, Any]) -> str:
    """What decided: bytes to the target, or how many seeds reached it and the score."""
    if point["bytes_total"] is not None:
        return in_bytes(point["bytes_total"])
    if point["score"] is None:
        return "diverged"
    there = f"{point['reached']} of {len(tuned.seeds)} seeds, " if point["reached"] else ""
    return f"{there}{100 * point['score']:.1f} %"
