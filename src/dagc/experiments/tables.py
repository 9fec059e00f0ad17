"""Tables of the documents, made from records: `python -m dagc.experiments.tables` writes them again.

A document has a table between two markers, the first of which says what is in it:

    <!-- begin: table KIND EXPERIMENT CELLS [iterations=N] -->
    <!-- begin: table measured NAME -->
    <!-- end: table -->

KIND is one of `KINDS`, EXPERIMENT and CELLS are as for `dagc reproduce`; NAME is a table that a benchmark has recorded.
Nothing in such a table is typed by hand, and a test fails if it is not what the records say.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagc.errors import DagcError, InvalidInput, unknown
from dagc.experiments.cells import Cell, choose
from dagc.experiments.measured import Measured, in_markdown
from dagc.experiments.paper import EXPERIMENTS
from dagc.experiments.records import Record, Store, Tuned
from dagc.experiments.reproduce import known_choice, known_tuning
from dagc.report import Panel, Series
from dagc.report.figures import highest_shared, write_waterfall
from dagc.report.numbers import BYTES, Reached, Spread, difference, final, in_bytes, reached
from dagc.report.panels import in_words
from dagc.report.words import brief, percent

__all__ = ["KINDS", "Shown", "rewritten", "shown", "table"]

MARKED = re.compile(r"(<!-- begin: table ([^\n]*?) -->\n)(.*?)(<!-- end: table -->)", re.DOTALL)
MOST_SEEDS = 100
MEASURED = "measured"
"""The kind of a benchmark's table."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A cell as its records have it.

    Attributes:
        experiment: The experiment's name.
        cell: With what was chosen for its variants.
        panel: The runs, of the variants that have any.
        records: Of those runs.
        tuned: What was chosen.
    """

    experiment: str
    cell: Cell
    panel: Panel
    records: tuple[Record, ...]
    tuned: tuple[Tuned, ...]


def shown(experiment: str, cell: Cell, store: Store) -> Shown:
    """What the records say of a cell.

    Raises:
        InvalidInput: There is no record of it.
    """
    chosen = [known_choice(store, experiment, cell, variant) for variant in cell.variants]
    tuned = [one for variant in cell.variants if (one := known_tuning(store, experiment, cell, variant)) is not None]
    ready = cell.tuned([choice or {} for choice in chosen])
    runs: list[list[Record]] = []
    for variant, choice in zip(ready.variants, chosen, strict=True):
        wanted = [{**ready.settings(variant), "seed": seed} for seed in range(MOST_SEEDS)]
        runs.append([] if choice is None else _recorded(wanted, store))
    records = tuple(record for some in runs for record in some)
    if not records:
        raise InvalidInput(
            f"there is no record of {experiment} {cell.name} with {cell.fields['rounds']:,} rounds in {store.folder}: "
            f"dagc reproduce {experiment} --cells {cell.name}"
        )
    panel = ready.panel([[record.run() for record in some] for some in runs], [one.stand_in for one in records])
    return Shown(experiment, ready, panel, records, tuple(tuned))


def _recorded(wanted: Sequence[Mapping[str, Any]], store: Store) -> list[Record]:
    """The records of these runs, up to the first seed that has none."""
    found: list[Record] = []
    for fields in wanted:
        records = store.runs(fields)
        if not records:
            break
        found.append(records[0])
    return found


def table(words: str, store: Store) -> str:
    """The table that a marker asks for.

    Raises:
        InvalidInput: There is no such table, or no record for it.
    """
    kind, experiment, *rest = words.split() if len(words.split()) > 1 else [words, ""]
    if kind == MEASURED:
        if not experiment or rest:
            raise InvalidInput(f"table {words!r}: write measured NAME")
        return _measured(experiment, store)
    if kind not in KINDS:
        raise unknown("kind of table", kind, [*KINDS, MEASURED])
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    cells = next((each for each in rest if "=" not in each), None)
    length = re.fullmatch(r"iterations=(\d+)", rest[-1]) if rest else None
    if len(rest) > (cells is not None) + (length is not None):
        raise InvalidInput(f"table {words!r}: write KIND EXPERIMENT CELLS, and iterations=N if they are others")
    iterations = int(length[1]) if length else None
    some = [shown(experiment, cell.shrunk(iterations), store) for cell in choose(EXPERIMENTS[experiment], cells)]
    heads, body = KINDS[kind](some)
    return "\n".join([in_markdown(heads, body), "", _source(some), ""])


def _measured(name: str, store: Store) -> str:
    """A table that a benchmark has recorded."""
    path = store.folder / "benchmarks" / f"{name}.json"
    found = Measured.read(path)
    made = f"`{found.command}`, commit {found.commit or 'not known'}, {found.machine}"
    said = [f"Record: `results/benchmarks/{name}.json`; {made}", *found.notes]
    return "\n".join([in_markdown(found.heads, found.rows), "", ". ".join(said) + ".", ""])


def _source(some: Sequence[Shown]) -> str:
    """Where the table comes from, and what to know of it."""
    paths = [f"`results/{one.experiment}/{one.cell.name}.jsonl`" for one in some]
    where = paths[0] if len(paths) == 1 else f"`results/{some[0].experiment}/`, {len(paths)} cells"
    records = [record for one in some for record in one.records]
    counts = sorted({len(series.runs) for one in some for series in one.panel.series})
    seeds = "one seed" if counts == [1] else f"{' to '.join(map(str, sorted({counts[0], counts[-1]})))} seeds"
    made = [one for record in records for one in (record.commit or "not known").split(", ")]  # a resumed run has two
    commits = ", ".join(dict.fromkeys(made))
    missing = [
        f"not run: {variant.label}" + (f" ({one.cell.name})" if len(some) > 1 else "")
        for one in some
        for variant in one.cell.variants
        if variant.label not in {series.label for series in one.panel.series}
    ]
    notes = [note for one in some for note in one.panel.notes]
    said = [f"Record: {where}; {seeds}, commit {commits}", *dict.fromkeys([*missing, *notes])]
    return ". ".join(one[:1].upper() + one[1:] for one in said) + "."


def totals(some: Sequence[Shown]) -> tuple[list[str], list[list[str]]]:
    """Total bytes to each target, and the accuracy at the end."""
    goals = _shared_targets(some)
    heads = [*["setting"] * (len(some) > 1), "", *(f"to {100 * goal:g} %" for goal in goals), "at the end"]
    body = []
    for one in some:
        ways = [[reached(series, goal) for goal in goals] for series in one.panel.series]
        fewest = [_fewest([way[place] for way in ways]) for place in range(len(goals))]
        for number, (series, way) in enumerate(zip(one.panel.series, ways, strict=True)):
            setting = [one.panel.title if not number else ""] * (len(some) > 1)
            cells = [_total(goal, goal.bytes_total is fewest[place]) for place, goal in enumerate(way)]
            body.append([*setting, series.label, *cells, percent(final(series))])
    return heads, body


def targets(some: Sequence[Shown]) -> tuple[list[str], list[list[str]]]:
    """For every target and variant: bytes up, down and in total, rounds, seconds, and the difference to the first."""
    several = len(some) > 1
    heads = [*["setting"] * several, "to", "", "up", "down", "total", "more than the first", "rounds", "seconds"]
    body = []
    for one in some:
        for at, goal in enumerate(one.panel.targets):
            first, ways = one.panel.series[0], [reached(series, goal) for series in one.panel.series]
            fewest = _fewest(ways)
            for number, (series, way) in enumerate(zip(one.panel.series, ways, strict=True)):
                head = [one.panel.title if not number and not at else ""] * several
                head += [f"{100 * goal:g} %" if not number else "", series.label]
                if way.bytes_total is None:
                    body.append([*head, "", "", f"{way.seeds} of {way.of} seeds", "", "", ""])
                    continue
                gap = _gap(series, first, goal) if number else ""
                up, down, total = (_bytes(getattr(way, name)) for name in BYTES)
                total = f"**{total}**" if way.bytes_total is fewest else total
                body.append([*head, up, down, total, gap, _count(way.rounds), _seconds(way.seconds)])
    return heads, body


def accuracy(some: Sequence[Shown]) -> tuple[list[str], list[list[str]]]:
    """The accuracy at the end, the paper's in brackets; by how much the first is above the second; uploaded bytes."""
    labels = list(dict.fromkeys(variant.label for one in some for variant in one.cell.variants))
    heads = ["setting", *labels, f"{labels[0]} − {labels[1]}", *(f"up: {label}" for label in labels)]
    body = []
    for one in some:
        series = {each.label: each for each in one.panel.series}
        ends = ["" if label not in series else _end(series[label]) for label in labels]
        first, second = (series.get(label) for label in labels[:2])
        gap = "" if first is None or second is None else _points(difference(first, second))
        sent = ["" if label not in series else _bytes(final(series[label], "bytes_up")) for label in labels]
        body.append([one.panel.title, *ends, gap, *sent])
    return heads, body


