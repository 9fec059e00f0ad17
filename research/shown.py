"""What the records say of a cell: its runs, and what was chosen for its variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagc.errors import InvalidInput
from dagc.report import Panel
from research.cells import Cell
from research.records import Record, Store, Tuned
from research.reproduce import known_choice, known_tuning

__all__ = ["Shown", "shown"]

MOST_SEEDS = 100


@dataclass(frozen=True, eq=False)
class Shown:
    """A cell as its records have it.

    Attributes:
        experiment: The experiment's name.
        cell: With what was chosen for its variants.
        panel: The runs, of the variants that have any.
        records: Of those runs.
        tuned: What was chosen.
    """

    experiment: str
    cell: Cell
    panel: Panel
    records: tuple[Record, ...]
    tuned: tuple[Tuned, ...]


def shown(experiment: str, cell: Cell, store: Store) -> Shown:
    """What the records say of a cell.

    Raises:
        InvalidInput: There is no record of it.
    """
    chosen = [known_choice(store, experiment, cell, variant) for variant in cell.variants]
    tuned = [one for variant in cell.variants if (one := known_tuning(store, experiment, cell, variant)) is not None]
    ready = cell.tuned([choice or {} for choice in chosen])
    runs: list[list[Record]] = []
    for variant, choice in zip(ready.variants, chosen, strict=True):
        wanted = [{**ready.settings(variant), "seed": seed} for seed in range(MOST_SEEDS)]
        runs.append([] if choice is None else _recorded(wanted, store))
    records = tuple(record for some in runs for record in some)
    if not records:
        raise InvalidInput(
            f"there is no record of {experiment} {cell.name} with {cell.fields['rounds']:,} rounds in {store.folder}: "
            f"python -m research reproduce {experiment} --cells {cell.name}"
        )
    panel = ready.panel([[record.run() for record in some] for some in runs], [one.stand_in for one in records])
    return Shown(experiment, ready, panel, records, tuple(tuned))


def _recorded(wanted: Sequence[Mapping[str, Any]], store: Store) -> list[Record]:
    """The records of these runs, up to the first seed that has none."""
    found: list[Record] = []
    for fields in wanted:
        records = store.runs(fields)
        if not records:
            break
        found.append(records[0])
    return found
