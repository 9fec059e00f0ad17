"""The server's state of a run: the model, who takes part, what each may send; and the folder it is kept in."""

import secrets
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from dagc.errors import BudgetWarning, DagcError, InvalidInput
from dagc.flower.layout import Layout, Model, checksum
from dagc.flower.messages import record_of
from dagc.flower.roster import Client, Roster
from dagc.policies import Exchanging, Policy, Report, Setting, chosen_values, make_policy
from dagc.training import Config, Round, read_metrics
from dagc.training.downlink import Downlink
from dagc.training.folder import Folder
from dagc.wire.values import value_codec

__all__ = ["Budget", "Run", "ServerFolder"]

Budget = dict[str, Any]
"""`ratio`, `threshold`, `bytes`, `exponent` and `options`, as `dagc.policies.Setting` takes them."""


class Run:
    """Model, clients and policy; a checkpoint is this.

    Attributes:
        round: How many rounds are done.
        model: What they made.
        roster: Who takes part.
        reports: Of those who took part in the last round.
        lineage: Drawn when the run began; nodes drop what they kept of another one.
    """

    def __init__(self, arrays: ArrayRecord, method: str, budget: Budget, values: str, whole: Sequence[str]) -> None:
        """Begin; what cannot work is refused here."""
        self.method, self.budget = method, budget
        self.layout = Layout.of(arrays, whole)
        if values == "auto" and budget["bytes"]:
            raise InvalidInput("values='auto' with a budget in bytes would need to know all nodes: name a value codec")
        self.values = chosen_values(values, np.ones(1), self.layout.size, budget["ratio"])
        value_codec(self.values)
        self.model = self.layout.split(arrays)
        self.downlink = Downlink(self.layout.size)
        self.roster = Roster()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BudgetWarning)  # one client alone may have no use for all of it
            self.policy: Policy = self._policy(np.ones(1))
        self._weights: list[float] = []
        self.reports: list[Report] = []
        self.lineage = secrets.token_hex(8)
        self.bytes_up, self.bytes_down, self.seconds = 0, 0, 0.0
        self._checksum: int | None = None
        self._downloads: dict[int, tuple[ArrayRecord, int]] = {}

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.downlink.round

    @property
    def checksum(self) -> int:
        """Of the model's vector."""
        if self._checksum is None:
            self._checksum = checksum(self.model.vector.numpy())
        return self._checksum

    def download(self, since: int) -> tuple[ArrayRecord, int]:
        """What brings a client up to date that has the model of a round, and how many bytes that is."""
        if since not in self._downloads:
            payload = self.layout.pack(self.downlink.frame(self.model.vector, since), self.model.whole)
            self._downloads[since] = record_of(payload), len(payload)
        return self._downloads[since]

    def parameters(self, present: Sequence[Client], outlines: Mapping[int, NDArray[np.int64]]) -> list[Any]:
        """What each of these may use in the next round; `outlines` by their numbers, where the method asks for them."""
        weights = self.roster.weights
        if weights.tolist() != self._weights:  # somebody came, or has more data than before
            policy = self._policy(weights)
            policy.load_state_dict(self.policy.state_dict())
            self.policy, self._weights = policy, weights.tolist()
        numbers = [client.number for client in present]
        if not self.policy.needs_exchange:
            return self.policy.parameters(self.round, numbers, self.reports)
        policy = cast(Exchanging, self.policy)
        floors = policy.ask(numbers)
        told = [policy.tell(outlines[number], floor) for number, floor in zip(numbers, floors, strict=True)]
        return policy.answer(numbers, floors, told)

    def advance(self, model: Model | None, reports: list[Report]) -> None:
        """A round is done; it made this model, or None if it changed nothing."""
        self._downloads.clear()
        self.reports = reports
        if model is None:
            self.downlink.begin(self.round + 1)
            return
        if not model.vector.isfinite().all():
            raise DagcError(f"the strategy made a model with NaN or infinity in round {self.round + 1}")
        self.downlink.advance(self.model.vector, model.vector)
        self.model, self._checksum = model, None

    def _policy(self, weights: Any) -> Policy:
        return make_policy(self.method, Setting(weights, self.layout.size, values=self.values, **self.budget))

    def tensors(self) -> dict[str, torch.Tensor]:
        """All arrays of the state."""
        whole = {f"whole.{number}": torch.from_numpy(array) for number, array in enumerate(self.model.whole)}
        return {"vector": self.model.vector, "changed": torch.from_numpy(self.downlink.changed), **whole}

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, as JSON can hold it."""
        return {
            "round": self.round,
            "lineage": self.lineage,
            "layout": self.layout.text,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "clients": self.roster.state(),
            "reports": [list(report) for report in self.reports],
            "policy": self.policy.state_dict(),
        }

    def restore(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Go on from `tensors` and `numbers`."""
        try:
            if numbers["layout"] != self.layout.text:
                raise ValueError("it is of a model with other arrays")
            whole = [tensors[f"whole.{number}"].numpy() for number in range(len(self.model.whole))]
            self.model, self._checksum = Model(tensors["vector"], whole), None
            self.downlink.changed[:] = tensors["changed"].numpy()
            self.downlink.begin(int(numbers["round"]))
            self.lineage, self.seconds = str(numbers["lineage"]), float(numbers["seconds"])
            self.bytes_up, self.bytes_down = int(numbers["bytes_up"]), int(numbers["bytes_down"])
            self.roster.load(numbers["clients"])
            self.reports = [Report(*report) for report in numbers["reports"]]
            self.policy.load_state_dict(numbers["policy"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"the checkpoint is not of this run: {error}; choose another run name") from error


class ServerFolder(Folder):
    """What the server keeps of a run, as `dagc report` reads it.

    A ServerApp outlives a SuperLink that was killed until there is a new one, so the next waits for it.
    """

    patience = 60.0

    def __init__(self, path: Path, run: Run, rounds: int, seed: int) -> None:
        """The folder of a run that is to have so many rounds."""
        super().__init__(path, run)
        self._run, self._rounds, self._seed = run, rounds, seed
        self._known: list[float] = []

    def close_round(self, result: Round, parameters: dict[int, Any]) -> None:
        """Write a round's line and a checkpoint."""
        sizes = [client.examples for client in self._run.roster]
        if sizes != self._known:
            self._known = sizes
            self.describe(self._config(), self._clients(parameters))
        self.record(result)
        self.save()

    def finish(self) -> None:
        """Write the model by its arrays' names, and the result, if there is an accuracy to tell."""
        if any("accuracy" in row for row in read_metrics(self.path)):
            arrays = self._run.layout.join(self._run.model)
            self.conclude(
                {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}, self._config().key()
            )

    def _config(self) -> Config:
        """What ran, in the words of the local engine; not checked, since not all of them fit."""
        run, clients = self._run, len(self._run.roster)
        budget = {"budget_bytes" if name == "bytes" else name: value for name, value in run.budget.items()}
        budget["method_options"] = dict(budget.pop("options"))
        return Config.model_construct(
            task=self.path.name, method=run.method, values=run.values, rounds=self._rounds, workers=clients,
            partition=f"{clients} Flower nodes", seed=self._seed, **budget,
        )  # fmt: skip

    def _clients(self, parameters: dict[int, Any]) -> dict[str, Any]:
        run = self._run
        sizes = [int(client.examples) for client in run.roster]
        return {
            "data": self.path.name,
            "classes": ["examples"],
            "notes": [f"{self.path.name} was trained with Flower; seconds are those of the clock on the wall"],
            "parameters": run.layout.size,
            "sizes": sizes,
            "labels": [[size] for size in sizes],
            "first_parameters": [parameters.get(number) for number in range(len(sizes))],
        }
