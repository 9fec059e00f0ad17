"""Run the cells of an experiment. A run that several of them share is done once, a finished one never again."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dagc.experiments.cells import Cell
from dagc.experiments.runner import run_all
from dagc.training import Config

__all__ = ["run_cells"]

Progress = Callable[[list[Config], int, int], object]
"""`(all runs, the number of one of them, its rounds done) -> anything`."""


def run_cells(
    cells: Sequence[Cell],
    seeds: int,
    folder: Path,
    jobs: int,
    device: str = "cpu",
    data_dir: str | None = None,
    progress: Progress = lambda runs, number, done: None,
) -> list[list[list[Path]]]:
    """Run everything that is not finished. Returns, for each cell and each of its variants, the folders by seed.

    If it was killed or interrupted, the same call continues.
    """
    wanted = [cell.configs(seeds, device=device, data_dir=data_dir) for cell in cells]
    once = {config.key(): config for cell in wanted for variant in cell for config in variant}
    runs = list(once.values())
    paths = run_all(runs, folder, jobs, lambda number, done: progress(runs, number, done))
    place = dict(zip(once, paths, strict=True))
    return [[[place[config.key()] for config in variant] for variant in cell] for cell in wanted]
