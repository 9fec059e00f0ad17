"""Run the cells of an experiment: what is recorded is not run again, and every run that ends is recorded."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dagc.comparison.runner import run_all
from dagc.errors import DagcError, InvalidInput
from dagc.folder import SCORE, finished, read_metrics, read_settings
from dagc.report import Panel, Run, find_runs, read_run
from dagc.training import Config, iterate
from research.cells import Cell, Variant
from research.origin import source_commit, stamp
from research.records import Record, Store, Tuned, described, identity, record_of
from research.stand_in import label_of, with_data
from research.tuning import TUNING_SEEDS, candidates_hash, tune

__all__ = ["TUNED_ON", "Laboratory", "known_choice", "known_tuning"]

HERE = Path(__file__).parent
TUNED_ON = range(TUNING_SEEDS, TUNING_SEEDS + 2)
"""The seeds that settings are chosen on."""
Progress = Callable[[list[Config], int, int], object]
"""`(all runs, the number of one of them, its rounds done) -> anything`."""


def goal_of(cell: Cell) -> float | None:
    """The accuracy that settings are chosen for: the cell's last target."""
    return cell.targets[-1] if cell.targets else None


def known_tuning(store: Store, experiment: str, cell: Cell, variant: Variant, stand_in: bool = True) -> Tuned | None:
    """What was chosen for a variant among exactly its candidates; None if that was not done."""
    candidates = cell.candidates(variant)
    found = store.tuned(experiment, cell, variant.label)
    fit = [one for one in found if one.answers(candidates, TUNED_ON, goal_of(cell))]
    return next((one for one in fit if stand_in or one.stand_in is None), None)


def known_choice(
    store: Store, experiment: str, cell: Cell, variant: Variant, stand_in: bool = True
) -> dict[str, Any] | None:
    """The settings that a variant is run with beside its own: None if they are to be tuned first."""
    if len(cell.candidates(variant)) == 1:
        return {name: values[0] for name, values in cell.grid(variant).items()}
    found = known_tuning(store, experiment, cell, variant, stand_in)
    return None if found is None else found.chosen


def train_until(
    settings: dict[str, Any],
    folder: Path,
    stopped: Callable[[], bool],
    score: float | None = None,
    commit: str | None = None,
) -> bool:
    """Train in a folder, stamped with the commit; a run that has reached the score is over, though not finished."""
    enough = math.inf if score is None else score
    rows = read_metrics(folder) if score is not None and (folder / "metrics.jsonl").exists() else []
    if any(row.get(SCORE, -math.inf) >= enough for row in rows):
        return True
    stamp(folder, commit)
    for result in iterate(Config(**settings), folder):
        if stopped():
            return False
        if result.score is not None and result.score >= enough:
            break
    return True


@dataclass(frozen=True)
class _Wanted:
    """A run that is asked for: by a cell, under a name, with the cell's settings and those for this machine."""

    experiment: str
    cell: Cell
    variant: str
    fields: dict[str, Any]
    here: dict[str, Any]
    stand_in: str | None


