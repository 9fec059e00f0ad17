"""`dagc report`: one page from existing runs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dagc.cli.table import print_panels
from dagc.errors import InvalidInput
from dagc.report import panels_of, read_runs, write_report

__all__ = ["command_line", "report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders with runs anywhere below them.")],
    output: Annotated[Path, typer.Option(help="Where to write.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="The page's heading.")] = None,
    targets: Annotated[str | None, typer.Option(help="Accuracies to reach, e.g. 0.75,0.8.")] = None,
) -> None:
    """Write one page about runs, and their numbers as JSON.

    Runs that differ only in the seed become one line with a band. Unreadable runs are left out, with a warning.

    Example: dagc report runs --targets 0.8,0.9
    """
    panels = panels_of(read_runs(runs), _numbers(targets))
    heading = title or (panels[0].title if len(panels) == 1 else f"{len(panels)} settings")
    page = write_report(panels, output, heading, command_line())
    print_panels(panels, f"page: {page}")


def command_line(program: str = "dagc") -> str:
    """The command as it was given."""
    return f"{program} {shlex.join(sys.argv[1:])}"


def _numbers(text: str | None) -> tuple[float, ...]:
    """Parse accuracies separated by commas."""
    values = []
    for part in text.split(",") if text else ():
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise InvalidInput(f"--targets holds {part.strip()!r}: write accuracies from 0 to 1, e.g. 0.75,0.8")
        values.append(value)
    return tuple(values)
