"""A rank's own model beside the shared one: where it begins, what it has moved, and what moves both."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import accumulate, pairwise
from operator import is_

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dagc.ddp.device import device_of
from dagc.errors import InvalidInput

__all__ = ["Replica"]

SHARDED = {"DTensor", "FSDPModule", "FullyShardedDataParallel"}
"""Classes of parameters and modules of which a rank has only its part. Their modules need not be imported here."""


class Replica:
    """The exchanged parameters of a module, and the shared model as a vector over them, on their device.

    Args:
        model: A plain module.
        local: Patterns of names of parameters that are not exchanged.

    Attributes:
        model: The module.
        parameters: Those that are exchanged, in the model's order; each keeps its type.
        shared: The shared model, float32.
        start: Where the local steps began, float32; it may be the memory of `shared` itself.
        velocity: Of the outer optimizer; None without momentum.
    """

    def __init__(self, model: nn.Module, local: Sequence[str]) -> None:
        self.model, self._local = model, local
        self.parameters = _exchanged(model, local)
        self.device = device_of(self.parameters)
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.shared = torch.cat([parameter.detach().reshape(-1).float() for parameter in self.parameters])
        self.start = self.shared
        self.velocity: Tensor | None = None

    @property
    def vectors(self) -> list[Tensor]:
        """What all ranks have in common."""
        return [self.shared] if self.velocity is None else [self.shared, self.velocity]

    def begin(self, at: Tensor) -> None:
        """Set the parameters, and count from there what they move. The vector is kept, not copied."""
        self.start = at
        self._set(at)

    def check(self) -> None:
        """Refuse to go on if the module's parameters are not those that it was made with."""
        now = _exchanged(self.model, self._local)
        same = len(now) == len(self.parameters) and all(map(is_, now, self.parameters))
        if not same or [tuple(parameter.shape) for parameter in now] != self.shapes:
            raise InvalidInput(
                "the model's trainable parameters have changed since LocalSteps was made: change layers, freeze "
                "parameters or resize embeddings before, or make a new LocalSteps"
            )

    def moved(self) -> list[Tensor]:
        """What the parameters have moved, as float32; `begin` comes next, since float32 ones hold it themselves."""
        moved = []
        for start, parameter in zip(self._parts(self.start), self.parameters, strict=True):
            now = parameter.detach()
            if now.dtype == torch.float32:
                moved.append(torch.sub(start, now, out=now))
            else:
                moved.append(start.to(now.dtype).float().sub_(now))
        return moved

    def move(self, total: Tensor, rate: float, momentum: float) -> None:
        """The outer optimizer: plain, or with Nesterov's momentum; the same operations as those of torch's SGD."""
        if self.velocity is not None:
            self.velocity.mul_(momentum).add_(total)
            total.add_(self.velocity, alpha=momentum)
        self.shared.add_(total, alpha=-rate)

    @contextmanager
    def as_shared(self) -> Iterator[nn.Module]:
        """The module with the shared parameters; its own come back afterwards."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self.shared)
        try:
            yield self.model
        finally:
            for parameter, values in zip(self.parameters, before, strict=True):
                parameter.detach().copy_(values)

    def _set(self, vector: Tensor) -> None:
        for parameter, part in zip(self.parameters, self._parts(vector), strict=True):
            parameter.detach().copy_(part)

    def _parts(self, vector: Tensor) -> Iterable[Tensor]:
        """A vector in the shapes of the parameters, without copying it."""
        ends = pairwise(accumulate(self.sizes, initial=0))
        return (vector[slice(*at)].view(shape) for at, shape in zip(ends, self.shapes, strict=True))


def _exchanged(model: nn.Module, local: Sequence[str]) -> list[nn.Parameter]:
    """The parameters to exchange, in the model's order."""
    if isinstance(model, DistributedDataParallel):
        raise InvalidInput("the model is wrapped in DDP, which exchanges in every step: give the module itself")
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    for part in (*model.modules(), *model.parameters()):
        if not SHARDED.isdisjoint(base.__name__ for base in type(part).__mro__):
            raise InvalidInput(
                f"the model is sharded, it has a {type(part).__name__}: every rank must hold the whole model, so leave "
                "out FSDP and tensor parallelism"
            )
    if isinstance(local, str):
        raise InvalidInput(f"local is {local!r}: give a list of patterns, e.g. [{local!r}]")
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad and p.numel()}
    for pattern in local:
        if not any(fnmatch(name, pattern) for name in trainable):
            raise InvalidInput(
                f"local: no trainable parameter is called {pattern!r}; there are {list(trainable)!r:.300}"
            )
    chosen = {name: p for name, p in trainable.items() if not any(fnmatch(name, pattern) for pattern in local)}
    if not chosen:
        raise InvalidInput("there is nothing to exchange: no parameter needs a gradient, or all are local")
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise InvalidInput(f"parameter {name!r} is of type {parameter.dtype}: only real numbers are exchanged")
    return list(chosen.values())