@dataclass(frozen=True)
class Laboratory:
    """Where experiments are run.

    Attributes:
        folder: Where runs are kept while they are made, and afterwards.
        store: The records.
        jobs: Runs at a time.
        device: Where to compute.
        data_dir: The data folder.
        stand_in: Whether a substitute may be used where data is not at hand.
        commit: What runs were made with whose folders do not say.
        progress: Called now and then.
    """

    folder: Path
    store: Store
    jobs: int = 1
    device: str = "cpu"
    data_dir: str | None = None
    stand_in: bool = False
    commit: str | None = None
    progress: Progress = field(default=lambda runs, number, done: None)

    def run(self, cells: Sequence[tuple[str, Cell]], seeds: int) -> list[Panel]:
        """Tune and run whatever is neither recorded nor finished in the folder.

        Killed or interrupted, the same call continues where it was.

        Args:
            cells: Each with the name of its experiment.
            seeds: How many.

        Returns:
            The runs of each cell, with all seeds.
        """
        tuned = [(name, self._tuned(name, cell)) for name, cell in cells]
        todo = self._todo(tuned, seeds)
        if todo:
            runs = [Config(**some[0].here) for some in todo.values()]
            asked = list(todo.values())

            def record(number: int, path: Path) -> None:
                self._record(path, asked[number])

            run_all(
                *(runs, self.folder / "runs", self.jobs),
                progress=lambda number, rounds: self.progress(runs, number, rounds),
                done=record,
                train=partial(train_until, commit=source_commit(HERE)),
            )
        kept = self._kept()
        found: dict[str, Run] = {}
        return [self._panel(cell, seeds, kept, found) for _, cell in tuned]

    def collect(self, cells: Sequence[tuple[str, Cell]], seeds: int) -> int:
        """Record what is finished in the folder, and run nothing.

        Returns:
            How many runs are not finished; those of variants that are not tuned yet are not counted.
        """
        ready = []
        for name, cell in cells:
            some = [
                (variant, known_choice(self.store, name, cell, variant, self.stand_in)) for variant in cell.variants
            ]
            there = replace(cell, variants=tuple(variant for variant, choice in some if choice is not None))
            ready.append((name, there.tuned([choice for _, choice in some if choice is not None])))
        return len(self._todo(ready, seeds))

    def _todo(self, cells: Sequence[tuple[str, Cell]], seeds: int) -> dict[str, list[_Wanted]]:
        """What is to be run: neither recorded nor finished in the folder. What is finished is recorded."""
        kept = self._kept()
        todo: dict[str, list[_Wanted]] = {}
        for one in self._missing(cells, seeds):
            todo.setdefault(identity(one.here), []).append(one)
        for key in [key for key in todo if key in kept]:
            self._record(kept[key], todo.pop(key))
        return todo

    def _tuned(self, experiment: str, cell: Cell) -> Cell:
        """The cell with what was chosen for its variants: before, or now."""
        chosen = []
        for variant in cell.variants:
            known = known_choice(self.store, experiment, cell, variant, self.stand_in)
            chosen.append(self._choose(experiment, cell, variant) if known is None else known)
        return cell.tuned(chosen)

    def _choose(self, experiment: str, cell: Cell, variant: Variant) -> dict[str, Any]:
        """Tune a variant, and record what was tried. Candidates that were tried before are not run again."""
        (here,) = with_data([cell], self.stand_in, self.data_dir)
        stand_in = label_of(cell, here)
        before = [
            one
            for one in self.store.tuned(experiment, cell, variant.label)
            if (one.seeds, one.target, one.stand_in) == (list(TUNED_ON), goal_of(cell), stand_in)
        ]
        tried = {candidate: outcome for one in before for candidate, outcome in one.outcomes.items()}
        where = {"device": self.device, "data_dir": self.data_dir}
        ways = [[{**fields, **where} for fields in here.candidates(variant)]]
        names, target = list(cell.grid(variant)), goal_of(cell)
        folder = self.folder / "tuning" / candidates_hash(ways, TUNED_ON, target)
        (choice,) = tune(
            *(ways, names, TUNED_ON, target, folder, self.jobs),
            watch=lambda configs: lambda number, done: self.progress(list(configs), number, done),
            known=lambda fields: tried.get(identity({**fields, "task": cell.fields["task"], "seed": TUNED_ON[0]})),
            train=partial(train_until, score=target, commit=source_commit(HERE)),
        )
        settings = described({**cell.candidates(variant)[0], "seed": TUNED_ON[0]})
        made = (list(TUNED_ON), target, source_commit(HERE), stand_in)
        found = Tuned(variant.label, *made, choice.chosen, choice.by, choice.tried, settings)
        self.store.add(experiment, cell, found)
        return found.chosen

    def _missing(self, cells: Sequence[tuple[str, Cell]], seeds: int) -> list[_Wanted]:
        """The runs of which no cell has a record; a record of another cell is this one's, too."""
        lacking: list[tuple[str, Cell, list[tuple[int, int]]]] = []
        for experiment, cell in cells:
            places = []
            for place, variant in enumerate(cell.variants):
                for seed in range(seeds):
                    known = self._known(self._fields(cell, variant, seed))
                    if known is None:
                        places.append((place, seed))
                    elif not self.store.has(experiment, cell, known, variant.label):
                        self.store.add(experiment, cell, known.called(variant.label))
            if places:
                lacking.append((experiment, cell, places))
        here = with_data([cell for _, cell, _ in lacking], self.stand_in, self.data_dir)
        found = []
        for (experiment, cell, places), located in zip(lacking, here, strict=True):
            for place, seed in places:
                variant = cell.variants[place]
                actual = {**self._fields(located, located.variants[place], seed), "data_dir": self.data_dir}
                fields = self._fields(cell, variant, seed)
                found.append(_Wanted(experiment, cell, variant.label, fields, actual, label_of(cell, located)))
        return found

    def _fields(self, cell: Cell, variant: Variant, seed: int) -> dict[str, Any]:
        return {**cell.settings(variant), "device": self.device, "seed": seed}

    def _known(self, fields: dict[str, Any]) -> Record | None:
        found = self.store.runs(fields)
        return next((one for one in found if self.stand_in or one.stand_in is None), None)

    def _kept(self) -> dict[str, Path]:
        """The finished runs in the folder, whatever version made them."""
        found = {}
        try:
            folders = find_runs([self.folder / "runs"])
        except InvalidInput:  # there is none
            return {}
        for path in folders:
            try:
                if finished(path):
                    found[identity(read_settings(path))] = path
            except DagcError:  # settings that this version does not know
                continue
        return found

    def _record(self, path: Path, asked: Sequence[_Wanted]) -> None:
        run = read_run(path)
        for one in asked:
            record = record_of(run, one.variant, one.fields, one.stand_in, self.commit)
            self.store.add(one.experiment, one.cell, record)

    def _panel(self, cell: Cell, seeds: int, kept: dict[str, Path], found: dict[str, Run]) -> Panel:
        """A cell's runs: from their folders, which say more, or from their records."""
        runs: list[list[Run]] = []
        labels = []
        for variant in cell.variants:
            runs.append([])
            for seed in range(seeds):
                fields = self._fields(cell, variant, seed)
                record, key = self._known(fields), identity(fields)
                assert record is not None  # recorded before, or just now
                if key not in found:
                    found[key] = read_run(kept[key]) if key in kept else record.run()
                runs[-1].append(found[key])
                labels.append(record.stand_in)
        return cell.panel(runs, labels)
