"""The configuration of a run: the plan, and what a simulated training needs besides, stored as TOML."""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

import torch

from dagc.data import CATALOGUE
from dagc.errors import InvalidInput, shown, unknown
from dagc.folder import read_settings
from dagc.models import MODELS
from dagc.network import make_network
from dagc.policies import Plan
from dagc.settings import group
from dagc.training.optimizer import SCHEDULES, ServerOptimizer, client_optimizer, rate_at

OWN = "own"
"""The model, data or partition passed to `dagc.train` in Python, in a task or as a partition."""
IRRELEVANT = ("threads", "data_dir", "checkpoint_every")  # settings that cannot change a result
UNUSABLE = ("Optimizer", "LBFGS", "SparseAdam", "LRScheduler", "ReduceLROnPlateau", "ChainedScheduler", "SequentialLR")
"""Classes of `torch.optim` that need more than a gradient, and of its schedulers that need more than numbers."""
SPLIT = ("clients", "skew_ratio", "label_alpha")
"""Settings of the default split of the data, which `partition` replaces."""
OWN_STEPS = ("client_optimizer", "client_momentum", "client_weight_decay", "server_rate", "server_schedule")
"""Settings that exist only if clients take several steps."""
_data, _training, _network, _run, _budget = map(group, ("Data", "Training", "Network", "Run", "Budget"))


def _task(task: str) -> str:
    model, at, data = task.partition("@")
    if not at:
        raise InvalidInput(f"task is {shown(task)}: write MODEL@DATA with a model of {', '.join(MODELS)}")
    if model not in MODELS and not is_own(model):
        raise unknown("model", model, MODELS)
    if data not in CATALOGUE and not is_own(data) and not os.path.exists(data):
        # os.path, since Path.exists fails on texts too long for a name
        if os.path.splitext(data)[1] or os.sep in data:
            raise InvalidInput(f"task: there is no file or folder {shown(data)}: give the path of your data")
        raise unknown("data set or path", data, CATALOGUE)
    return task


def _optimizer(name: str) -> str:
    kind = getattr(torch.optim, name, None)
    usable = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if not usable or name in UNUSABLE:
        words = "choose a class of torch.optim that only needs a gradient, e.g. SGD or Adam"
        kinds = [each for each in dir(torch.optim) if each[0].isupper() and each not in UNUSABLE]
        lower = re.sub("[-_ ]", "", name.lower())
        if lower in ("fedavgm", "sgdm", "momentum"):
            raise InvalidInput("write SGD, with momentum=0.9 (on the command line: --momentum 0.9)")
        lower = "sgd" if lower == "fedavg" else lower.removeprefix("fed")  # FedAdam is the server's Adam
        known = next((each for each in kinds if each.lower() == lower), None)
        raise InvalidInput(f"it is called {known}" if known else words)
    return name


def _network_spec(spec: str) -> str:
    make_network(spec)
    return spec


def _device(device: str) -> str:
    try:
        torch.zeros(1, device=device).cpu()  # fails on "meta", which has no data
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise InvalidInput(f"device is {shown(device)}: torch cannot use it: {why:.300}") from None
    return device


def _step_size(default: float | None, help: str, alias: str = "") -> Any:
    return _training(default, help, above=0, most=1e30, alias=alias)


def _scheduler(name: str) -> str:
    kinds = {each: kind for each, kind in vars(torch.optim.lr_scheduler).items() if isinstance(kind, type)}
    schedulers = [each for each, kind in kinds.items() if issubclass(kind, torch.optim.lr_scheduler.LRScheduler)]
    names = [*SCHEDULES, *(each for each in schedulers if each not in UNUSABLE)]
    if name in names:
        return name
    near = [each for each in names if each.lower() == name.lower()] or get_close_matches(name, names, n=1, cutoff=0.7)
    guess = f"did you mean {near[0]!r}? It" if near else "it"
    words = "constant, linear or cosine, or a class of torch.optim.lr_scheduler that needs only numbers, e.g. StepLR"
    raise InvalidInput(f"{guess} must be {words}")


def _schedule(whose: str) -> Any:
    help = f"of the {whose}: constant, linear or cosine (to 0), or any class of torch.optim.lr_scheduler, e.g. StepLR"
    return _training("constant", help, "text", parse=_scheduler)


