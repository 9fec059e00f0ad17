"""`python -m research data`: list the data sets of the experiments, and download them."""

from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from dagc.data import data_folder
from dagc.errors import unknown
from research.data import ENTRIES
from research.data.download import fetch_all

__all__ = ["app"]

app = typer.Typer(help="The data sets of the experiments: list, get.", no_args_is_help=True)
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="The data folder (default: DAGC_DATA, or the user's cache).")
]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the data sets: which are here, the size of their download and their license."""
    root = data_folder(data_dir)
    table = Table(title=f"Data folder: {root}", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "here", "size", "license", "what"):
        table.add_column(column, no_wrap=column in ("name", "here", "size"))
    for entry in ENTRIES.values():
        here = "yes" if entry.locate(root) else "no"
        table.add_row(entry.name, here, entry.size, entry.license, entry.about)
    Console(highlight=False).print(table)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name of `python -m research data list`.")],
    data_dir: DataDir = None,
    mirror: Annotated[str | None, typer.Option(help="The address of a mirror with the same files.")] = None,
    force: Annotated[bool, typer.Option(help="Download again and replace what is here.")] = False,
) -> None:
    """Download a data set from its official address. An interrupted download continues where it stopped."""
    if name not in ENTRIES:
        raise unknown("data set", name, ENTRIES)
    entry, root = ENTRIES[name], data_folder(data_dir)
    console = Console(highlight=False, soft_wrap=True)
    place = entry.locate(root)
    if place is not None and not force:
        console.print(f"{name} is in {place} already", markup=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def report(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=total)
            progress.update(tasks[file], completed=done, total=total)

        fetch_all(entry.sources, root, mirror, report)
    if any(source.checksum is None for source in entry.sources):
        console.print("No checksum is published for this file, so only its size was checked.", style="yellow")
    place = entry.locate(root)
    if place is None:
        needed = "still needs its images and metadata.csv in"
        console.print(f"{name} {needed} {root / name}: see docs/reference/data-sets.md", style="yellow", markup=False)
        raise typer.Exit(1)
    console.print(f"{name} is in {place}", markup=False)
