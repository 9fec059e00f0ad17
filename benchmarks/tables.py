"""Print what was measured and, with `--record`, keep it in `results/benchmarks` for the documents' tables."""

import argparse
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from research.measured import Measured
from research.origin import source_commit
from research.parts import load

__all__ = ["Sheet", "arguments", "kept", "show"]

HERE = Path(__file__).parent
FOLDER = HERE.parent / "results" / "benchmarks"
RECORD = "--record"


def arguments(about: str | None) -> argparse.ArgumentParser:
    """A benchmark's arguments, with `--record`. From here on, tasks know the parts of the experiments."""
    load()
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(RECORD, action="store_true", help="keep the tables in results/benchmarks; then: make results")
    return parser


def show(
    name: str,
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    record: bool = False,
    notes: Sequence[str] = (),
    missing: str = "",
) -> None:
    """Print a table; keep it if asked, and if it is complete. A record that was there stays otherwise.

    Args:
        name: Of its record.
        title: What was measured.
        heads: Of the columns.
        rows: The cells, as text.
        record: Whether to keep it.
        notes: What to know of it.
        missing: What it lacks, such as "3 of 8 rows"; empty if it is complete.
    """
    table = Table(title=title, title_justify="left")
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    for note in notes:
        console.print(note, markup=False)
    command = _command()
    lacks = missing or ("" if rows else "no rows")
    if record and not lacks and command is None:
        lacks = f"it was not run as python -m {__package__}.NAME"
    if lacks:
        print(f"{name} {'not recorded' if record else 'is not complete'}: {lacks}", file=sys.stderr, flush=True)
    elif record and command is not None:
        cells = [list(row) for row in rows]
        found = Measured(title, command, list(heads), cells, list(notes), source_commit(HERE))
        found.write(FOLDER / f"{name}.json")


def _command() -> str | None:
    """What runs here, as one would type it; None if it is not one of these modules."""
    spec = sys.modules["__main__"].__spec__
    if spec is None or spec.name.partition(".")[0] != __package__:
        return None
    words = [word for word in sys.argv[1:] if word != RECORD]
    return shlex.join(["python", "-m", spec.name.removesuffix(".__main__"), *words, RECORD])


@dataclass
class Sheet:
    """A table that is being measured.

    Attributes:
        heads: Of the columns.
        rows: Those that are there.
        notes: What to know of it.
        missing: What it still lacks, apart from a number of rows.
    """

    heads: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, row: Iterable[str]) -> None:
        """Put a row at the end, and print it at once: the next may take minutes."""
        self.rows.append(list(row))
        print(*self.rows[-1], sep=" | ", file=sys.stderr, flush=True)


@contextmanager
def kept(
    name: str, title: str, heads: Iterable[str], record: bool = False, notes: Iterable[str] = (), wanted: int = 0
) -> Iterator[Sheet]:
    """A table that takes long: what is there is shown, whatever ends the measurement; it is recorded if complete.

    Args:
        name: Of its record.
        title: What is measured.
        heads: Of the columns.
        record: Whether to keep it.
        notes: What to know of it.
        wanted: How many rows it has when it is complete; not counted if 0.

    Yields:
        The table, to be filled. It is complete if the block ends without an error, with these rows and nothing missing.
    """
    print(title, file=sys.stderr, flush=True)
    sheet, ended = Sheet(list(heads), notes=list(notes)), False
    try:
        yield sheet
        ended = True
    finally:
        found = len(sheet.rows)
        missing = [f"{found} of {wanted} rows"] * (found < wanted) + sheet.missing
        if not ended and not missing:
            missing = ["it was stopped"]
        show(name, title, sheet.heads, sheet.rows, record, sheet.notes, "; ".join(missing))
