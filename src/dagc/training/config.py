"""The configuration of a run. Every field is checked before any work starts; it is stored as TOML."""

import hashlib
import json
import os
import re
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dagc.data import CATALOGUE
from dagc.errors import InvalidInput, shown, unknown
from dagc.folder import read_settings
from dagc.models import MODELS
from dagc.network import make_network
from dagc.policies import Plan
from dagc.policies.plan import with_defaults
from dagc.training.schedule import Schedule

__all__ = ["OWN", "SOLUTION", "Config", "is_own"]

OWN = "own"
"""The model, data or partition passed to `dagc.train` in Python, in a task or as a partition."""

SOLUTION = (
    *(each.name for each in fields(Plan) if each.name != "seed"),
    "threshold_units",
    "rounds",
    "learning_rate",
    "schedule",
    "local_steps",
    "epochs",
    "client_momentum",
    "client_weight_decay",
    "optimizer",
    "optimizer_options",
    "server_rate",
    "server_schedule",
)
"""The settings that describe how a problem is solved. All others, except the seed, describe the problem."""

PLAINER = {
    "Input should be": "it must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
    "a valid dictionary": "names and values",
}
"""Pydantic's words, and ours."""

IRRELEVANT = ("threads", "data_dir", "checkpoint_every")
"""Settings that cannot change a result."""


