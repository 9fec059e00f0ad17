"""The report in words: the result in a sentence, and what to know before relying on it."""

import math
from collections.abc import Sequence

from dagc.report.numbers import BYTES, Spread, difference, final, in_bytes, reached, targets
from dagc.report.panels import Panel, Series

__all__ = ["brief", "capital", "notes", "percent", "sentence"]


def percent(value: Spread) -> str:
    """A fraction as a percentage, with its spread.

    Example:
        >>> percent(Spread(0.8312, 0.002)), percent(Spread(0.5, None)), percent(Spread(math.nan, None))
        ('83.12 ± 0.20 %', '50.00 %', '–')
    """
    if math.isnan(value.mean):
        return "–"
    return f"{100 * value.mean:.2f} %" if value.sd is None else f"{100 * value.mean:.2f} ± {100 * value.sd:.2f} %"


def capital(text: str) -> str:
    """The text with a capital first letter; the others stay as they are.

    Example:
        >>> capital("R² of a test"), capital("accuracy")
        ('R² of a test', 'Accuracy')
    """
    return text[:1].upper() + text[1:]


def brief(number: float) -> str:
    """A factor or a number of seconds, with few digits.

    Example:
        >>> brief(0.0123), brief(1.0), brief(1234.5)
        ('0.012', '1.0', '1,234')
    """
    if 0 < number < 0.1:
        return f"{number:.2g}"
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def notes(panels: Sequence[Panel]) -> list[str]:
    """What to know about the runs: which stopped early, large first downloads, and their own notes."""
    found = []
    for panel in panels:
        for series in panel.series:
            for run in series.runs:
                if not run.finished:
                    seed = f", seed {run.settings['seed']}" if "seed" in run.settings else ""
                    done, wanted = run.result["rounds"], run.settings["rounds"]
                    found.append(f"{series.label}{seed}: stopped after round {done:,} of {wanted:,}")
    found += [note for panel in panels for note in (*_first_downloads(panel), *panel.notes)]
    return list(dict.fromkeys(found))


def _first_downloads(panel: Panel) -> list[str]:
    """The first download of each series, if it is more than a tenth of the bytes to a target."""
    found = []
    for series in panel.series:
        first = series.runs[0].first_download
        totals = [reached(series, target).bytes_total for target in targets(panel)]
        if first is not None and any(total and first > total.mean / 10 for total in totals):
            found.append(f"the first download, {in_bytes(first)} for all clients, is counted")
    return found


def sentence(panels: Sequence[Panel]) -> str:
    """The result in one sentence, and a second one if some runs are not finished."""
    everything = [series for panel in panels for series in panel.series]
    if len(everything) == 1:
        return _alone(everything[0])
    words = _by_bytes(panels[0]) if len(panels) == 1 else _over_panels(panels)
    unfinished, runs = sum(one.unfinished for one in everything), sum(len(one.runs) for one in everything)
    if not unfinished:
        return words
    return f"{words} {unfinished} of {runs} runs {'is' if unfinished == 1 else 'are'} not finished."


def _alone(series: Series) -> str:
    up, down, total = (in_bytes(final(series, name).mean) for name in BYTES)
    run = series.runs[0]
    rounds = f"{run.result['rounds']:,} rounds"
    if not run.finished:
        rounds = f"{run.result['rounds']:,} of {run.settings['rounds']:,} rounds"
    seeds = f"{len(series.runs)} seeds" if len(series.runs) > 1 else "one seed"
    return (
        f"{series.label} {'ends' if run.finished else 'is'} at {percent(final(series))} after {rounds} ({seeds}), "
        f"with {total} in total, {up} up and {down} down."
    )


def _by_bytes(panel: Panel) -> str:
    """The series with the fewest total bytes to the highest target that most reach, compared with its best rivals."""
    counts = {
        target: [(s, found.bytes_total.mean) for s in panel.series if (found := reached(s, target)).bytes_total]
        for target in targets(panel)
    }
    if not any(math.isfinite(final(one).mean) for one in panel.series):
        return "No series has a valid accuracy."
    target = max(counts, key=lambda value: (len(counts[value]), value))
    there = sorted(counts[target], key=lambda pair: pair[1])
    if len(there) < 2:
        best = max(panel.series, key=lambda one: (math.isfinite(final(one).mean), final(one).mean))
        only = f"{'only ' + _name(there[0][0]) if there else 'nobody'} reached {100 * target:g} % with every seed"
        return f"{_name(best)} ends highest, at {percent(final(best))}; {only}."
    (best, fewest), *rest = there
    dense = [pair for pair in rest if _method(pair[0]) == "none"]
    others = [pair for pair in rest if pair not in dense]
    rivals = [pair for pair in others if _method(pair[0]) != _method(best)] or others  # other methods, if there are any
    goal = reached(best, target)
    up, down, total = (in_bytes(getattr(goal, name).mean) for name in BYTES)
    words = f"{_name(best)} reaches {100 * target:g} % with {total} in total ({up} up, {down} down)"
    if fewest == 0:
        return words + "."
    against = [
        _fewer(amount / fewest, _name(one), difference(one, best, target)) for one, amount in rivals[:1] + dense[:1]
    ]
    return f"{words}, {' and '.join(against)}."


def _method(series: Series) -> str:
    return str(series.runs[0].settings["method"])


def _name(series: Series) -> str:
    return "no compression" if series.label == "none" else series.label


def _fewer(times: float, name: str, gap: Spread) -> str:
    words = f"about as many bytes as {name}" if times < 1.095 else f"{brief(times)} times fewer bytes than {name}"
    return words if gap.sd is None or gap.mean >= gap.sd else f"{words} (within the spread between seeds)"


def _over_panels(panels: Sequence[Panel]) -> str:
    """How often the first series of a panel is ahead of the second."""
    pairs = [panel.series[:2] for panel in panels if len(panel.series) > 1]
    if not pairs or len({tuple(one.label for one in pair) for pair in pairs}) > 1:
        runs = sum(len(series.runs) for panel in panels for series in panel.series)
        return f"{len(panels)} settings, {runs} runs: choose a setting below."
    first, second = pairs[0]
    gaps = [gap for gap in (difference(one, other) for one, other in pairs) if math.isfinite(gap.mean)]
    if not gaps:
        return f"In none of {len(pairs)} settings do both have a valid accuracy."
    ahead = sum(gap.mean > 0 for gap in gaps)
    points = 100 * sum(gap.mean for gap in gaps) / len(gaps)
    words = f"{first.label} ends above {second.label} in {ahead} of {len(gaps)} settings"
    words += f", by {points:+.2f} points on average"
    if any(gap.sd is not None for gap in gaps):
        clear = sum(gap.mean > (gap.sd or 0.0) for gap in gaps)
        words += f"; in {clear} by more than the spread between seeds"
    paper = [(one.paper, other.paper) for one, other in pairs if one.paper is not None and other.paper is not None]
    if paper:
        words += f" (in the paper: {sum(one > other for one, other in paper)} of {len(paper)})"
    return words + "."
