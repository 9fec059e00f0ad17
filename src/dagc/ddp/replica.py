"""A rank's own model beside the shared one: where it begins, what it has moved, and what moves both."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dagc.errors import InvalidInput

__all__ = ["Replica"]


class Replica:
    """The exchanged parameters of a module, and the shared model as a vector over them.

    Args:
        model: A plain module.
        local: Patterns of names of parameters that are not exchanged.

    Attributes:
        parameters: Those that are exchanged, in the model's order; each keeps its type.
        shared: The shared model, float32.
        start: Where the local steps began, float32; it may be the memory of `shared` itself.
        velocity: Of the outer optimiser; None without momentum.
    """

    def __init__(self, model: nn.Module, local: Sequence[str]) -> None:
        """The parameters are the shared model at first."""
        self.parameters = _exchanged(model, local)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.shared = torch.cat([parameter.detach().reshape(-1).float() for parameter in self.parameters])
        self.start = self.shared
        self.velocity: Tensor | None = None

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the parameters."""
        return [tuple(parameter.shape) for parameter in self.parameters]

    @property
    def device(self) -> torch.device:
        """Where all of them are."""
        return self.shared.device

    @property
    def vectors(self) -> list[Tensor]:
        """What all ranks have in common."""
        return [self.shared] if self.velocity is None else [self.shared, self.velocity]

    def begin(self, at: Tensor) -> None:
        """Set the parameters, and count from there what they move. The vector is kept, not copied."""
        self.start = at
        for parameter, part in zip(self.parameters, self._parts(at), strict=True):
            parameter.detach().copy_(part)

    def moved(self) -> list[Tensor]:
        """What the parameters have moved, as float32; `begin` comes next, since float32 ones hold it themselves."""
        found = []
        for start, parameter in zip(self._parts(self.start), self.parameters, strict=True):
            now = parameter.detach()
            if now.dtype == torch.float32:
                found.append(torch.sub(start, now, out=now))
            else:
                found.append(start.to(now.dtype).float() - now.float())
        return found

    def move(self, total: Tensor, rate: float, momentum: float) -> None:
        """The outer optimiser: plain, or with Nesterov's momentum; the same operations as those of torch's SGD."""
        if self.velocity is not None:
            self.velocity.mul_(momentum).add_(total)
            total.add_(self.velocity, alpha=momentum)
        self.shared.add_(total, alpha=-rate)

    def _parts(self, vector: Tensor) -> Iterable[Tensor]:
        """A vector in the shapes of the parameters, without copying it."""
        ends = pairwise(accumulate(self.sizes, initial=0))
        return (vector[slice(*at)].view(p.shape) for at, p in zip(ends, self.parameters, strict=True))


def _exchanged(model: nn.Module, local: Sequence[str]) -> list[nn.Parameter]:
    """The parameters to exchange, in the model's order."""
    if isinstance(model, DistributedDataParallel):
        raise InvalidInput("the model is wrapped in DDP, which exchanges in every step: give the module itself")
    if isinstance(local, str):
        raise InvalidInput(f"local is {local!r}: give a list of patterns, e.g. [{local!r}]")
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad and p.numel()}
    for pattern in local:
        if not any(fnmatch(name, pattern) for name in trainable):
            raise InvalidInput(
                f"local: no trainable parameter is called {pattern!r}; there are {list(trainable)!r:.300}"
            )
    found = {name: p for name, p in trainable.items() if not any(fnmatch(name, pattern) for pattern in local)}
    if not found:
        raise InvalidInput("there is nothing to exchange: no parameter needs a gradient, or all are local")
    for name, parameter in found.items():
        if not parameter.is_floating_point():
            raise InvalidInput(f"parameter {name!r} is of type {parameter.dtype}: only real numbers are exchanged")
    devices = {parameter.device for parameter in found.values()}
    if len(devices) > 1:
        raise InvalidInput(f"the exchanged parameters must be on one device, not on {sorted(map(str, devices))}")
    return list(found.values())
