"""`dagc report`: tables, curves and one page from existing runs."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagc.errors import InvalidInput
from dagc.report import Panel, notes, panels_of, read_runs, sentence, write_report
from dagc.report.tables import table_of
from dagc.text import printable

__all__ = ["command_line", "numbers", "print_table", "report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders with runs anywhere below them.")],
    output: Annotated[Path, typer.Option(help="Where to write.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    targets: Annotated[str | None, typer.Option(help="Accuracies to reach, e.g. 0.75,0.8.")] = None,
    figures: Annotated[bool, typer.Option(help="Also draw SVG and PNG files (needs matplotlib).")] = True,
) -> None:
    """Write one page about runs, with tables (CSV, LaTeX, Markdown) and curves (CSV, SVG, PNG).

    Runs that differ only in the seed become one line with a band. Unreadable runs are left out, with a warning.

    Example: dagc report runs --targets 0.8,0.9
    """
    panels = panels_of(read_runs(runs), numbers(targets))
    heading = title or (panels[0].title if len(panels) == 1 else f"{len(panels)} settings")
    page = write_report(panels, output, heading, command_line(), figures)
    print_table(panels, heading)
    console = Console(highlight=False, soft_wrap=True)
    console.print(printable(sentence(panels)), markup=False)
    console.print(f"page: {page}", markup=False)


def print_table(panels: Sequence[Panel], title: str) -> None:
    """Print a table for each setting, and the notes about them."""
    console = Console(highlight=False, markup=False)
    if len(panels) > 1:
        console.print(printable(title))
    for panel in panels:
        heads, body = table_of([panel]).flat()
        heading = Text(printable(panel.title if len(panels) > 1 else title))
        table = Table(title=heading, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
        for name in heads:  # headings may wrap, numbers must not
            first = name == "Method"
            table.add_column(
                Text(printable(name).replace(" ", "\n", 1)), justify="left" if first else "right", no_wrap=not first
            )
        for row in body:
            table.add_row(*(Text(printable(cell)) for cell in row))
        console.print(table)
    for note in notes(panels):
        console.print(f"note: {printable(note)}", style="yellow", soft_wrap=True)


def command_line(program: str = "dagc") -> str:
    """The command as it was given."""
    return f"{program} {shlex.join(sys.argv[1:])}"


def numbers(text: str | None) -> tuple[float, ...]:
    """Parse accuracies separated by commas."""
    values = []
    for part in (text or "").split(",") if text else ():
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise InvalidInput(f"--targets holds {part.strip()!r}: write accuracies from 0 to 1, e.g. 0.75,0.8")
        values.append(value)
    return tuple(values)
