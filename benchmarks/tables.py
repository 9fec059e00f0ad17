"""Print what was measured and, with `--record`, keep it in `results/benchmarks` for the documents' tables."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dagc.experiments.measured import Measured

__all__ = ["arguments", "show"]

FOLDER = Path(__file__).parents[1] / "results" / "benchmarks"
RECORD = "--record"


def arguments(about: str | None) -> argparse.ArgumentParser:
    """A benchmark's arguments, with `--record`."""
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
) -> None:
    """Print a table; keep it if asked.

    Args:
        name: Of its record.
        title: What was measured.
        heads: Of the columns.
        rows: The cells, as text.
        record: Whether to keep it.
        notes: What to know of it.
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
    if record:
        words = [word for word in sys.argv[1:] if word != RECORD]
        module = (sys.modules["__main__"].__spec__ or __spec__).name.removesuffix(".__main__")
        command = " ".join(["python", "-m", module, *words, RECORD])
        Measured(title, command, list(heads), [list(row) for row in rows], list(notes)).write(FOLDER / f"{name}.json")
