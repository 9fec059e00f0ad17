"""The parts of an experiment: cells, each one setting in which several variants run with the same seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from dagc.errors import InvalidInput
from dagc.report import Panel, Run, Series
from dagc.training import Config

__all__ = ["THRIFTY", "Cell", "Variant", "choose"]

THRIFTY: dict[str, Any] = {"method": "thrifty", "first_bits": "exact"}
"""The method that needs the fewest bytes, as it was measured: before first models were rounded."""


@dataclass(frozen=True)
class Variant:
    """One line of a picture, one column of a table.

    Attributes:
        label: Its name in tables and curves.
        fields: What it changes in the cell's `Config`: its method, its budget, its value codec.
        paper: The accuracy that the paper reports for it, in percent.
        tune: Settings that only this one is tuned in, with the values to choose from.
    """

    label: str
    fields: dict[str, Any]
    paper: float | None = None
    tune: dict[str, tuple[Any, ...]] = field(default_factory=dict)


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
        tune: Settings that are chosen for every variant on other seeds, with the values to choose from; a variant that
            has such a setting in its fields keeps it.
    """

    name: str
    title: str
    fields: dict[str, Any]
    variants: tuple[Variant, ...]
    targets: tuple[float, ...] = ()
    evaluations: int = 20
    paper: str = ""
    notes: tuple[str, ...] = field(default=())
    tune: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """The data set that it needs."""
        return str(self.fields["task"]).partition("@")[2]

    def paper_of(self, label: str) -> float | None:
        """The accuracy that the paper reports for a variant, in percent."""
        return next((variant.paper for variant in self.variants if variant.label == label), None)

    @property
    def remark(self) -> str:
        """What the paper says about it and its variants, in one sentence; empty if that is nothing."""
        figures = [f"{each.label} {each.paper:.2f} %" for each in self.variants if each.paper is not None]
        words = [*([self.paper] if self.paper else []), *([", ".join(figures)] if figures else [])]
        return f"the paper: {'; '.join(words)}" if words else ""

    def settings(self, variant: Variant) -> dict[str, Any]:
        """The fields of a variant's `Config`, but for the seed."""
        rounds = self.fields["rounds"]
        interval = max(
            rounds // self.evaluations, 400 // self.evaluations, 1
        )  # a short run should not be all evaluation
        often = {"evaluate_every": interval, "checkpoint_every": max(rounds // 10, 500)}
        return {**often, **self.fields, **variant.fields}

    def configs(self, seeds: int, **where: Any) -> list[list[Config]]:
        """For each variant, a configuration for every seed; `where` adds fields such as `device`."""
        return [
            [Config(**{**self.settings(variant), **where, "seed": seed}) for seed in range(seeds)]
            for variant in self.variants
        ]

    def grid(self, variant: Variant) -> dict[str, tuple[Any, ...]]:
        """What is tuned for a variant, and the values to choose from."""
        return {name: values for name, values in {**self.tune, **variant.tune}.items() if name not in variant.fields}

    def candidates(self, variant: Variant) -> list[dict[str, Any]]:
        """The fields of every way in which a variant may be run: one, if nothing is tuned."""
        grid = self.grid(variant)
        points = product(*grid.values())
        return [{**self.settings(variant), **dict(zip(grid, point, strict=True))} for point in points]

    def tuned(self, chosen: Sequence[Mapping[str, Any]]) -> "Cell":
        """The same with what was chosen for each variant, and nothing left to choose."""
        variants = tuple(
            replace(variant, fields={**variant.fields, **some}, tune={})
            for variant, some in zip(self.variants, chosen, strict=True)
        )
        return replace(self, variants=variants, tune={})

    def panel(self, runs: Sequence[Sequence[Run]], labels: Iterable[str | None] = ()) -> Panel:
        """The runs of each variant beside each other; those without any are left out.

        Args:
            runs: For each variant.
            labels: What was used instead of the cell's data.
        """
        series = tuple(
            Series(variant.label, tuple(some)) for variant, some in zip(self.variants, runs, strict=True) if some
        )
        used = [label for label in dict.fromkeys(labels) if label is not None]
        return Panel(self.title, series, self.targets, (*self.notes, *used))

    def shrunk(self, iterations: int | None) -> "Cell":
        """The same cell with another number of iterations, and a note about that."""
        if iterations is None or iterations == self.fields["rounds"]:
            return self
        note = f"{iterations:,} iterations instead of {self.fields['rounds']:,}"
        return replace(self, fields={**self.fields, "rounds": iterations}, notes=(*self.notes, note))

    def only(self, wanted: str | None) -> "Cell":
        """The same cell with the variants whose names begin with one of some texts, separated by commas."""
        if wanted is None:
            return self
        begins = tuple(part.strip().casefold() for part in wanted.split(","))
        labels = [variant.label.casefold() for variant in self.variants]
        for part in begins:
            if not any(label.startswith(part) for label in labels):
                known = "; ".join(variant.label for variant in self.variants)
                raise InvalidInput(f"no variant of {self.name} begins with {part!r}: choose from {known}")
        return replace(self, variants=tuple(one for one in self.variants if one.label.casefold().startswith(begins)))


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
