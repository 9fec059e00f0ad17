"""The server's optimizer: the model as one vector, a step on it by any optimizer of torch, and schedules."""

import json
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache
from math import cos, pi
from typing import Any

import numpy as np
import torch
from torch import nn

SCHEDULES = ("constant", "linear", "cosine")
MOST_ROUNDS = 1_000_000  # of a schedule of torch's, which is stepped through before the first


def rate_at(schedule: str, first: float, round: int, rounds: int, options: Mapping[str, Any]) -> float:
    """The rate in a round, counted from 0. The first has the full rate; linear and cosine end just above 0.

    Any other schedule is a class of `torch.optim.lr_scheduler`, with these options.
    """
    if schedule not in SCHEDULES:
        return _stepped(schedule, first, rounds, json.dumps(options, sort_keys=True))[round]
    done = round / rounds
    if schedule == "linear":
        return first * (1 - done)
    return first * (1 + cos(pi * done)) / 2 if schedule == "cosine" else first


@lru_cache(maxsize=64)
def _stepped(schedule: str, first: float, rounds: int, options: str) -> tuple[float, ...]:
    """The rates of all rounds, each the same after a resume; ValueError if one is below 0 or not finite."""
    if rounds > MOST_ROUNDS:
        raise ValueError(f"{rounds:,} rounds are more than {MOST_ROUNDS:,}")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=first)
    scheduler = getattr(torch.optim.lr_scheduler, schedule)(optimizer, **json.loads(options))
    rates: list[float] = []
    with warnings.catch_warnings(action="ignore"):  # that the optimizer never steps
        for round in range(rounds):
            if round:
                scheduler.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
            if not -1e-9 * first <= rates[-1] < math.inf:  # a cosine may end a rounding error below 0
                raise ValueError(f"the rate of round {round + 1} is {rates[-1]:g}")
    return tuple(max(0.0, rate) for rate in rates)


def as_one_vector(model: nn.Module) -> torch.Tensor:
    """Move all trainable parameters of a model into one vector, and make them views of it. Returns the vector."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).to(torch.float32)
    for parameter, part in zip(parameters, torch.split(vector, [each.numel() for each in parameters]), strict=True):
        parameter.data = part.view(parameter.shape)
    return vector


def client_optimizer(
    name: str, parameters: list[nn.Parameter], rate: float, weight_decay: float
) -> torch.optim.Optimizer | None:
    """For a client's own steps in one round; None for SGD, whose steps are written out where they are taken."""
    if name == "SGD":
        return None
    options = {"weight_decay": weight_decay} if weight_decay else {}
    made: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=rate, **options)
    return made


class ServerOptimizer:
    """Moves a vector in place by the clients' weighted sum, with a class of `torch.optim` and its options."""

    def __init__(self, vector: torch.Tensor, name: str, **options: Any) -> None:
        self.vector = nn.Parameter(vector, requires_grad=False)
        self._options = options
        self._optimizer: torch.optim.Optimizer | None = None
        if name != "SGD" or options:  # plain SGD is one line here; torch's imports its compiler, which takes seconds
            self._optimizer = getattr(torch.optim, name)([self.vector], lr=1.0, **options)

    @property
    def has_momentum(self) -> bool:
        """Whether a step goes on from those before."""
        group = {} if self._optimizer is None else self._optimizer.param_groups[0]
        return any(group.get(name) for name in ("momentum", "betas"))

    def step(self, gradient: torch.Tensor, rate: float) -> None:
        """Take one step of this size."""
        gradient = gradient.to(self.vector.device)
        if self._optimizer is None:
            self.vector.data.add_(gradient, alpha=-rate)
        else:
            self.vector.grad = gradient
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state; not the vector."""
        memory = {} if self._optimizer is None else self._optimizer.state_dict()["state"].get(0, {})
        return {name: torch.as_tensor(value).cpu().numpy() for name, value in memory.items() if value is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; ValueError if it is that of another optimizer or model."""
        expected = set()
        if self._optimizer is not None:  # what it remembers after a step is known from one on a vector of one entry
            trial = ServerOptimizer(torch.zeros(1), type(self._optimizer).__name__, **self._options)
            trial.step(torch.ones(1), 1.0)
            expected = set(trial.state_dict())
        if state and set(state) != expected:
            raise ValueError(f"the optimizer's state has {', '.join(map(str, state))}, not {', '.join(expected)}")
        for name, value in state.items():
            if value.shape not in ((), tuple(self.vector.shape)) or not np.isfinite(value).all():
                raise ValueError(f"the optimizer's {name} is damaged, or that of another model")
        if self._optimizer is not None:
            memory = {name: torch.from_numpy(value.copy()) for name, value in state.items()}
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: memory} if memory else {}})
