"""The server's optimizer: the model as one vector, and a step on it by any optimizer of torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["ServerOptimizer", "as_one_vector", "client_optimizer"]


def as_one_vector(model: nn.Module) -> torch.Tensor:
    """Move all trainable parameters of a model into one vector, and make them views of it. Returns the vector."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).to(torch.float32)
    start = 0
    for parameter in parameters:
        parameter.data = vector[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    return vector


def client_optimizer(
    parameters: list[nn.Parameter], name: str, rate: float, weight_decay: float
) -> torch.optim.Optimizer | None:
    """A client's optimizer for the steps of one round; None for SGD, which `Gradients` writes out."""
    if name == "SGD":
        return None
    options = {"weight_decay": weight_decay} if weight_decay else {}  # otherwise torch's default
    return getattr(torch.optim, name)(parameters, lr=rate, **options)  # type: ignore[no-any-return]


class ServerOptimizer:
    """Moves the server's model by the clients' weighted sum.

    Args:
        vector: The model; changed in place.
        name: A class of `torch.optim`.
        options: The options of that class, except the rate.

    Example:
        >>> vector = torch.tensor([1.0, 2.0])
        >>> ServerOptimizer(vector, "SGD").step(torch.tensor([1.0, 0.0]), rate=0.5)
        >>> vector
        tensor([0.5000, 2.0000])
    """

    def __init__(self, vector: torch.Tensor, name: str, **options: Any) -> None:
        self.vector = nn.Parameter(vector, requires_grad=False)
        self._options = options
        self._optimizer: torch.optim.Optimizer | None = None
        if name != "SGD" or options:  # plain SGD is one line here; torch's imports its compiler, which takes seconds
            self._optimizer = getattr(torch.optim, name)([self.vector], lr=1.0, **options)

    @property
    def has_momentum(self) -> bool:
        """Whether a step goes on from those before."""
        return self._optimizer is not None and any(
            self._optimizer.param_groups[0].get(name) for name in ("momentum", "betas")
        )

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
        expected = self._names()
        if state and set(state) != expected:
            raise ValueError(f"the optimizer's state has {', '.join(map(str, state))}, not {', '.join(expected)}")
        for name, value in state.items():
            if value.shape not in ((), tuple(self.vector.shape)) or not np.isfinite(value).all():
                raise ValueError(f"the optimizer's {name} is damaged, or that of another model")
        if self._optimizer is not None:
            memory = {name: torch.from_numpy(value.copy()) for name, value in state.items()}
            self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": {0: memory} if memory else {}})

    def _names(self) -> set[str]:
        """What this optimizer remembers after a step; found by one on a vector of one entry."""
        if self._optimizer is None:
            return set()
        trial = ServerOptimizer(torch.zeros(1), type(self._optimizer).__name__, **self._options)
        trial.step(torch.ones(1), 1.0)
        return set(trial.state_dict())
