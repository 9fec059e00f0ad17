"""`dagc report`: tables, curves and one page from runs that are there already."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dagc.errors import InvalidInput
from dagc.report import Panel, find_runs, panels_of, read_run, sentence, write_report
from dagc.report.tables import text_rows

__all__ = ["command_line", "numbers", "print_table", "report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    output: Annotated[Path, typer.Option(help="Where to write.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    targets: Annotated[str | None, typer.Option(help="Accuracies to be reached, e.g. 0.75,0.8.")] = None,
    figures: Annotated[bool, typer.Option(help="Draw SVG and PNG files, too (needs matplotlib).")] = True,
) -> None:
    """Write one self-contained page about runs, with tables (CSV, LaTeX, Markdown) and curves (CSV, SVG, PNG).

    Runs that differ only in the seed become one line with a band.

    Example: dagc report runs/compare-mlp@digits --targets 0.8,0.9
    """
    found = [read_run(path) for path in find_runs(runs)]
    panels = panels_of(found, numbers(targets))
    heading = title or (panels[0].title if len(panels) == 1 else f"{len(panels)} settings")
    page = write_report(panels, output, heading, command_line(), figures)
    print_table(panels, heading)
    console = Console(highlight=False, soft_wrap=True)
    console.print(sentence(panels), markup=False)
    console.print(f"page: {page}", markup=False)


def print_table(panels: Sequence[Panel], title: str) -> None:
    """The report's table, and what to know of it, on the terminal."""
    heads, body = text_rows(panels)
    table = Table(title=title, title_justify="left")
    for name in heads:
        table.add_column(name, justify="left" if name in ("Setting", "Method") else "right")
    for number, row in enumerate(body):
        if number and row[0] and heads[0] == "Setting":
            table.add_section()
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    for note in dict.fromkeys(note for panel in panels for note in panel.notes):
        console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def command_line() -> str:
    """The command as it was given, to be given again."""
    return shlex.join(["dagc", *sys.argv[1:]])


def numbers(text: str | None) -> tuple[float, ...]:
    """Accuracies with commas between them."""
    found = []
    for part in (text or "").split(",") if text else ():
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise InvalidInput(f"--targets holds {part.strip()!r}: write accuracies from 0 to 1, e.g. 0.75,0.8")
        found.append(value)
    return tuple(found)
