"""Your own model, data, loss and metric, as passed to `dagc.train`, and whether the settings suit the data."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dagc.data import CATALOGUE, Dataset, Partition, load, make_partition
from dagc.data.dataset import tensors_of
from dagc.errors import InvalidInput, shown
from dagc.models import build
from dagc.training.config import OWN, SPLIT, Config, is_own
from dagc.training.objective import Loss, Metric

PER_CLIENT = 10  # with few samples, there is a client for this many
SKEWS = (50, 20, 10, 5, 2, 1)  # skew ratios to try, in this order, if there are few samples


@dataclass(frozen=True, eq=False)
class Custom:
    """What replaces the parts named by the task, None where nothing does. The model is never changed."""

    model: nn.Module | None = None
    data: Dataset | None = None
    partition: Partition | None = None
    loss: Loss | None = None
    metric: Metric | None = None

    @property
    def fingerprint(self) -> int | None:
        """A checksum of this model and data, by which a run's folder recognizes them; None if neither is given."""
        if self.model is None and self.data is None:
            return None
        tensors = [] if self.model is None else list(self.model.state_dict().values())
        if self.data is not None:
            tensors += [*tensors_of(self.data.train_x).values(), self.data.train_y]
            tensors += [*tensors_of(self.data.test_x).values(), self.data.test_y]
        checksum = 0
        for tensor in tensors:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            checksum = crc32(flat.view(torch.uint8).numpy() if flat.numel() else b"", checksum)
        return checksum

    def data_of(self, config: Config) -> Dataset:
        """The data: loaded, or those given. A task that names parts of your own that were not passed is refused."""
        for what, name, part in (("model", config.model, self.model), ("data", config.data, self.data)):
            if is_own(name) and part is None:
                raise InvalidInput(
                    f"task is {config.task!r}: pass your own {what} in Python, dagc.train(config, {what}=…)"
                )
        return _load(config, config.data) if self.data is None else self.data

    def model_of(self, config: Config, data: Dataset) -> nn.Module:
        """The model to train: built, or a copy of the one given."""
        if self.model is None:
            return build(config.model, data, seed=config.seed).to(config.device)
        try:
            return deepcopy(self.model).to(config.device).train()
        except (RuntimeError, TypeError) as error:
            raise InvalidInput(f"the model cannot be copied: {error}") from error


def customize(
    config: Config,
    model: nn.Module | str | None,
    data: Any,
    test: Any,
    partition: Partition | Mapping[Any, Any] | None,
    loss: Loss | None,
    metric: Metric | None,
) -> tuple[Config, Custom]:
    """What was given, checked, and the configuration with `own` for the parts that it replaces."""
    if not isinstance(config, Config):
        raise InvalidInput(f"config is {shown(config)}: write dagc.Config(…), or plan=")
    if isinstance(model, str):
        if data is None or "task" in config.explicit():
            raise InvalidInput(f"model is {model!r}: name one of ours with data= and no task, or give an nn.Module")
        config, model = config.replaced(task=f"{model}@{OWN}"), None
    if model is not None:
        _check_model(model)
    if test is not None and data is None:
        raise InvalidInput("test is given without data: give both, or name the data in the task")
    for name, value in (("loss", loss), ("metric", metric)):
        if value is not None and not callable(value):
            raise InvalidInput(f"{name} is {shown(value)}: give a function of what the model returns and y")
    dataset = None if data is None else _load(config, data, test)
    changes = {"task": _task(config, model is not None, data is not None)}
    if partition is not None:
        partition = partition if isinstance(partition, Partition) else _split(partition)
        if config.partition not in (None, OWN):
            raise InvalidInput(f"a partition is given and config.partition is {config.partition!r}: leave one out")
        changes["partition"] = OWN
    return config.replaced(**changes), Custom(model, dataset, partition, loss, metric)


def _load(config: Config, source: Any, test: Any = None) -> Dataset:
    columns = {"label": config.label, "client": config.client}
    return load(source, config.data_dir, config.augment, config.objective, test=test, **columns)