def steps(some: Sequence[Shown]) -> tuple[list[str], list[list[str]]]:
    """Bytes to the highest target that all variants reach, and how many times fewer each takes than the one before."""
    several = len(some) > 1
    total = "total" if several else f"total to {100 * highest_shared(some[0].panel):g} %"
    heads = [*["setting"] * several, "", "up", "down", total, "times fewer", "rounds", "seconds"]
    body = []
    for one in some:
        goal = highest_shared(one.panel)
        before: Spread | None = None
        for number, series in enumerate(one.panel.series):
            head = [f"{one.panel.title}, to {100 * goal:g} %" if not number else ""] * several
            way = reached(series, goal)
            if way.bytes_total is None:
                body.append([*head, series.label, "", "", f"{way.seeds} of {way.of} seeds", "", "", ""])
                continue
            times = f"{before.mean / way.bytes_total.mean:.2f}" if before is not None else ""
            bytes = [_bytes(getattr(way, name)) for name in BYTES]
            body.append([*head, series.label, *bytes, times, _count(way.rounds), _seconds(way.seconds)])
            before = way.bytes_total
    return heads, body


def tuning(some: Sequence[Shown]) -> tuple[list[str], list[list[str]]]:
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


Kind = Callable[[Sequence[Shown]], tuple[list[str], list[list[str]]]]
KINDS: dict[str, Kind] = {"totals": totals, "targets": targets, "accuracy": accuracy, "steps": steps, "tuning": tuning}
"""Every kind of table."""


