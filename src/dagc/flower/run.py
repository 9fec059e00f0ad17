"""The server's state of a run: the server's half of the protocol, the app's arrays beside it, and its folder."""

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase
from numpy.typing import NDArray

from dagc.errors import InvalidInput
from dagc.files import write_atomically
from dagc.flower.layout import AppModel, Layout
from dagc.folder import Folder, read_metrics, summary
from dagc.protocol import Download, Plan, Server, Upload

__all__ = ["FlowerFolder", "FlowerRun", "chain_of"]

MODEL = "model.npz"
ALONE = ""
"""The key of a number in a strategy's saved state."""


def chain_of(strategy: object) -> Iterator[object]:
    """A strategy, the one it wraps, and so on."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


class FlowerRun:
    """Everything that a checkpoint of the server holds.

    Attributes:
        layout: Which of the app's arrays is where.
        model: What the rounds made; the inner strategy works on it.
        server: The server's half of the protocol.
        names: The client at each of Flower's nodes. After a restart, a client may be at another node.
        full: Nodes without a name that could not create the first model themselves, and must download it.
        strategy: The inner strategy, whose state (FedAdam's moments, FedAvgM's momentum) is saved, too.
        metrics: The names of the metrics in the last round's valid replies; they decide if nodes disagree.
        evaluated: The same for evaluations.
        lineage: Drawn when the run started; nodes drop what they kept from another one.
        left_out: Why each node was left out of this round.
        recovering: Those of them that get the full model in the next round.
    """

    def __init__(
        self, arrays: ArrayRecord, plan: Plan, whole: tuple[str, ...], rounds: int, strategy: object = None
    ) -> None:
        """Start a run. What cannot work is refused here."""
        self.layout = Layout.of(arrays, whole)
        self.model = self.layout.split(arrays)
        self.server = Server(plan, self.model.vector, rounds, self.layout.shapes)
        self.names: dict[int, str] = {}
        self.full: set[int] = set()
        self.strategy = strategy
        self.metrics: list[str] = []
        self.evaluated: list[str] = []
        self.lineage = secrets.token_hex(8)
        self.left_out: dict[str, str] = {}
        self.recovering: set[str] = set()
        self.bytes_up, self.bytes_down, self.seconds = 0, 0, 0.0

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.server.round

    @property
    def served(self) -> AppModel:
        """The nodes' model: it is evaluated, and returned to the app in the end."""
        return AppModel(self.server.model, self.model.whole)

    def node(self, name: str) -> int | None:
        """The node at which a client is."""
        return next((node for node, known in self.names.items() if known == name), None)

    def meet(self, name: str, node: int, examples: float) -> None:
        """Note that a client is at this node now, and has the newest model."""
        self.server.join(name, examples)
        self.server.arrived(name, self.download(None, node))
        self.names = {**{other: known for other, known in self.names.items() if known != name}, node: name}

    def download(self, name: str | None, node: int) -> Download:
        """What a node must download; one that is not known yet may have created the first model itself."""
        return self.server.download(name, full=name is None and node in self.full)

    def out_of_sync(self, name: str | None, node: int) -> None:
        """Note that a node's model is not the expected one: it must download the full model."""
        if name is None:
            self.full.add(node)
        else:
            self.server.out_of_sync(name)

    def close(self, uploads: list[Upload], model: AppModel | None) -> None:
        """End a round in which these uploads led to this model; None if nothing changed."""
        if model is None:
            self.server.close([])
            return
        self.server.close(uploads, model.vector)
        self.model = model

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays of the state."""
        whole = {f"whole.{number}": array for number, array in enumerate(self.model.whole)}
        memory = {
            f"strategy.{name}.{key}": array for name, kept in self._memory().items() for key, array in kept.items()
        }
        return {**self.server.arrays(), **whole, **memory}

    def _memory(self) -> dict[str, dict[str | int, NDArray[Any]]]:
        """The arrays that the inner strategies keep between rounds, by attribute; not their copies of the model.

        A bound that adapts is kept as an array, too.
        """
        found: dict[str, dict[str | int, NDArray[Any]]] = {}
        for depth, strategy in enumerate(chain_of(self.strategy)):
            for name, value in vars(strategy).items():
                kept = dict(enumerate(value)) if isinstance(value, list) else value
                if name == "clipping_norm" and isinstance(strategy, DifferentialPrivacyAdaptiveBase):
                    kept = {ALONE: np.array(value, np.float64)}
                if name == "current_arrays" or not isinstance(kept, dict) or not kept:
                    continue
                if all(isinstance(array, np.ndarray) for array in kept.values()):
                    found["strategy." * depth + name] = kept
        return found

    def _remember(self, memory: Mapping[str, list[str | int]], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Give the inner strategy its arrays back."""
        strategies = list(chain_of(self.strategy))
        for path, keys in memory.items():
            *outer, name = path.split(".")
            if len(outer) >= len(strategies) or not hasattr(strategies[len(outer)], name):
                raise ValueError(f"the strategy has no {path!r:.50}")
            kept: Any = {key: arrays[f"strategy.{path}.{key}"] for key in keys}
            if keys == [ALONE]:
                kept = float(kept[ALONE])
            elif isinstance(keys[0], int):
                kept = list(kept.values())
            setattr(strategies[len(outer)], name, kept)

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, ready for JSON."""
        return {
            "round": self.round,
            "lineage": self.lineage,
            "layout": self.layout.text,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "nodes": [[node, name] for node, name in self.names.items()],
            "metrics": list(self.metrics),
            "evaluated": list(self.evaluated),
            "strategy": {name: list(kept) for name, kept in self._memory().items()},
            "server": self.server.numbers(),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any]) -> None:
        """Continue from `arrays` and `numbers`."""
        try:
            if numbers["layout"] != self.layout.text:
                raise ValueError("it is of a model with other arrays")
            if numbers["round"] and any(getattr(one, "accountant", None) for one in chain_of(self.strategy)):
                raise ValueError("the strategy's privacy accountant does not know what its rounds have spent")
            whole = [arrays[f"whole.{number}"] for number in range(len(self.model.whole))]
            self.server.load(arrays, numbers["server"])
            self.model = AppModel(torch.from_numpy(np.array(arrays.get("target", arrays["model"]))), whole)
            self.names = {int(node): str(name) for node, name in numbers["nodes"]}
            self.lineage, self.seconds = str(numbers["lineage"]), float(numbers["seconds"])
            self.bytes_up, self.bytes_down = int(numbers["bytes_up"]), int(numbers["bytes_down"])
            self.metrics = list(numbers.get("metrics", []))
            self.evaluated = list(numbers.get("evaluated", []))
            self._remember(numbers.get("strategy", {}), arrays)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"the checkpoint is not of this run: {error}; choose another run name") from error


class FlowerFolder(Folder):
    """What the server keeps of a run, as `dagc report` reads it.

    A ServerApp outlives a SuperLink that was killed until there is a new one, so the next waits for it.
    """

    patience = 60.0

    def __init__(self, path: Path, run: FlowerRun, settings: Mapping[str, Any]) -> None:
        """The folder of a run with these settings."""
        super().__init__(path, run)
        self._run, self._settings = run, {"engine": "flower", "task": path.name, **settings}
        self._known: dict[str, float] = {}
        self._orders: dict[str, Any] = {}

    def _claim(self, settings: dict[str, Any] | None) -> None:
        """Refuse a run of this name with another plan; it may have more rounds now."""
        ours = {name: value for name, value in self._settings.items() if name != "rounds"}
        theirs = {name: value for name, value in (settings or ours).items() if name != "rounds"}
        other = [
            f"{name} is {theirs.get(name)!r} there, {ours.get(name)!r} here"
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name)
        ]
        if other:
            raise InvalidInput(
                f"{self.path} holds another run ({'; '.join(other)}): choose another run name, set these back to "
                "continue it, or delete that folder"
            )

    def _key(self) -> str:
        """Of all settings but the number of rounds, which may grow."""
        same = {name: value for name, value in self._settings.items() if name != "rounds"}
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]

    def begin(self) -> None:
        """Write what is run, and a checkpoint: nodes keep what they learn under this lineage, if round 1 fails, too."""
        self.describe(self._settings, self._clients())
        self.save()

    def close_round(self, fields: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
        """Write a round's line and a checkpoint."""
        examples = {name: member.examples for name, member in self._run.server.members.items()}
        if examples != self._known:
            self._known, self._orders = examples, {**parameters, **self._orders}
            self.describe(self._settings, self._clients())
        self.record(fields)
        self.save()

    def finish(self) -> None:
        """Write the model by its arrays' names, then the result."""
        arrays = self._run.layout.join(self._run.served, wide=True)
        with self.writing(), write_atomically(self.path / MODEL) as file:
            np.savez(file, **{name: array.numpy() for name, array in arrays.items()})  # type: ignore[arg-type]
        self.conclude({**summary(read_metrics(self.path)), "model": MODEL})

    def _clients(self) -> dict[str, Any]:
        return {
            "notes": [f"{self.path.name} was trained with Flower; seconds are those of the clock on the wall"],
            "parameters": self._run.layout.size,
            "names": list(self._known),
            "sizes": [int(examples) for examples in self._known.values()],
            "first_parameters": [self._orders.get(name) for name in self._known],
        }
