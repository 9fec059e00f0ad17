"""`dagc reproduce`: the paper's tables and figures, cell by cell, next to the paper's own numbers."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dagc.cli.report import command_line, print_table
from dagc.cli.terminal import log, say
from dagc.errors import InvalidInput, unknown
from dagc.experiments import EXPERIMENTS, TITLES, Cell, choose, run_cells, with_data
from dagc.experiments.reproduce import Progress as Show
from dagc.report import Panel, Run, Series, read_run, sentence, write_report
from dagc.training import Config

__all__ = ["reproduce"]


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENTS)}, or all.")],
    cells: Annotated[
        str | None, typer.Option(help="Beginnings of cells' names, e.g. logistic/sr100,cnn/*/0.001.")
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
    list_cells: Annotated[bool, typer.Option("--list", help="Print the names of the cells and exit.")] = False,
) -> None:
    """Repeat the paper's experiments and write a page for each, with the paper's numbers next to ours.

    If it was killed or stopped with Ctrl-C, the same command continues; finished runs are not repeated.

    Example: dagc reproduce table3 --cells logistic --seeds 1 --iterations 200
    """
    if experiment != "all" and experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, [*EXPERIMENTS, "all"])
    chosen = _chosen(list(EXPERIMENTS) if experiment == "all" else [experiment], cells)
    if list_cells:
        for name, some in chosen.items():
            for cell in some:
                Console(highlight=False, soft_wrap=True).print(f"{name} {cell.name}: {cell.title}", markup=False)
        return
    ready = {
        name: [cell.shrunk(iterations) for cell in with_data(some, stand_in, data_dir)] for name, some in chosen.items()
    }
    everything = [cell for some in ready.values() for cell in some]
    try:
        with _progress() as show:
            paths = run_cells(everything, seeds, output / "runs", jobs or os.cpu_count() or 1, device, data_dir, show)
    except KeyboardInterrupt:
        say(f"stopped; finished work is in {output}, and the same command continues from there")
        raise
    read: dict[Path, Run] = {}
    for name, some in ready.items():
        panels = [_panel(cell, paths.pop(0), read) for cell in some]
        page = write_report(panels, output / name, TITLES[name], command_line())
        print_table(panels, TITLES[name])
        Console(highlight=False, soft_wrap=True).print(f"{sentence(panels)}\npage: {page}\n", markup=False)


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


def _panel(cell: Cell, paths: Sequence[Sequence[Path]], read: dict[Path, Run]) -> Panel:
    """A cell's runs; a folder that several cells share is read once."""
    series = []
    for variant, folders in zip(cell.variants, paths, strict=True):
        for folder in folders:
            read.setdefault(folder, read_run(folder))
        runs = tuple(read[folder] for folder in folders)
        series.append(Series(variant.label, runs, variant.paper))
    return Panel(cell.title, tuple(series), cell.targets, cell.paper, cell.notes)


@contextmanager
def _progress() -> Iterator[Show]:
    """One bar for all runs on a terminal; otherwise a line for each finished run."""
    done: dict[int, int] = {}
    if not log.is_terminal:

        def lines(runs: list[Config], number: int, rounds: int) -> None:
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
            done[number] = rounds
            finished = sum(done[n] == runs[n].rounds for n in done)
            total = sum(config.rounds for config in runs)
            bars.update(bar, description=f"{finished} of {len(runs)} runs", total=total, completed=sum(done.values()))

        yield show