@dataclass(frozen=True, init=False)
class Config(Plan):
    """What to train, how, and under which budget: every setting of a `Plan`, and those of the simulation.

    Example:
        >>> Config(task="mlp@digits", method="dagc-r", ratio=0.01).model
        'mlp'
        >>> Config(task="mlp@digits", method="quickest", ratio=0.01)
        Traceback (most recent call last):
        ...
        dagc.errors.InvalidInput: there is no method 'quickest': choose one of none, top-k, ...
    """

    task: str = _data("mlp@digits", "MODEL@DATA, e.g. mlp@digits; DATA may be a path to your own", "text", parse=_task)
    threshold_units: str = _budget(
        "update",
        "units of the threshold: gradient, or update = learning rate x gradient",
        "text",
        words=("update", "gradient"),
    )
    clients: int = _data(10, "number of clients", "integer", least=1)
    skew_ratio: float = _data(100.0, "size of the largest / size of the smallest client", least=1)
    label_alpha: float = _data(
        0.5, "Dirichlet parameter of the labels per client; inf for equal mixes", above=0, infinite=True
    )
    partition: str | None = _data(
        None, "another split, e.g. iid:clients=10 or by-client, instead of clients, skew ratio and label alpha", "text"
    )
    objective: str = _data(
        "auto",
        "what to learn: classification, regression, next-token; auto: depends on the data",
        "text",
        words=("auto", "classification", "regression", "next-token"),
    )
    label: str | None = _data(None, "column of your data to predict; label if not given", "text")
    client: str | None = _data(None, "column of your data with the owner of each row; client if not given", "text")
    data_dir: str | None = _run(None, "data folder; DAGC_DATA or the user's cache if not given", "text")
    augment: bool = _data(False, "crop and flip images", "switch")
    rounds: int = _training(1000, "number of rounds", "integer", least=1)
    learning_rate: float = _step_size(0.1, "step size; that of the clients' own steps if they take several", alias="lr")
    schedule: str = _schedule("learning rate")
    batch_size: int = _training(32, "examples per client and step", "integer", least=1)
    local_steps: int = _training(1, "steps per round; above 1 the model difference is sent", "integer", least=1)
    epochs: float | None = _training(
        None, "passes of every client over its own data per round, instead of local steps", above=0, most=1e6
    )
    client_optimizer: str = _training(
        "SGD", "optimizer of the clients' own steps: any class of torch.optim, afresh in every round", "text",
        parse=_optimizer,
    )  # fmt: skip
    client_momentum: float = _training(
        0.0, "momentum of the clients' own steps, reset in every round", least=0, below=1
    )
    client_weight_decay: float = _training(0.0, "weight decay of the clients' own steps", least=0, most=1e30)
    participation: float = _network(1.0, "fraction of the clients asked in a round", above=0, most=1)
    failures: float = _network(0.0, "probability that a client asked does not answer", least=0, below=1)
    late: float = _network(0.0, "probability that an upload arrives too late to be accepted", least=0, below=1)
    optimizer: str = _training("SGD", "the server's optimizer: any class of torch.optim", "text", parse=_optimizer)
    server_rate: float | None = _step_size(
        None, "step size of the server on the clients' model differences; 1 if not given"
    )
    momentum: float = _training(
        0.0,
        "Nesterov momentum of the server's steps: 0.9 ends higher than none; the server rate is then 0.5 if not given",
        least=0,
        below=1,
    )
    server_schedule: str = _schedule("server rate")
    schedule_options: Mapping[str, Any] = _training(
        {}, "options of torch's class in schedule or server schedule", "options", example='{"step_size": 10}'
    )
    optimizer_options: Mapping[str, Any] = _training(
        {}, "options of the optimizer", "options", example='{"momentum": 0.9}'
    )
    network: str = _network(
        "constant:up=8.4,down=8.4", "the links, for the simulated clock, in Mb/s", "text", parse=_network_spec
    )
    compute_seconds: float | str = _network(
        0.0, "compute time per client and round for the clock", least=0, most=1e9, words=("measured",)
    )
    evaluate_every: int | None = _run(
        None, "rounds between evaluations; a twentieth of all rounds if not given", "integer", least=1
    )
    checkpoint_every: int | None = _run(
        None, "rounds between checkpoints; a tenth of all rounds if not given", "integer", least=1
    )
    device: str = _run("cpu", "where to compute", "text", parse=_device)
    threads: int | None = _run(None, "number of threads; the result does not depend on it", "integer", least=1)

    @property
    def model(self) -> str:
        """The part of the task before the @."""
        return self.task.partition("@")[0]

    @property
    def data(self) -> str:
        """The part of the task after the @."""
        return self.task.partition("@")[2]

    @property
    def partition_spec(self) -> str:
        """How the data is split, as `dagc.data.make_partition` takes it."""
        skewed = f"skewed:clients={self.clients},skew_ratio={self.skew_ratio},label_alpha={self.label_alpha}"
        return self.partition or skewed

    @property
    def several_steps(self) -> bool:
        """Whether clients take steps of their own and send the difference of the model, instead of a gradient."""
        return self.local_steps > 1 or self.epochs is not None

    def plan(self) -> Plan:
        """What clients and server agree on, with the threshold in the units of what is compressed."""
        settings = {name: value for name, value in self.as_dict().items() if name in Plan.schema()}
        if self.threshold is not None and self.threshold_units != self._compressed:
            in_update, rate = self.threshold_units == "update", self.learning_rate
            settings["threshold"] = self.threshold / rate if in_update else self.threshold * rate
        return Plan(**settings)

    @property
    def _compressed(self) -> str:
        """What clients compress: with one local step a gradient, with more the difference of the model (the update)."""
        return "update" if self.several_steps else "gradient"

    def server_optimizer(self, vector: torch.Tensor) -> ServerOptimizer:
        """What moves the server's model, this vector."""
        nesterov: dict[str, Any] = {"momentum": self.momentum, "nesterov": True} if self.momentum else {}
        return ServerOptimizer(vector, self.optimizer, **{**nesterov, **self.optimizer_options})

    def key(self, names: Collection[str] | None = None) -> str:
        """A short hash of the settings, or of some; those that cannot change the result do not count."""
        chosen = set(self.schema() if names is None else names) - set(IRRELEVANT)
        deciding = {name: value for name, value in self.as_dict().items() if name in chosen}
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def read(cls, path: str | Path, **changes: Any) -> Self:
        """The configuration in a TOML file, with some fields changed."""
        return cls(**{**read_settings(path), **changes})

    def _check(self) -> None:
        super()._check()
        changed = self.changed()
        replaced = [name for name in SPLIT if name in changed]
        if self.partition is not None and replaced:
            raise InvalidInput(
                f"partition is {shown(self.partition)} and replaces {', '.join(replaced)}: leave those out, "
                "and put them into the partition, e.g. iid:clients=20"
            )
        if self.epochs is not None and self.local_steps != 1:
            raise InvalidInput(f"epochs is {self.epochs:g} and local_steps {self.local_steps}: give one of them")
        idle = [name for name in OWN_STEPS if name in changed]
        if idle and not self.several_steps:
            raise InvalidInput(
                f"{idle[0]} is {getattr(self, idle[0])!r}: with one local step clients send gradients, and only the "
                "server takes a step, with learning_rate and schedule: leave it out, or raise local_steps"
            )
        if self.client_momentum and self.client_optimizer != "SGD":
            raise InvalidInput(
                f"client_momentum is {self.client_momentum:g}, which is for SGD, not for {self.client_optimizer}: "
                "leave one of them out"
            )
        if self.threshold is not None and self.schedule != "constant" and self.threshold_units != self._compressed:
            raise InvalidInput(
                f"threshold_units is {self.threshold_units!r} and the {self._compressed} is compressed, but the "
                f"learning rate between them changes with the schedule {self.schedule!r}: give the {self._compressed}'s"
            )
        self.plan()
        self._check_schedules()
        self._check_optimizer()

    def _check_schedules(self) -> None:
        kinds = {name: getattr(self, name) for name in ("schedule", "server_schedule")}
        stepped = {name: kind for name, kind in kinds.items() if kind not in SCHEDULES}
        if self.schedule_options and not stepped:
            raise InvalidInput(
                f"schedule_options is {shown(dict(self.schedule_options))}: these are for a class of "
                f"torch.optim.lr_scheduler, not for {self.schedule}: leave them out, or write e.g. schedule StepLR"
            )
        for name, kind in stepped.items():
            first = self.learning_rate if name == "schedule" else self.server_rate or 1.0
            try:
                rate_at(kind, first, 0, self.rounds, self.schedule_options)
            except Exception as error:  # whatever a class of torch's may raise
                raise InvalidInput(
                    f"{name} is {kind!r} with schedule_options {shown(dict(self.schedule_options))}: "
                    f"torch.optim.lr_scheduler.{kind}: {str(error).partition(chr(10))[0]:.300}"
                ) from None

    def _check_optimizer(self) -> None:
        if self.momentum and (self.optimizer != "SGD" or "momentum" in self.optimizer_options):
            raise InvalidInput(
                f"momentum is {self.momentum:g}, which is for optimizer SGD without momentum of its own, not for "
                f"{self.optimizer} with {shown(dict(self.optimizer_options))}: leave one of them out"
            )
        try:
            self.server_optimizer(torch.zeros(1)).step(torch.zeros(1), 1.0)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InvalidInput(
                f"optimizer_options is {shown(self.optimizer_options)}: torch.optim.{self.optimizer}: {error!s:.300}"
            ) from None
        try:
            client_optimizer(self.client_optimizer, [torch.nn.Parameter(torch.zeros(1))], 1.0, self.client_weight_decay)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"client_optimizer is {self.client_optimizer}, with client_weight_decay {self.client_weight_decay:g}: "
                f"{error!s:.300}"
            ) from None


SOLUTION = tuple(
    name
    for name, each in {**Plan.schema(), **Config.schema()}.items()
    if each.group in ("Method", "Budget", "Bounds", "Training") and name != "batch_size"
)
"""The settings that describe how a problem is solved. All others, except the seed, describe the problem."""


def is_own(name: str) -> bool:
    """Whether a part of a task, or a partition, was passed in Python: it is `own`, or `own-` and a name."""
    return re.fullmatch(rf"{OWN}(-[\w-]+)?", name) is not None
