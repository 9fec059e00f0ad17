"""The server's state of a run: the server's half of the protocol, the app's other arrays, and the run's folder."""

import hashlib
import json
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from dagc.errors import InvalidInput
from dagc.files import write_atomically
from dagc.flower.layout import AppModel, Layout
from dagc.flower.strategies import chain_of, has_momentum, load_strategy, strategy_state
from dagc.folder import Folder, read_metrics, summary
from dagc.protocol import Download, ModelServer, Plan, Upload
from dagc.protocol.outlook import check_rounds
from dagc.state import Stateful, all_or_nothing, fields, finite, listed, nested, text, whole

MODEL = "model.npz"
METRIC = "accuracy"
"""What a round's score measures."""


class FlowerRun(Stateful):
    """One start of the server; `state_dict` is what a checkpoint holds of it."""

    FITS = "this run"
    REMEDY = ": choose another run name"
    STATE = fields(
        lineage=text, bytes_up=whole, bytes_down=whole, metrics=listed(text), evaluated=listed(text), server=nested
    )

    def __init__(
        self,
        arrays: ArrayRecord,
        plan: Plan,
        whole: Sequence[str],
        rounds: int,
        strategy: object,
        attributes: Collection[str] | None = None,
    ) -> None:
        self.rounds, self.layout = rounds, Layout.of(arrays, whole)
        model = self.layout.split(arrays)
        self.server = ModelServer(plan, model.vector, rounds, self.layout.shapes, has_momentum(strategy))
        self.model = AppModel(self.server.target.clone(), model.whole)  # what the rounds made, perhaps rounded first
        self.strategy, self.attributes = strategy, attributes
        self.names: dict[int, str] = {}  # the client at each of Flower's nodes; it may change with a restart
        self.uninformed: set[str] = set()  # clients that have lost the setup
        self.strangers: dict[int, int] = {}  # the model versions of nodes without a name, such as those that evaluate
        self.metrics: list[str] = []  # the names of the metrics in the last valid replies, if nodes disagree
        self.evaluated: list[str] = []  # the same for evaluations
        self.lineage = secrets.token_hex(8)  # drawn when the run began: nodes drop what they kept of another one
        self.token = secrets.token_hex(8)  # drawn at this start
        self.bytes_up = self.bytes_down = 0
        self.poor = 0  # how many rounds in a row too few nodes have contributed to
        self.began = time.monotonic()
        keys = (getattr(each, "weighted_by_key", None) for each in chain_of(strategy))
        self.examples = str(next(filter(None, keys), "num-examples"))  # the metric that is a node's weight

    @property
    def round(self) -> int:
        return self.server.round

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def served(self) -> AppModel:
        """The nodes' model: it is evaluated, and returned to the app in the end."""
        return AppModel(self.server.model, self.model.whole)

    def download(self, name: str | None, node: int, joins: bool = False) -> Download:
        """What a node must download. One that is not known yet may have created the first model itself.

        One that joins where frames are coded downloads the whole model: it must remember what the others do.
        """
        if name is not None:
            return self.server.download(name)
        late = joins and self.server.plan.frames == "coded"
        return self.server.introduction(None if late else self.strangers.get(node))

    def check_rounds(self, present: int) -> None:
        """Refuse a budget under which nobody would send anything, and warn about one with which little is learned."""
        examples = {name: member.examples for name, member in self.server.members.items()}
        check_rounds(self.server.plan, self.layout.size, examples, self.rounds, present)

    def advance(self, uploads: Sequence[Upload], model: AppModel | None) -> None:
        """End a round in which these uploads led to this model; None if nothing changed."""
        self.server.advance(uploads if model is not None else [], None if model is None else model.vector)
        self.model = self.model if model is None else model

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "round": self.round,
            "seconds": self.seconds,
            "layout": self.layout.text,
            "nodes": [[node, name] for node, name in self.names.items()],
            "uninformed": sorted(self.uninformed),
            "whole": self.model.whole,
            "strategy": strategy_state(self.strategy, self.attributes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with all_or_nothing(self, self.FITS):
            if state["layout"] != self.layout.text:
                raise ValueError("it is of a model with other arrays")
            if state["round"] and any(getattr(each, "accountant", None) for each in chain_of(self.strategy)):
                raise ValueError("the strategy's privacy accountant does not know what its rounds have spent")
            arrays = [array for array, _ in zip(state["whole"], self.model.whole, strict=True)]
            super().load_state_dict(state)
            self.model = AppModel(self.server.target.clone(), arrays)
            self.names = {whole(node): text(name) for node, name in state["nodes"]}
            self.uninformed = set(listed(text)(state["uninformed"]))
            self.began = time.monotonic() - finite(state["seconds"])
            load_strategy(self.strategy, self.attributes, state["strategy"])


class FlowerFolder(Folder):
    """What the server keeps of a run, as `dagc report` reads it.

    A ServerApp outlives a SuperLink that was killed until there is a new one, so the next waits for it.
    """

    patience = 60.0

    def __init__(self, path: Path, run: FlowerRun, rounds: int, settings: Mapping[str, Any]) -> None:
        super().__init__(path, run)
        self._run, self._rounds = run, rounds
        self._settings = {"engine": "flower", "task": path.name, **settings}
        self._known: dict[str, float] = {}
        self._first: dict[str, Any] = {}

    def _claim(self, settings: dict[str, Any] | None) -> None:
        """Refuse a run of this name with another plan; it may have more rounds now."""
        wanted, held = self._settings, dict(settings or self._settings)
        held.pop("rounds", None)
        differences = [
            f"{name} is {held.get(name)!r} there, {wanted.get(name)!r} here"
            for name in sorted({*wanted, *held})
            if wanted.get(name) != held.get(name)
        ]
        if differences:
            raise InvalidInput(
                f"{self.path} holds another run ({'; '.join(differences)}): choose another run name, set these back to "
                "continue it, or delete that folder"
            )

    def _key(self) -> str:
        return hashlib.sha256(json.dumps(self._settings, sort_keys=True).encode()).hexdigest()[:12]

    def begin(self) -> None:
        """Write what is run, and a checkpoint: nodes keep what they learn under this lineage, even if round 1 fails."""
        self.describe({**self._settings, "rounds": self._rounds}, self._clients())
        self.save()

    def close_round(self, fields: Mapping[str, Any], amounts: Mapping[str, Any]) -> None:
        examples = {name: member.examples for name, member in self._run.server.members.items()}
        if examples != self._known:
            self._known, self._first = examples, {**amounts, **self._first}
            self.describe({**self._settings, "rounds": self._rounds}, self._clients())
        self.record(fields)
        self.save()

    def finish(self) -> None:
        arrays = self._run.layout.join(self._run.served, wide=True)
        with self.writing(), write_atomically(self.path / MODEL) as file:
            np.savez(file, **{name: array.numpy() for name, array in arrays.items()})  # type: ignore[arg-type]
        self.conclude({**summary(read_metrics(self.path)), "model": MODEL})

    def _clients(self) -> dict[str, Any]:
        return {
            "notes": [f"{self.path.name} was trained with Flower; seconds are those of the clock on the wall"],
            "metric": METRIC,
            "parameters": self._run.layout.size,
            "names": list(self._known),
            "sizes": [int(examples) for examples in self._known.values()],
            "first_parameters": [self._first.get(name) for name in self._known],
        }