def fit_to_data(config: Config, data: Dataset) -> tuple[Config, tuple[str, ...]]:
    """The configuration with defaults that suit the data, and notes about that for the user.

    If the data names its clients, they are used instead of the paper's artificial split. If there are too few samples
    for that split, it gets fewer clients, less skewed. Settings that are given stay as they are.
    """
    if config.partition is not None:
        return config, ()
    chosen = [name for name in SPLIT if name in config.explicit()]
    if data.client is None or config.data in CATALOGUE:
        return _shrunk(config, data)
    if chosen:
        words = " and ".join(chosen)
        return config, (f"the clients that the data names are not used: {words} {'are' if chosen[1:] else 'is'} given",)
    note = f"the clients are those that the data names ({len(data.clients)}): partition by-client"
    return config.replaced(partition="by-client"), (note,)


def _shrunk(config: Config, data: Dataset) -> tuple[Config, tuple[str, ...]]:
    """The paper's split in a size that the data can fill, unless clients and skew are given."""
    chosen, samples = config.explicit(), len(data)
    clients = config.clients if "clients" in chosen else min(config.clients, max(2, samples // PER_CLIENT), samples)
    skews = [config.skew_ratio] if "skew_ratio" in chosen else [config.skew_ratio, *SKEWS]
    for number, skew in ((config.clients, config.skew_ratio), *((clients, skew) for skew in skews)):
        smaller = config.replaced(clients=number, skew_ratio=float(skew))
        try:
            split = make_partition(smaller.partition_spec, data, config.seed)
        except InvalidInput:
            continue
        if (number, skew) == (config.clients, config.skew_ratio):
            return config, ()
        if split.sizes.min() < 2 and skew > 1 and "skew_ratio" not in chosen:
            continue  # a client with one sample cannot train batch norm
        changes: dict[str, Any] = {"clients": number, "skew_ratio": float(skew)}
        if "batch_size" not in chosen:
            changes["batch_size"] = min(config.batch_size, max(1, samples // number))
        changed = [name for name in changes if changes[name] != getattr(config, name)]
        words = ", ".join(f"{name.replace('_', ' ')} {changes[name]:g}" for name in changed)
        return config.replaced(**changes), (f"{samples:,} samples are few, so defaults are smaller: {words}",)
    return config, ()  # too few for what was asked: the error says so


def _task(config: Config, model: bool, data: bool) -> str:
    """The task, with `own` for the parts that are given. A task that names something else is refused."""
    parts = []
    for passed, name, what in ((model, config.model, "model"), (data, config.data, "data")):
        if passed and not is_own(name) and "task" in config.explicit():
            raise InvalidInput(
                f"task is {config.task!r}, but {what} is also given: leave the task out, or write {OWN!r} for {what}"
            )
        parts.append(OWN if passed and not is_own(name) else name)
    return "@".join(parts)


def _split(partition: Mapping[Any, Any]) -> Partition:
    if not isinstance(partition, Mapping):
        raise InvalidInput(
            f"partition is {shown(partition)}: give a dagc.data.Partition, or a mapping from each client to the "
            'positions of its training samples, {"ann": [0, 1], …}; a text such as "by-client" is a field of Config'
        )
    for client, places in partition.items():
        if not np.issubdtype(np.asarray(places).dtype, np.integer):
            raise InvalidInput(f"partition: {client!r} has {shown(places)}: give the positions of its training samples")
    indices = tuple(np.asarray(places, dtype=np.int64) for places in partition.values())
    return Partition(indices, tuple(map(str, partition)))


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is {shown(model)}: give an nn.Module, or name one of ours")
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    for name, each in trained:
        if is_lazy(each):
            raise InvalidInput(f"the model's parameter {name!r} has no shape yet: run a batch through the model first")
        if each.dtype != torch.float32:
            raise InvalidInput(f"the model's parameter {name!r} is {each.dtype}: call model.float() first")
    if not trained:
        raise InvalidInput("the model has no parameter to train: at least one needs requires_grad")
