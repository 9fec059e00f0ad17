"""The table of a comparison on the terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dagc.folder import FINAL
from dagc.report import Panel, comparison, notes, sentence
from dagc.report.numbers import BYTES
from dagc.text import brief, in_bytes, printable

__all__ = ["plain_table", "print_panels"]


def plain_table(title: str, heads: Sequence[str]) -> Table:
    """An empty table: its first column holds names, the others numbers."""
    table = Table(title=Text(printable(title)), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(heads):
        table.add_column(name, justify="right" if place else "left", no_wrap=bool(place), overflow="fold")
    return table


def print_panels(panels: Sequence[Panel], *lines: str) -> None:
    """Print a line for every method of each setting, then the result in words, notes, and further lines."""
    for panel in panels:
        _print_panel(panel)
    words = [sentence(panels), *(f"note: {note}" for note in notes(panels)), *lines]
    Console(highlight=False).print("\n".join(map(printable, words)), markup=False, soft_wrap=True)


def _print_panel(panel: Panel) -> None:
    """Print how each method ended, and what it took to the target."""
    result = comparison(panel)
    title = f"{panel.title}; until {100 * result['target']:g} % {panel.metric}:"
    table = plain_table(title, ("method", "final, %", "rounds", "up", "down", "total", "× best", "seconds"))
    goals = [row["to_target"] for row in result["methods"]]
    fewest = min((goal["bytes_total"] for goal in goals if goal["bytes_total"] is not None), default=None)
    for row, goal in zip(result["methods"], goals, strict=True):
        cells = [f"{goal['reached']} of {row['seeds']}", *[""] * 5]
        if goal["bytes_total"] is not None:
            cells = [f"{goal['rounds']:,.0f}", *(in_bytes(goal[name]) for name in BYTES)]
            cells += [brief(goal["bytes_total"] / fewest) if fewest else "", brief(goal["seconds"])]
        final, sd = row[FINAL], row[f"{FINAL}_sd"]
        end = "–" if final is None else f"{100 * final:.1f}" + ("" if sd is None else f" ± {100 * sd:.1f}")
        table.add_row(Text(printable(row["label"])), end, *cells)
    Console(highlight=False).print(table)
