"""What to do if a data set of the paper is not here: say how to get it, or use a named substitute."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dagc.data import CATALOGUE, data_folder
from dagc.errors import MissingData
from research.cells import Cell
from research.data import ENTRIES

__all__ = ["STAND_INS", "at_hand", "label_of", "with_data"]

_LARGEST, _SECOND, _SMALLEST, _REGIONS = 79_958, 44_900, 16, 15


@dataclass(frozen=True)
class StandIn:
    """A substitute for a data set.

    Attributes:
        data: A name of the catalogue, or a file in the data folder.
        label: What outputs call it.
        fields: Further changes of the configuration.
    """

    data: str
    label: str
    fields: dict[str, Any]


def _regions() -> str:
    """Fifteen sizes like Flickr's: the published largest, second and smallest, and a geometric series in between."""
    steps = _REGIONS - 2
    inner = [round(_SECOND * (_SMALLEST / _SECOND) ** (step / steps)) for step in range(steps + 1)]
    return "/".join(str(size) for size in (_LARGEST, *inner))


STAND_INS = {
    "speech-commands": StandIn(
        "audiomnist-by-speaker.npz", "stand-in: spoken digits (AudioMNIST) instead of Speech Commands", {}
    ),
    "flickr-mammal": StandIn(
        "cifar-10",
        "stand-in: CIFAR-10 split by a synthetic profile of 15 regions (79,958 … 16) instead of Flickr-Mammal",
        {"partition": f"from-sizes:sizes={_regions()},scale=true,label_alpha=0.5"},
    ),
}
"""A substitute for each data set that is hard to get."""


def at_hand(name: str, root: Path) -> bool:
    """Whether the original is in the data folder. Another folder of spoken words does not count as Speech Commands."""
    if name not in ENTRIES:
        return True  # it comes with dagc, or is a file
    place = ENTRIES[name].locate(root)
    return place is not None and (name != "speech-commands" or place.name.startswith("speech_commands"))


def label_of(cell: Cell, located: Cell) -> str | None:
    """What is used instead of a cell's data, if `with_data` has replaced it."""
    return STAND_INS[cell.data].label if cell.data in STAND_INS and cell.data != located.data else None


def with_data(cells: Sequence[Cell], stand_in: bool, data_dir: str | None = None) -> list[Cell]:
    """The cells with data that is here: the original or, if allowed, its stand-in, with a note about that."""
    root = data_folder(data_dir)
    missing = {cell.data for cell in cells if not at_hand(cell.data, root)}
    problems = []
    for name in sorted(missing):
        if stand_in and name in STAND_INS:
            substitute = STAND_INS[name].data
            if substitute in CATALOGUE:
                if not at_hand(substitute, root):
                    problems.append(_how_to_get(substitute, root))
            elif not (root / substitute).exists():
                problems.append(
                    f"the stand-in {substitute} is not in {root}: docs/how-to/own-data.md says how to make it"
                )
        else:
            other = f", or add --stand-in ({STAND_INS[name].label})" if name in STAND_INS else ""
            problems.append(_how_to_get(name, root) + other)
    if problems:
        raise MissingData("; ".join(problems) + "; or leave its cells out with --cells")
    return [_replaced(cell, root) if cell.data in missing else cell for cell in cells]


def _replaced(cell: Cell, root: Path) -> Cell:
    substitute = STAND_INS[cell.data]
    model = cell.fields["task"].partition("@")[0]
    place = substitute.data if substitute.data in CATALOGUE else str(root / substitute.data)
    fields = {**cell.fields, **substitute.fields, "task": f"{model}@{place}"}
    return replace(cell, fields=fields, notes=(*cell.notes, substitute.label))


def _how_to_get(name: str, root: Path) -> str:
    return f"{name} is not in {root}: python -m research data get {name} (see docs/reference/data-sets.md)"
