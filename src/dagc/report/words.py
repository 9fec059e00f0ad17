"""The report in words: the result in a few sentences, and what to know before relying on it."""

import math
from collections.abc import Mapping, Sequence

from dagc.policies import Plan
from dagc.report.numbers import BYTES, difference, final, reached, targets
from dagc.report.panels import Panel, Series
from dagc.text import brief, count, in_bytes, percent


def notes(panels: Sequence[Panel]) -> list[str]:
    """What to know about the runs: which stopped early, whether the first model is counted, and their own notes."""
    everything = [series for panel in panels for series in panel.series]
    remarks = []
    for series in everything:
        for run in series.runs:
            if not run.finished:
                seed = f", seed {run.settings['seed']}" if "seed" in run.settings else ""
                done, planned = run.result["rounds"], run.settings["rounds"]
                remarks.append(f"{series.label}{seed}: stopped after round {done:,} of {planned:,}")
    models: dict[str, list[str]] = {}
    for series in everything:
        models.setdefault(_first_model(series), []).append(series.label)
    remarks += [
        remark if len(models) == 1 else f"{' and '.join(dict.fromkeys(labels))}: {remark}"
        for remark, labels in models.items()
    ]
    remarks += [note for panel in panels for note in panel.notes]
    return list(dict.fromkeys(remarks))


def _first_model(series: Series) -> str:
    """Whether the bytes include that of the first model."""
    run = series.runs[0]
    if run.settings.get("first_model") == "drawn":
        return "the first model is not counted: each client draws it from the seed and downloads nothing"
    if run.first_download is None:
        return "the first model is counted whenever a client downloads it"
    return f"the first model, {in_bytes(run.first_download)} for all clients, is counted"


def sentence(panels: Sequence[Panel]) -> str:
    """The result in a few sentences, with another one if some runs are not finished."""
    everything = [series for panel in panels for series in panel.series]
    if len(everything) == 1:
        return _alone(everything[0])
    unfinished, runs = sum(each.unfinished for each in everything), sum(len(each.runs) for each in everything)
    several = f"{len(panels)} settings, {runs} runs: choose a setting below."
    words = _by_bytes(panels[0]) if len(panels) == 1 else several
    if not unfinished:
        return words
    return f"{words} {unfinished} of {runs} runs {'is' if unfinished == 1 else 'are'} not finished."


def _alone(series: Series) -> str:
    up, down, total = (in_bytes(final(series, name).mean) for name in BYTES)
    run = series.runs[0]
    done, planned = run.result["rounds"], run.settings["rounds"]
    rounds = count(done, "round") if run.finished else f"{done:,} of {planned:,} rounds"
    return (
        f"{series.label} {'ends' if run.finished else 'is'} at {percent(final(series))} after {rounds} "
        f"({count(len(series.runs), 'seed', words=True)}), with {total} in total, {up} up and {down} down."
    )


def _by_bytes(panel: Panel) -> str:
    """What the default method took to the highest target that most series reach; else, the one with the fewest bytes.

    Compared first with no compression, if that has reached the target; then with the best of the other methods.
    """
    if not any(math.isfinite(final(each).mean) for each in panel.series):
        return "No series has a valid score."
    ways = {target: {each: reached(each, target).bytes_total for each in panel.series} for target in targets(panel)}
    means = {target: {each: way.mean for each, way in goal.items() if way} for target, goal in ways.items()}
    target = max(means, key=lambda value: (len(means[value]), value))
    totals, goal = means[target], f"{100 * target:g} %"
    ranking = sorted(totals, key=lambda series: totals[series])
    if len(ranking) < 2:
        best = max(panel.series, key=lambda each: (math.isfinite(final(each).mean), final(each).mean))
        who = f"only {ranking[0].label}" if ranking else "no method"
        return f"{best.label} ends highest, at {percent(final(best), 1)}; {who} reached {goal} with every seed."
    best = next((each for each in ranking if each.method == Plan.default("method")), ranking[0])
    rest = [each for each in ranking if each is not best]
    methods = [series for series in rest if series.method not in ("none", best.method)]
    plain = [series for series in rest if series.method == "none"]
    rival, *others = (plain + methods[:1]) or rest
    clients = count(len(best.runs[0].clients["sizes"]), "client", words=True)
    rounds = {series: way.mean for series in totals if (way := reached(series, target).rounds)}
    more = "each" if round(rounds[best]) == round(rounds[rival]) else f"instead of {rounds[rival]:,.0f}"
    words = (
        f"To reach {goal} {panel.metric}, {clients} exchanged {in_bytes(totals[best])} {_with(best, rival)} instead of "
        f"{in_bytes(totals[rival])} {_with(rival, best)}{_unclear(rival, best, target)}, "
        f"in {count(rounds[best], 'round')} {more}{_fewer(totals, best, rival, target)}. "
        f"Final {panel.metric}: {percent(final(best), 1)} compared with {percent(final(rival), 1)}."
    )
    for other in [each for each in others if each is not rival][:1]:
        words += f" The best other method, {other.label}, needed {in_bytes(totals[other])}"
        words += f"{_unclear(other, best, target)}, in {count(rounds[other], 'round')}"
        words += f", and ended at {percent(final(other), 1)}."
    return words


def _with(series: Series, other: Series) -> str:
    return "uncompressed" if series.method == "none" != other.method else f"with {series.label}"


def _fewer(totals: Mapping[Series, float], best: Series, rival: Series, target: float) -> str:
    """How many times fewer bytes that is, and whether they include the first model; nothing if it is not clear."""
    if not totals[best] or totals[rival] < 1.05 * totals[best] or _unclear(rival, best, target):
        return ""
    drawn = {each.runs[0].settings.get("first_model") == "drawn" for each in (best, rival)}
    counted = "" if len(drawn) > 1 else " without a first model" if drawn.pop() else " with the first model counted"
    return f": {brief(totals[rival] / totals[best])} times fewer bytes{counted}"


def _unclear(series: Series, best: Series, target: float) -> str:
    """A remark if a difference of bytes is smaller than its spread."""
    gap = difference(series, best, target)
    return "" if gap.sd is None or abs(gap.mean) >= gap.sd else " (a difference within the spread between seeds)"
