"""Tables of the documents, made from records: `python -m research.tables` writes them again.

A document has a table between two markers, the first of which says what is in it:

    <!-- begin: table KIND EXPERIMENT CELLS [iterations=N] -->
    <!-- begin: table measured NAME -->
    <!-- begin: table others NAME -->
    <!-- begin: table parity NAME -->
    <!-- begin: table energy NAME -->
    <!-- begin: table equal NAME -->
    <!-- begin: table shares NAME -->
    <!-- begin: table outside NAME -->
    <!-- begin: table headline NAME -->
    <!-- begin: table coverage NAME -->
    <!-- begin: table larger NAME -->
    <!-- begin: table kept COMMIT -->
    <!-- end: table -->

KIND is one of `KINDS`, EXPERIMENT and CELLS are as for `python -m research reproduce`; NAME is a table that a
benchmark has recorded, one of `research.others.OTHERS`, with other people's code beside ours, or one of those of the
modules in `ROWS`. Nothing in such a table is typed by hand, and a test fails if it is not what the records say.
A kept table was made by an earlier version, whose formats are gone: that commit can make it again, this one cannot.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dagc.errors import DagcError, InvalidInput, unknown
from research import energy, equal_bytes, factors, headline_tables, larger, outside, parity, shares
from research.cells import choose
from research.coverage import COVERAGE
from research.energy_figure import write_energy
from research.judged import on_shared_seeds
from research.kinds import KINDS, steps
from research.measured import Measured, in_markdown
from research.others import compared
from research.paper import EXPERIMENTS
from research.records import Store
from research.shown import Shown, shown
from research.waterfall import write_waterfall

__all__ = ["KINDS", "Shown", "rewritten", "shown", "table"]

MARKED = re.compile(r"(<!-- begin: table ([^\n]*?) -->\n)(.*?)(<!-- end: table -->)", re.DOTALL)
MEASURED, COMPARED, COVERED, KEPT = "measured", "others", "coverage", "kept"
"""Kinds of tables that no experiment makes: a benchmark's, one of other people's code, what was run, an old one."""
ROWS: dict[str, tuple[str, Mapping[str, Callable[[Any], tuple[list[str], list[list[str]], str]]]]] = {
    "parity": ("parity.jsonl", parity.TABLES),
    "shares": ("shares.jsonl", shares.SHARES),
    "energy": ("energy.jsonl", energy.ENERGIES),
    "equal": ("equal-bytes.jsonl", equal_bytes.EQUAL),
    "factors": ("factors.jsonl", factors.FACTORS),
    "outside": ("outside.jsonl", outside.TABLES),
    "headline": ("headline.jsonl", headline_tables.TABLES),
    "larger": ("larger.jsonl", larger.TABLES),
}
"""Kinds of tables that are made of rows: their record, and the tables by name."""


def table(words: str, store: Store) -> str:
    """The table that a marker asks for.

    Raises:
        InvalidInput: There is no such table, or no record for it.
    """
    kind, experiment, *rest = words.split() if len(words.split()) > 1 else [words, ""]
    named: dict[str, Callable[[str, Store], str]] = {MEASURED: _measured, COMPARED: _others, COVERED: _covered}
    named |= {name: partial(_of_rows, name) for name in ROWS}
    if kind in named:
        if not experiment or rest:
            raise InvalidInput(f"table {words!r}: write {kind} NAME")
        return named[kind](experiment, store)
    if kind not in KINDS:
        raise unknown("kind of table", kind, [*KINDS, *named, KEPT])
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    cells = next((each for each in rest if "=" not in each), None)
    length = re.fullmatch(r"iterations=(\d+)", rest[-1]) if rest else None
    if len(rest) > (cells is not None) + (length is not None):
        raise InvalidInput(f"table {words!r}: write KIND EXPERIMENT CELLS, and iterations=N if they are others")
    iterations = int(length[1]) if length else None
    some = [shown(experiment, cell.shrunk(iterations), store) for cell in choose(EXPERIMENTS[experiment], cells)]
    heads, rows = KINDS[kind](some)
    if KINDS[kind] is steps:
        some = [replace(one, panel=replace(one.panel, series=on_shared_seeds(*one.panel.series))) for one in some]
    return _in_full(heads, rows, _source(some))


def _measured(name: str, store: Store) -> str:
    """A table that a benchmark has recorded."""
    path = store.folder / "benchmarks" / f"{name}.json"
    found = Measured.read(path)
    made = f"`{found.command}`, commit {found.commit or 'not known'}, {found.machine}"
    said = [found.title, f"Record: `results/benchmarks/{name}.json`; {made}", *found.notes]
    return _in_full(found.heads, found.rows, ". ".join(said) + ".")


def _others(name: str, store: Store) -> str:
    """A table of other people's code beside ours."""
    return _in_full(*compared(name, store.folder))


def _covered(name: str, store: Store) -> str:
    """How many of the paper's cells have records."""
    if name not in COVERAGE:
        raise unknown("table of coverage", name, COVERAGE)
    return _in_full(*COVERAGE[name](store))


def _of_rows(kind: str, name: str, store: Store) -> str:
    """A table of the rows of one record."""
    file, made = ROWS[kind]
    if name not in made:
        raise unknown(f"table of {kind}", name, made)
    heads, rows, source = made[name](parity.records(store.folder / file))
    if not rows or not any(rows[0][1:]):
        raise InvalidInput(f"there is no record for table {kind} {name} in {store.folder / file}")
    return _in_full(heads, rows, source)


def _in_full(heads: list[str], rows: list[list[str]], source: str) -> str:
    return "\n".join([in_markdown(heads, rows), "", source, ""])


def _source(some: Sequence[Shown]) -> str:
    """Where the table comes from, and what to know of it."""
    paths = [f"`results/{one.experiment}/{one.cell.name}.jsonl`" for one in some]
    where = paths[0] if len(paths) == 1 else f"`results/{some[0].experiment}/`, {len(paths)} cells"
    records = [record for one in some for record in one.records]
    counts = sorted({len(series.runs) for one in some for series in one.panel.series})
    seeds = "one seed" if counts == [1] else f"{' to '.join(map(str, sorted({counts[0], counts[-1]})))} seeds"
    made = [one for record in records for one in (record.commit or "not known").split(", ")]  # a resumed run has two
    commits = ", ".join(dict.fromkeys(made))
    missing = [f"not run: {words}" for words in _not_run(some)]
    notes = [note for one in some for note in one.panel.notes]
    said = [f"Record: {where}; {seeds}, commit {commits}", *dict.fromkeys([*missing, *notes])]
    return ". ".join(one[:1].upper() + one[1:] for one in said) + "."


def rewritten(text: str, store: Store) -> str:
    """A document with its tables as the records have them."""

    def again(marked: re.Match[str]) -> str:
        body = marked[3] if marked[2].split()[0] == KEPT else table(marked[2], store)
        return marked[1] + body + marked[4]

    return MARKED.sub(again, text)


def _not_run(some: Sequence[Shown]) -> list[str]:
    """The variants without a run, and in which cells, unless it is all of them."""
    found: dict[str, list[str]] = {}
    for one in some:
        there = {series.label for series in one.panel.series}
        for variant in one.cell.variants:
            if variant.label not in there:
                found.setdefault(variant.label, []).append(one.cell.name)
    return [label if len(cells) == len(some) else f"{label} ({', '.join(cells)})" for label, cells in found.items()]


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
    if rows := parity.records(folder / "results" / "energy.jsonl"):
        write_energy(rows, folder / "docs" / "images" / "energy.svg")
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
