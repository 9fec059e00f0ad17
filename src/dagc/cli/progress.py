"""Progress of trainings: bars on a terminal, otherwise an occasional line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from dagc.cli.terminal import log, say

__all__ = ["is_narrow", "progress_of"]

NARROW = 110
"""Terminals with fewer columns get shorter progress lines."""


def is_narrow() -> bool:
    """Whether progress is shown on a terminal with little room."""
    return log.is_terminal and log.width < NARROW


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
    narrow, digits = is_narrow(), len(str(max(rounds)))
    columns = (
        TextColumn(
            "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=18 if narrow else 60)
        ),
        BarColumn(8 if narrow else 40, table_column=Column(min_width=8)),
        TextColumn("{task.completed}/{task.total}", table_column=Column(justify="right", min_width=2 * digits + 1)),
        *(() if narrow else (TimeElapsedColumn(),)),
        TimeRemainingColumn(table_column=Column(min_width=7)),
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=log) as bars:
        tasks = [bars.add_task(name, total=total, text="") for name, total in zip(names, rounds, strict=True)]
        yield lambda number, done, text="": bars.update(
            tasks[number], completed=done, **({"text": text} if text else {})
        )