class Config(BaseModel):
    """What to train, how, and under which budget.

    Example:
        >>> Config(task="mlp@digits", method="dagc-r", ratio=0.01).model
        'mlp'
        >>> Config(task="mlp@digits", method="quickest", ratio=0.01)
        Traceback (most recent call last):
        ...
        dagc.errors.InvalidInput: there is no method 'quickest': choose one of none, top-k, ...
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str = Field("mlp@digits", description="MODEL@DATA, e.g. cnn@cifar-10; DATA may be a path to your own")
    method: str = Field("dagc", description="how each client's compression is chosen")
    ratio: float | None = Field(None, description="budget: the mean ratio of entries sent")
    threshold: float | None = Field(None, description="budget: the mean threshold")
    bytes: float | None = Field(None, description="budget: uploaded bytes per client and round, on average")
    rate: str | None = Field(
        None, description="budget: each client's uploaded bytes over time: 200 kB/training, or 1 MB/hour with --bytes"
    )
    threshold_units: Literal["update", "gradient"] = Field(
        "update", description="units of the threshold: gradient, or update = learning rate x gradient"
    )
    caps: dict[str, float] = Field(
        default_factory=dict, description='the largest ratio of a client, by name: {"3": 0.001}'
    )
    exponent: float | None = Field(
        None, description="exponent of a client's share of the data, for the method power; 2/3 if not given"
    )
    values: str = Field("fp32", description="value codec: see above")
    frames: str = Field("plain", description="kind of frames: see above")
    overhead: float | None = Field(
        None, description="clients wait until overhead is at most this fraction of a frame; with 0, nobody waits"
    )
    down: float | str | None = Field(
        None,
        description="what the server sends: lossless, same (as clients; more if they come rarely), or bytes per round",
    )
    first_model: str = Field("sent", description="initial model: sent to all clients, or drawn by each from the seed")
    step_ahead: float = Field(0.0, description="train ahead of the model by this fraction of what was not sent yet")
    per_tensor: bool = Field(False, description="select within each tensor of the model")
    options: dict[str, float] = Field(
        default_factory=dict, description='further options of the method: {"interval": 5}'
    )

    clip: float | None = Field(
        None, description="the largest norm of what a client sends in a round; the rest stays for later"
    )
    norm_bound: float | None = Field(
        None, description="reject uploads this many times larger than the median of recent ones"
    )
    most_examples: float | None = Field(None, description="count at most this many examples of a client")

    workers: int = Field(10, ge=1, description="number of clients")
    skew_ratio: float = Field(100.0, ge=1, description="size of the largest / size of the smallest client")
    label_alpha: float = Field(0.5, gt=0, description="Dirichlet parameter of the labels per client")
    partition: str | None = Field(
        None,
        description="another split, e.g. iid:clients=10 or by-client, instead of workers, skew ratio and label alpha",
    )
    objective: Literal["auto", "classification", "regression", "next-token"] = Field(
        "auto", description="what to learn: classification, regression, next-token; auto: depends on the data"
    )
    data_dir: str | None = Field(None, description="data folder; DAGC_DATA or the user's cache if not given")
    augment: bool = Field(False, description="crop and flip images")

    rounds: int = Field(1000, ge=1, description="number of rounds")
    learning_rate: float = Field(
        0.1, gt=0, le=1e30, description="step size; that of the clients' own steps if they take several"
    )
    schedule: Schedule = Field("constant", description="of the learning rate: constant, linear or cosine (to 0)")
    batch_size: int = Field(32, ge=1, description="examples per client and step")
    local_steps: int = Field(1, ge=1, description="steps per round; above 1 the model difference is sent")
    epochs: float | None = Field(
        None, gt=0, le=1e6, description="passes of every client over its own data per round, instead of local steps"
    )
    client_momentum: float = Field(
        0.0, ge=0, lt=1, description="momentum of the clients' own steps, reset in every round"
    )
    client_weight_decay: float = Field(0.0, ge=0, le=1e30, description="weight decay of the clients' own steps")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients asked in a round")
    failures: float = Field(0.0, ge=0, lt=1, description="probability that a client asked does not answer")
    late: float = Field(0.0, ge=0, lt=1, description="probability that an upload arrives too late to be accepted")
    optimizer: str = Field("SGD", description="the server's optimizer: any class of torch.optim")
    server_rate: float | None = Field(
        None, gt=0, le=1e30, description="step size of the server on the clients' model differences; 1 if not given"
    )
    server_schedule: Schedule = Field("constant", description="of the server rate: constant, linear or cosine (to 0)")
    optimizer_options: dict[str, bool | float | list[float]] = Field(
        default_factory=dict, description='options of the optimizer: {"momentum": 0.9}'
    )

    network: str = Field("constant:up=8.4,down=8.4", description="the links, for the simulated clock, in Mb/s")
    compute_seconds: float | Literal["measured"] = Field(
        0.0, description="compute time per client and round for the clock, or measured"
    )
    evaluate_every: int | None = Field(
        None, ge=1, description="rounds between evaluations; a twentieth of all rounds if not given"
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="rounds between checkpoints; a tenth of all rounds if not given"
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="determines partition, batches, model and failures")
    device: str = Field("cpu", description="where to compute")
    threads: int | None = Field(None, ge=1, description="number of threads; the result does not depend on it")

    def __init__(self, **fields: Any) -> None:
        """Check every field; `InvalidInput` names the field, the value and what is allowed."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InvalidInput("; ".join(_in_words(problem) for problem in error.errors())) from None

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
        skewed = f"skewed:clients={self.workers},skew_ratio={self.skew_ratio},label_alpha={self.label_alpha}"
        return self.partition or skewed

    @property
    def evaluation_interval(self) -> int:
        """Rounds between evaluations."""
        return self.evaluate_every or max(1, self.rounds // 20)

    @property
    def checkpoint_interval(self) -> int:
        """Rounds between checkpoints."""
        return self.checkpoint_every or max(1, self.rounds // 10)

    @property
    def several_steps(self) -> bool:
        """Whether clients take steps of their own and send the difference of the model, instead of a gradient."""
        return self.local_steps > 1 or self.epochs is not None

    def plan(self) -> Plan:
        """What clients and server agree on, with the threshold in the units of what is compressed.

        With one local step that is a gradient, with more the difference of the model (the update).
        """
        settings = {field.name: getattr(self, field.name) for field in fields(Plan)}
        compressed = "update" if self.several_steps else "gradient"
        if self.threshold is not None and self.threshold_units != compressed:
            in_update, rate = self.threshold_units == "update", self.learning_rate
            settings["threshold"] = self.threshold / rate if in_update else self.threshold * rate
        return Plan(**settings)

    def key(self) -> str:
        """A short hash that identifies the result: settings that cannot change it (threads, folders) are left out."""
        deciding = self.model_dump(exclude=set(IRRELEVANT))
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def read(cls, path: str | Path, **changes: Any) -> Self:
        """The configuration in a TOML file, with some fields changed."""
        return cls(**{**read_settings(path), **changes})

    @model_validator(mode="before")
    @classmethod
    def _method(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Fill in the method's own defaults, so that a run's folder has every setting."""
        return with_defaults(given)

    @field_validator("task")
    @classmethod
    def _task(cls, task: str) -> str:
        model, at, data = task.partition("@")
        if not at:
            raise ValueError(f"write MODEL@DATA with a model of {', '.join(MODELS)}")
        if model not in MODELS and not is_own(model):
            raise unknown("model", model, MODELS)
        if data not in CATALOGUE and not is_own(data) and not os.path.exists(data):
            # os.path, since Path.exists fails on texts too long for a name
            if os.path.splitext(data)[1] or os.sep in data:
                raise ValueError(f"there is no file or folder {shown(data)}: give the path of your data")
            raise unknown("data set or path", data, CATALOGUE)
        return task

    @field_validator("down", mode="before")
    @classmethod
    def _down(cls, down: Any) -> Any:
        try:
            return float(down) if isinstance(down, str) else down  # as the command line gives it
        except ValueError:
            return down

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, name: str) -> str:
        kind = getattr(torch.optim, name, None)
        if not (
            isinstance(kind, type)
            and issubclass(kind, torch.optim.Optimizer)
            and name not in ("Optimizer", "LBFGS", "SparseAdam")
        ):
            raise ValueError("choose a class of torch.optim that only needs a gradient, e.g. SGD or Adam")
        return name

    @field_validator("network")
    @classmethod
    def _network(cls, spec: str) -> str:
        make_network(spec)
        return spec

    @field_validator("device")
    @classmethod
    def _device(cls, device: str) -> str:
        try:
            torch.zeros(1, device=device).cpu()  # fails on "meta", which has no data
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"torch cannot use it: {str(error).splitlines()[0]:.300}") from None
        return device

    @field_validator("compute_seconds")
    @classmethod
    def _compute(cls, seconds: float | str) -> float | str:
        if not isinstance(seconds, str) and not 0 <= seconds <= 1e9:
            raise ValueError("give seconds, from 0 to 1e9, or 'measured'")
        return seconds

    @model_validator(mode="after")
    def _options(self) -> Self:
        ignored = [
            name
            for name in ("workers", "skew_ratio", "label_alpha")
            if self.partition is not None and getattr(self, name) != type(self).model_fields[name].default
        ]
        if ignored:
            raise ValueError(
                f"partition is {shown(self.partition)} and replaces {', '.join(ignored)}: leave those out, "
                "and put them into the partition, e.g. iid:clients=20"
            )
        self._check_steps()
        try:
            self.plan()
        except InvalidInput as error:
            raise ValueError(str(error)) from None
        if self.optimizer == "SGD" and not self.optimizer_options:
            return self  # nothing to try, and trying imports a lot
        try:
            tried = torch.nn.Parameter(torch.zeros(1))
            tried.grad = torch.zeros(1)
            getattr(torch.optim, self.optimizer)([tried], lr=1.0, **self.optimizer_options).step()
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(
                f"optimizer_options is {shown(self.optimizer_options)}: torch.optim.{self.optimizer}: {error!s:.300}"
            ) from None
        return self

    def _check_steps(self) -> None:
        if self.epochs is not None and self.local_steps != 1:
            raise ValueError(f"epochs is {self.epochs:g} and local_steps {self.local_steps}: give one of them")
        own = ("client_momentum", "client_weight_decay", "server_rate", "server_schedule")
        idle = [name for name in own if getattr(self, name) != type(self).model_fields[name].default]
        if idle and not self.several_steps:
            raise ValueError(
                f"{idle[0]} is {getattr(self, idle[0])!r}: with one local step clients send gradients, and only the "
                "server takes a step, with learning_rate and schedule: leave it out, or raise local_steps"
            )
        compressed = "update" if self.several_steps else "gradient"
        if self.threshold is not None and self.schedule != "constant" and self.threshold_units != compressed:
            raise ValueError(
                f"threshold_units is {self.threshold_units!r} and the {compressed} is compressed, but the learning "
                f"rate between them changes with the schedule {self.schedule!r}: give the {compressed}'s"
            )


def is_own(name: str) -> bool:
    """Whether a part of a task, or a partition, was passed in Python: it is `own`, or `own-` and a name.

    Example:
        >>> is_own("own"), is_own("own-transformer"), is_own("own-data.csv")
        (True, True, False)
    """
    return re.fullmatch(rf"{OWN}(-[\w-]+)?", name) is not None


def _in_words(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] != "value_error":
        for theirs, ours in PLAINER.items():
            message = message.replace(theirs, ours)
    if problem["type"] == "extra_forbidden":
        return str(unknown("setting", field, Config.model_fields))
    if not field:
        return str(message)
    choices = get_args(Config.model_fields[field].annotation) if field in Config.model_fields else ()
    given = problem["input"][:100] if isinstance(problem["input"], str) else ""
    near = get_close_matches(given, [each for each in choices if isinstance(each, str)], n=1)
    message = f"did you mean {near[0]!r}? {message[:1].upper()}{message[1:]}" if near else message
    return f"{field} is {shown(problem['input'])}: {message}"
