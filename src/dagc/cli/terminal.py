"""What the terminal shows: messages, warnings and progress on stderr, tables on stdout."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import INFO, WARNING, Handler, LogRecord, getLogger
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from dagc.folder import FINAL
from dagc.report import Panel, comparison, notes, sentence
from dagc.report.numbers import BYTES
from dagc.text import brief, in_bytes, printable

log = Console(stderr=True, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print a message as one line, however long; names in it cannot control the terminal."""
    log.print(printable(text), style=style, markup=False, soft_wrap=True)


def show_warnings() -> None:
    """From now on, print Python warnings as one line each."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}", "yellow")


class _Lines(Handler):
    """Prints log records of the library as one line each."""

    def emit(self, record: LogRecord) -> None:
        serious = record.levelno >= WARNING
        say(f"warning: {record.getMessage()}" if serious else record.getMessage(), "yellow" if serious else "dim")


def show_log(verbose: bool = False) -> None:
    """From now on, print warnings in the library's log; with `verbose`, everything that it logs."""
    logger = getLogger("dagc")
    logger.handlers = [each for each in logger.handlers if not isinstance(each, _Lines)] + [_Lines()]
    logger.setLevel(INFO if verbose else WARNING)


@contextmanager
def progress_of(names: Sequence[str], rounds: Sequence[int]) -> Iterator[Any]:
    """A function `(run, rounds done, text)` that shows how far each of several runs is."""
    if not log.is_terminal:
        shown = [0] * len(names)

        def lines(number: int, done: int, text: str = "") -> None:
            total = rounds[number]
            tenth = len(names) == 1 and done * 10 // total > shown[number] * 10 // total
            if done > shown[number] and (done == total or tenth):
                say(f"{names[number]}: round {done:,} of {total:,} {text}")
                shown[number] = done

        yield lines
        return
    digits = len(str(max(rounds)))
    columns = (  # 80 columns are enough
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=18)),
        BarColumn(8, table_column=Column(min_width=8)),
        TextColumn("{task.completed}/{task.total}", table_column=Column(justify="right", min_width=2 * digits + 1)),
        TimeRemainingColumn(table_column=Column(min_width=7)),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=log) as bars:
        tasks = [bars.add_task(name, total=total, text="") for name, total in zip(names, rounds, strict=True)]
        yield lambda number, done, text="": bars.update(tasks[number], completed=done, text=text)


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column holds names, the others numbers."""
    table = Table(title=Text(printable(title)), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(heads):
        table.add_column(name, justify="right" if place else "left", no_wrap=bool(place), overflow="fold")
    for name, *cells in rows:
        table.add_row(Text(printable(name)), *cells)
    Console(highlight=False).print(table)


def print_panels(panels: Sequence[Panel], *lines: str) -> None:
    """Print how each method ended and what it took to the target, then the result in words, notes, further lines."""
    heads = ("method", "final, %", "rounds", "up", "down", "total", "× best", "seconds")
    for panel in panels:
        result = comparison(panel)
        totals = [row["to_target"]["bytes_total"] for row in result["methods"]]
        fewest = min((total for total in totals if total is not None), default=None)
        title = f"{panel.title}; until {100 * result['target']:g} % {panel.metric}:"
        print_table(title, heads, [_line(row, fewest) for row in result["methods"]])
    words = [sentence(panels), *(f"note: {note}" for note in notes(panels)), *lines]
    Console(highlight=False).print("\n".join(map(printable, words)), markup=False, soft_wrap=True)


def _line(row: dict[str, Any], fewest: float | None) -> list[str]:
    """A method's line in the table of a comparison."""
    goal, final, sd = row["to_target"], row[FINAL], row[f"{FINAL}_sd"]
    cells = [f"{goal['reached']} of {row['seeds']}", *[""] * 5]
    if goal["bytes_total"] is not None:
        cells = [f"{goal['rounds']:,.0f}", *(in_bytes(goal[name]) for name in BYTES)]
        cells += [brief(goal["bytes_total"] / fewest) if fewest else "", brief(goal["seconds"])]
    end = "–" if final is None else f"{100 * final:.1f}" + ("" if sd is None else f" ± {100 * sd:.1f}")
    return [row["label"], end, *cells]
