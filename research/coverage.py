"""How many cells of the paper's Tables III to VI have been run with the paper's own task and length."""

from research.cells import Cell
from research.paper import EXPERIMENTS
from research.records import Store

__all__ = ["COVERAGE", "covered"]

OF_THE_PAPER = {"table3": "III", "table5": "V", "table4": "IV", "table6": "VI"}
Table = tuple[list[str], list[list[str]], str]


def covered(store: Store) -> Table:
    """For each of the tables: its cells, those with any record, and those with all of its methods.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from pathlib import Path
        >>> with TemporaryDirectory() as folder:
        ...     heads, rows, _ = covered(Store(Path(folder)))
        >>> rows[-1]
        ['all', '66', '0', '0']
    """
    rows, sums = [], [0, 0, 0]
    for experiment, name in OF_THE_PAPER.items():
        cells = [cell for cell in EXPERIMENTS[experiment] if any(each.paper for each in cell.variants)]
        found = [_methods(store, cell) for cell in cells]
        counts = [len(cells), sum(some > 0 for some, _ in found), sum(some == most for some, most in found)]
        rows.append([f"Table {name}", *map(str, counts)])
        sums = [total + each for total, each in zip(sums, counts, strict=True)]
    heads = ["of the paper", "cells", "run here", "with every method"]
    records = ", ".join(f"`results/{experiment}/`" for experiment in OF_THE_PAPER)
    how = "the paper's tasks and numbers of iterations. Ten clients of IV and VI are cells of III and V, too"
    return heads, [*rows, ["all", *map(str, sums)]], f"Records: {records}; {how}."


def _methods(store: Store, cell: Cell) -> tuple[int, int]:
    """How many of the paper's methods have a run, and how many there are."""
    own = [variant for variant in cell.variants if variant.paper is not None]
    there = [variant for variant in own if store.runs({**cell.settings(variant), "seed": 0})]
    return len(there), len(own)


COVERAGE = {"paper": covered}
"""What documents may show: `<!-- begin: table coverage NAME -->`."""