def _shared_targets(some: Sequence[Shown]) -> tuple[float, ...]:
    goals = {one.panel.targets for one in some}
    if len(goals) > 1:
        raise InvalidInput(f"{', '.join(one.cell.name for one in some)} have different targets: a table for each")
    return goals.pop()


def _fewest(ways: Sequence[Reached]) -> Spread | None:
    there = [way.bytes_total for way in ways if way.bytes_total is not None]
    return min(there, key=lambda total: total.mean) if len(there) > 1 else None


def _total(goal: Reached, best: bool) -> str:
    if goal.bytes_total is None:
        return f"{goal.seeds} of {goal.of} seeds"
    text = _bytes(goal.bytes_total)
    return f"**{text}**" if best else text


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


def _points(gap: Spread) -> str:
    if math.isnan(gap.mean):
        return ""
    text = f"{100 * gap.mean:+.2f}".replace("-", "−")
    return text if gap.sd is None else f"{text} ± {100 * gap.sd:.2f}"


def _end(series: Series) -> str:
    text = percent(final(series)).removesuffix(" %")
    return text if series.paper is None else f"{text} ({series.paper:.2f})"


def _count(value: Spread | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:,.0f}" + ("" if value.sd is None else f" ± {value.sd:,.0f}")


def _seconds(value: Spread | None) -> str:
    return "" if value is None else brief(value.mean)


def _choice(tuned: Tuned, point: Mapping[str, Any]) -> str:
    return ", ".join(in_words(name, point[name]) for name in tuned.chosen)


def _score(tuned: Tuned, point: Mapping[str, Any]) -> str:
    """What decided: bytes to the target, or how many seeds reached it and the accuracy."""
    if point["bytes_total"] is not None:
        return in_bytes(point["bytes_total"])
    if point["accuracy"] is None:
        return "diverged"
    there = f"{point['reached']} of {len(tuned.seeds)} seeds, " if point["reached"] else ""
    return f"{there}{100 * point['accuracy']:.1f} %"


def rewritten(text: str, store: Store) -> str:
    """A document with its tables as the records have them."""
    return MARKED.sub(lambda found: found[1] + table(found[2], store) + found[4], text)


def main(folder: Path) -> int:
    """Write the tables of `README.md` and `docs/` again; how many documents have changed."""
    store, changed = Store(folder / "results"), 0
    for path in (folder / "README.md", *sorted((folder / "docs").glob("**/*.md"))):
        before = path.read_text(encoding="utf-8")
        after = rewritten(before, store)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed += 1
            print(f"{path.relative_to(folder)}: its tables are written again")
    waterfall(store, folder / "docs" / "images" / "ablation.svg")
    return changed


def waterfall(store: Store, path: Path) -> None:
    """Draw the ablation, if any of it is recorded."""
    cells = [cell for cell in EXPERIMENTS["ablation"] if store.path("ablation", cell).exists()]
    if cells:
        write_waterfall([shown("ablation", cell, store).panel for cell in cells], path)


if __name__ == "__main__":
    try:
        main(Path.cwd())
    except DagcError as error:
        sys.exit(str(error))
