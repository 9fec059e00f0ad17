"""`python -m research reproduce`: the paper's tables and figures, cell by cell, next to the paper's own numbers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dagc.cli.compare import command_line
from dagc.cli.terminal import log, print_panels, say
from dagc.errors import InvalidInput, unknown
from dagc.report import Panel, write_report
from dagc.training import Config
from research import EXPERIMENTS, TITLES, Cell, Laboratory, Store, choose
from research.reproduce import Progress as Show

__all__ = ["reproduce"]

RECORDS = Path("results")


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENTS)}, or all.")],
    cells: Annotated[
        str | None, typer.Option(help="Beginnings of cells' names, e.g. logistic/sr100,cnn/*/0.001.")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Beginnings of variants' names, e.g. DAGC-R,Top-k (default: all of a cell's).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="Number of seeds: 0, 1, 2, …")] = 3,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Fewer iterations than in the paper, to finish sooner.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: the number of cores).")] = None,
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cpu",
    stand_in: Annotated[bool, typer.Option(help="Use a substitute for data that is not here, and say so.")] = False,
    data_dir: Annotated[
        str | None, typer.Option(help="The data folder (default: DAGC_DATA, or the user's cache).")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where runs and reports go.")] = Path("runs/reproduce"),
    records: Annotated[Path, typer.Option(help="Where records are; a run that has one is not run again.")] = RECORDS,
    commit: Annotated[
        str | None, typer.Option(help="What finished runs in the output folder were made with, if they do not say.")
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Record what is finished in the output folder, and run nothing.")
    ] = False,
    names_only: Annotated[bool, typer.Option("--list", help="Print the names of the cells and exit.")] = False,
) -> None:
    """Repeat the paper's experiments and write a page for each, with the paper's numbers next to ours.

    If it was killed or stopped with Ctrl-C, the same command continues; finished runs are not repeated. Every run
    that ends is recorded in results/, and one that has a record there is not run again, on any machine: for runs of
    your own choose another --records.

    Example: python -m research reproduce table3 --cells logistic --seeds 1 --iterations 200
    """
    if experiment != "all" and experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, [*EXPERIMENTS, "all"])
    chosen = _chosen(list(EXPERIMENTS) if experiment == "all" else [experiment], cells)
    if names_only:
        _print_names(chosen)
        return
    wanted = [(name, cell.shrunk(iterations).only(variants)) for name, some in chosen.items() for cell in some]
    place = Laboratory(output, Store(records), jobs or os.cpu_count() or 1, device, data_dir, stand_in, commit)
    if collect:
        left = place.collect(wanted, seeds)
        say(f"what is finished in {output} is recorded in {records}; {left} runs are not finished")
        return
    try:
        with _progress() as show:
            panels = replace(place, progress=show).run(wanted, seeds)
    except KeyboardInterrupt:
        say(f"stopped; finished work is in {output}, and the same command continues from there")
        raise
    for name in chosen:
        own = [_with_paper(cell, panel) for (whose, cell), panel in zip(wanted, panels, strict=True) if whose == name]
        page = write_report(own, output / name, TITLES[name], command_line("python -m research"))
        print_panels(own, f"page: {page}\n")


def _with_paper(cell: Cell, panel: Panel) -> Panel:
    """The panel with the paper's own numbers as a note."""
    return replace(panel, notes=(*panel.notes, *([cell.remark] if cell.remark else [])))


def _print_names(chosen: Mapping[str, Sequence[Cell]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for name, cells in chosen.items():
        for cell in cells:
            console.print(f"{name} {cell.name}: {cell.title}", markup=False)


def _chosen(names: Sequence[str], wanted: str | None) -> dict[str, list[Cell]]:
    """The chosen cells of each experiment; experiments without any are left out."""
    if wanted is not None:
        choose([cell for name in names for cell in EXPERIMENTS[name]], wanted)  # refuses names that match no cell
    found = {}
    for name in names:
        parts = [part for part in (wanted or "").split(",") if _any(EXPERIMENTS[name], part)]
        if wanted is None or parts:
            found[name] = choose(EXPERIMENTS[name], None if wanted is None else ",".join(parts))
    return found


def _any(cells: Sequence[Cell], part: str) -> bool:
    try:
        return bool(choose(cells, part))
    except InvalidInput:
        return False


@contextmanager
def _progress() -> Iterator[Show]:
    """One bar for all runs on a terminal; otherwise a line for each finished run."""
    done: dict[int, int] = {}
    current: list[Config] = []

    def begin(runs: list[Config]) -> None:
        """Count from the beginning if these are others than before."""
        if runs != current:
            done.clear()
            current[:] = runs

    if not log.is_terminal:

        def lines(runs: list[Config], number: int, rounds: int) -> None:
            begin(runs)
            if rounds == runs[number].rounds and done.get(number) != rounds:
                done[number] = rounds
                config = runs[number]
                words = f"{config.task} {config.method}, seed {config.seed}"
                say(f"{len(done)} of {len(runs)} runs: {words}")

        yield lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=log) as bars:
        bar = bars.add_task("starting", total=None)

        def show(runs: list[Config], number: int, rounds: int) -> None:
            begin(runs)
            done[number] = rounds
            finished = sum(done[n] == runs[n].rounds for n in done)
            total = sum(config.rounds for config in runs)
            bars.update(bar, description=f"{finished} of {len(runs)} runs", total=total, completed=sum(done.values()))

        yield show
