"""The server: the model as one vector, its optimiser's step, and what each client must download to be up to date."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dagc.sparse import Sparse, aggregate
from dagc.training.downlink import Downlink

__all__ = ["Server", "as_one_vector"]


def as_one_vector(model: nn.Module) -> torch.Tensor:
    """Put all trainable parameters of a model into one vector, of which they become views; returns the vector."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).to(torch.float32)
    start = 0
    for parameter in parameters:
        parameter.data = vector[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    return vector


class Server:
    """The server's side of Algorithm 1, and the lossless downlink.

    A client that has the model of some earlier round downloads the new values of the entries that have changed since,
    in the same frame as an upload; one that is new downloads everything, and so does any where that is smaller.
    """

    def __init__(self, model: nn.Module, clients: int, optimizer: str, learning_rate: float, **options: Any) -> None:
        """Take the model over; its parameters become views of `vector`."""
        self.vector = nn.Parameter(as_one_vector(model))
        self.learning_rate = learning_rate
        self.optimizer: torch.optim.Optimizer | None = None
        if optimizer != "SGD" or options:  # plain SGD is a line; torch's imports its compiler, which takes seconds
            self.optimizer = getattr(torch.optim, optimizer)([self.vector], lr=learning_rate, **options)
        self.downlink = Downlink(len(self.vector))
        self.has = np.full(clients, -1, dtype=np.int64)  # the round whose model a client has
        self._update = torch.zeros(len(self.vector))

    def download(self, client: int) -> bytes:
        """The frame that brings a client up to date, which it then is."""
        since = int(self.has[client])
        self.has[client] = self.downlink.round
        return self.downlink.frame(self.vector, since)

    def step(self, uploads: Sequence[Sparse], weights: NDArray[np.float64]) -> None:
        """Σ pᵢ·uploadᵢ in the given order, then one step of the optimiser."""
        if not len(uploads):
            self.downlink.begin(self.downlink.round + 1)
            return
        before = self.vector.detach().clone()
        update = aggregate(uploads, weights, out=self._update).to(self.vector.device)
        if self.optimizer is None:
            self.vector.data.add_(update, alpha=-self.learning_rate)
        else:
            self.vector.grad = update
            self.optimizer.step()
        self.downlink.advance(before, self.vector.detach())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model, the optimiser's memory and what clients have, as tensors."""
        state = {
            "model": self.vector.detach(),
            "changed": torch.from_numpy(self.downlink.changed),
            "has": torch.from_numpy(self.has),
        }
        memory = {} if self.optimizer is None else self.optimizer.state_dict()["state"].get(0, {})
        for name, value in memory.items():
            if value is not None:
                state[f"optimizer.{name}"] = torch.as_tensor(value)
        return state

    def load_state_dict(self, state: dict[str, torch.Tensor], round: int) -> None:
        """Go on from there."""
        self.downlink.begin(round)
        self.vector.data.copy_(state["model"])
        self.downlink.changed[:], self.has[:] = state["changed"].numpy(), state["has"].numpy()
        memory = {
            name.removeprefix("optimizer."): value for name, value in state.items() if name.startswith("optimizer.")
        }
        if memory and self.optimizer is not None:
            whole = self.optimizer.state_dict()
            self.optimizer.load_state_dict({**whole, "state": {0: memory}})
