"""The parts of an experiment: cells, each one setting in which several variants run with the same seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from dagc.errors import InvalidInput
from dagc.experiments.allocators import register
from dagc.training import Config

__all__ = ["Cell", "Variant", "choose"]


@dataclass(frozen=True)
class Variant:
    """One line of a picture, one column of a table.

    Attributes:
        label: Its name in tables and curves.
        fields: What it changes in the cell's `Config`: its method, its budget, its value codec.
        paper: The accuracy that the paper reports for it, in percent.
    """

    label: str
    fields: dict[str, Any]
    paper: float | None = None


@dataclass(frozen=True)
class Cell:
    """One setting of an experiment.

    Attributes:
        name: Words separated by slashes, such as `cnn/sr100/0.001`, for `--cells`.
        title: The title in reports.
        fields: The `Config` that all variants share.
        variants: What is compared; the first is the one that the paper proposes.
        targets: Accuracies; the report says when each is reached.
        evaluations: How many times a run is evaluated.
        paper: What the paper says about it, if that is not an accuracy in a table.
        notes: What differs from the paper.
    """

    name: str
    title: str
    fields: dict[str, Any]
    variants: tuple[Variant, ...]
    targets: tuple[float, ...] = ()
    evaluations: int = 20
    paper: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def data(self) -> str:
        """The data set that it needs."""
        return str(self.fields["task"]).partition("@")[2]

    def configs(self, seeds: int, **where: Any) -> list[list[Config]]:
        """For each variant, a configuration for every seed; `where` adds fields such as `device`."""
        for variant in self.variants:
            register(variant.fields["method"])
        rounds = self.fields["rounds"]
        interval = max(
            rounds // self.evaluations, 400 // self.evaluations, 1
        )  # a short run should not be all evaluation
        shared = {**self.fields, "evaluate_every": interval, "checkpoint_every": max(rounds // 10, 500), **where}
        return [
            [Config(**{**shared, **variant.fields, "seed": seed}) for seed in range(seeds)] for variant in self.variants
        ]

    def shrunk(self, iterations: int | None) -> "Cell":
        """The same cell with another number of iterations, and a note about that."""
        if iterations is None or iterations == self.fields["rounds"]:
            return self
        note = f"{iterations:,} iterations instead of {self.fields['rounds']:,}"
        return replace(self, fields={**self.fields, "rounds": iterations}, notes=(*self.notes, note))


def choose(cells: Sequence[Cell], wanted: str | None) -> list[Cell]:
    """The cells that a text selects: beginnings of names, separated by commas, with * for any word.

    Example:
        >>> cells = [Cell(name, "", {}, ()) for name in ("cnn/sr10/0.1", "cnn/sr100/0.1", "logistic/sr10/0.1")]
        >>> [cell.name for cell in choose(cells, "cnn/sr10")], len(choose(cells, "*/sr10,cnn"))
        (['cnn/sr10/0.1'], 3)
    """
    if wanted is None:
        return list(cells)
    patterns = [pattern.strip().split("/") for pattern in wanted.split(",")]
    for pattern in patterns:
        if not any(_begins(cell.name.split("/"), pattern) for cell in cells):
            known = ", ".join(cell.name for cell in cells)
            raise InvalidInput(f"no cell begins with {'/'.join(pattern)!r}: choose from {known}")
    return [cell for cell in cells if any(_begins(cell.name.split("/"), pattern) for pattern in patterns)]


def _begins(words: list[str], pattern: list[str]) -> bool:
    together = zip(words, pattern, strict=False)
    return len(pattern) <= len(words) and all(fnmatchcase(word, part) for word, part in together)
