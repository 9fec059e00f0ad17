"""`dagc data`: list data sets, download them, check them, and show a partition."""

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from dagc import data
from dagc.cli.options import AsJson
from dagc.errors import DagcError
from dagc.text import in_bytes, printable

__all__ = ["app"]

app = typer.Typer(help="Data sets: list, get, check, show.", no_args_is_help=True)

DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="The data folder (default: DAGC_DATA, or the user's cache).")
]

_COLOURS = ("blue", "red", "green", "yellow", "magenta", "cyan", "bright_blue", "bright_red", "bright_green", "white")
_SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyz"
_WIDTH = 50
_MOST_ROWS = 40


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets: which are here, their size, their classes and their licence."""
    root = data.data_folder(data_dir)
    places = {name: entry.locate(root) for name, entry in data.CATALOGUE.items()}
    sizes = {name: _size(place) for name, place in places.items() if place and data.CATALOGUE[name].sources}
    if as_json:
        sets = [
            {
                "name": name,
                "about": entry.about,
                "classes": entry.classes,
                "licence": entry.licence,
                "download": entry.size,
                "here": str(places[name]) if places[name] else None,
                "bytes": sizes.get(name),
            }
            for name, entry in data.CATALOGUE.items()
        ]
        print(json.dumps({"folder": str(root), "sets": sets}))
        return
    table = Table(title=f"Data folder: {root}", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "here", "size", "classes", "licence", "what"):
        whole = column not in ("licence", "what")
        table.add_column(column, justify="right" if column in ("size", "classes") else "left", no_wrap=whole)
    for name, entry in data.CATALOGUE.items():
        here = Text("yes", "green") if places[name] else Text("no", "yellow")
        size = in_bytes(sizes[name]) if name in sizes else entry.size
        table.add_row(name, here, size, str(entry.classes), entry.licence, entry.about)
    console = Console(highlight=False)
    console.print(table)
    console.print("Download one with dagc data get NAME. Your own data: the path of a file or folder.")


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="A name of `dagc data list`.")],
    data_dir: DataDir = None,
    mirror: Annotated[str | None, typer.Option(help="The address of a mirror with the same files.")] = None,
    force: Annotated[bool, typer.Option(help="Download again and replace what is here.")] = False,
) -> None:
    """Download a data set from its official address. An interrupted download continues where it stopped."""
    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = Progress(*columns, console=console)
    tasks: dict[str, TaskID] = {}

    def report(file: str, done: int, total: int | None) -> None:
        progress.start()  # only when there is something to show
        if file not in tasks:
            tasks[file] = progress.add_task(file, total=total)
        progress.update(tasks[file], completed=done, total=total)

    try:
        fetched = data.get(name, data_dir, mirror, force, report)
    finally:
        if tasks:
            progress.stop()
    entry = data.CATALOGUE[name]
    place = entry.locate(data.data_folder(data_dir))
    if fetched and any(source.checksum is None for source in entry.sources):
        console.print("No checksum is published for this file, so only its size was checked.", style="yellow")
    if place is None:
        console.print(
            f"{name} still needs its images and metadata.csv in {data.data_folder(data_dir) / name}: "
            "see docs/reference/data-sets.md",
            style="yellow",
        )
        raise typer.Exit(1)
    console.print(f"{name} is in {place}" + ("" if fetched else " already"), soft_wrap=True, markup=False)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Names or paths (default: all that are here).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Read every file of the data sets that are here, and report what is wrong; exit code 1 if anything is."""
    root = data.data_folder(data_dir)
    console = Console(highlight=False, soft_wrap=True)
    chosen = names or [entry.name for entry in data.CATALOGUE.values() if entry.locate(root) is not None]
    wrong = 0
    for name in chosen:
        try:
            found = data.load(name, data_dir)
        except DagcError as error:
            wrong += 1
            console.print(Text("wrong  ", "red") + Text(printable(f"{name}: {error}"), "default"))
            continue
        kind = f"{len(found.classes)} classes" if found.label_names else found.objective
        counts = f"{len(found):,} to train, {len(found.test_y):,} to test, {kind}"
        console.print(Text("right  ", "green") + Text(printable(f"{name}: {counts}"), "default"))
        for note in found.notes:
            console.print(f"       {printable(note)}", markup=False)
    if wrong:
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name of `dagc data list`, or the path of your own data.")],
    partition: Annotated[
        str | None,
        typer.Option(
            help=f"How to split it: {', '.join(data.PARTITIONS)}, with options after a colon (default: by the clients "
            "that the data names, or not at all)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The partition's seed.")] = 0,
    label: Annotated[str | None, typer.Option(help="The column to predict, if not label.")] = None,
    client: Annotated[str | None, typer.Option(help="The column with the owner of each row, if not client.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print a partition: sizes, skew ratio and the labels of each client.

    Example: dagc data show digits --partition skewed:clients=10,skew_ratio=10,label_alpha=0.5
    """
    loaded = data.load(name, data_dir, label=label, client=client)
    own = loaded.client is not None and name not in data.CATALOGUE
    partition = partition or ("by-client" if own else "iid:clients=1")
    split = data.make_partition(partition, loaded, seed)
    counts = split.label_counts(loaded.labels.numpy(), max(1, len(loaded.label_names)))
    if as_json:
        print(
            json.dumps(
                {
                    "name": loaded.name,
                    "partition": partition,
                    "seed": seed,
                    "samples": len(loaded),
                    "test_samples": len(loaded.test_y),
                    "shape": loaded.shape,
                    "objective": loaded.objective,
                    "classes": loaded.label_names,
                    "clients": split.names or list(range(len(split))),
                    "sizes": split.sizes.tolist(),
                    "skew_ratio": split.skew_ratio,
                    "labels": counts.tolist(),
                    "notes": loaded.notes,
                }
            )
        )
        return
    console = Console(highlight=False)
    console.print(
        f"{printable(loaded.name)}: {len(loaded):,} samples to train, {len(loaded.test_y):,} to test, "
        f"shape {loaded.shape}; {printable(partition)}, seed {seed}: {len(split):,} clients with "
        f"{split.sizes.sum():,} samples, "
        f"largest / smallest = {split.sizes.max():,} / {split.sizes.min():,} = {_plain(split.skew_ratio)}",
        markup=False,
    )
    for note in loaded.notes:
        console.print(printable(note), style="yellow", markup=False)
    console.print(_drawing(split, counts, console.width))
    if loaded.label_names:
        console.print(_legend(loaded.label_names))


def _drawing(split: data.Partition, counts: NDArray[np.int64], width: int) -> Table:
    """One line per client: its size, its share, and a bar of its labels."""
    groups = _groups(counts)
    table = Table(title="Labels per client", title_justify="left")
    for column in ("client", "samples", "share"):
        table.add_column(column, justify="right", no_wrap=True, max_width=20)
    table.add_column("labels", no_wrap=True)
    rows = list(range(len(split)))
    shown = rows if len(rows) <= _MOST_ROWS else [*rows[: _MOST_ROWS // 2], -1, *rows[-_MOST_ROWS // 2 :]]
    longest = max((len(name) for name in split.names), default=6)
    bar = max(10, min(_WIDTH, width - 32 - max(6, min(20, longest))))
    for client in shown:
        if client < 0:
            table.add_row("…", "…", "…", f"… {len(rows) - _MOST_ROWS:,} clients between")
            continue
        name = printable(split.names[client]) if split.names else str(client)
        table.add_row(Text(name), f"{split.sizes[client]:,}", f"{split.weights[client]:.2%}", _bar(groups[client], bar))
    return table


def _plain(number: float) -> str:
    return f"{number:,.2f}".rstrip("0").rstrip(".")


def _groups(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels to draw: all of them if there are enough symbols, else ten groups of neighbouring labels."""
    if counts.shape[1] <= len(_SYMBOLS):
        return counts
    edges = np.linspace(0, counts.shape[1], 11).astype(int)[:-1]
    return np.add.reduceat(counts, edges, axis=1)


def _bar(counts: NDArray[np.int64], width: int) -> Text:
    ends = np.round(np.cumsum(counts) / counts.sum() * width).astype(int)
    bar = Text()
    for label, cells in enumerate(np.diff(ends, prepend=0)):
        bar.append(_SYMBOLS[label] * int(cells), f"black on {_COLOURS[label % len(_COLOURS)]}")
    return bar


def _legend(classes: tuple[str, ...]) -> Text:
    if len(classes) > len(_SYMBOLS):
        edges = np.linspace(0, len(classes), 11).astype(int)
        classes = tuple(f"labels {edges[i]}–{edges[i + 1] - 1}" for i in range(10))
    legend = Text()
    for label, name in enumerate(classes):
        legend.append(_SYMBOLS[label], f"black on {_COLOURS[label % len(_COLOURS)]}")
        legend.append(f" {printable(name)}  ")
    return legend


def _size(place: Path) -> int:
    return sum(path.stat().st_size for path in [place, *place.rglob("*")] if path.is_file())
