"""A rank's own model beside the shared one: where it begins, what it has moved, and what moves both."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from operator import is_

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dagc.errors import InvalidInput
from dagc.state import BLOCK, checksum, checksum_of_sums

REFUSED = {  # devices on which a step would fail half way, and what to do
    "meta": "they have no values yet: materialize the model first",
    "mps": "it lacks float64 and collective operations: move the model to the CPU or to CUDA",
}

SHARDED = {"DTensor", "FSDPModule", "FullyShardedDataParallel"}
"""Classes of parameters and modules of which a rank has only its part. Their modules need not be imported here."""


class Replica:
    """The exchanged parameters of a module, and the shared model as a float32 vector over them, on their device."""

    def __init__(self, model: nn.Module, local: Sequence[str]) -> None:
        self.model, self._local = model, local
        self.parameters = _exchanged(model, local)
        self.device = device_of(self.parameters)
        self.shapes = [tuple(parameter.shape) for parameter in self.parameters]
        self.shared = torch.cat([parameter.detach().reshape(-1).float() for parameter in self.parameters])
        self.start = self.shared  # where the local steps began; it may be the same memory
        self.velocity: Tensor | None = None  # of the outer optimizer, with momentum

    @property
    def vectors(self) -> list[Tensor]:
        return [self.shared] if self.velocity is None else [self.shared, self.velocity]

    def begin(self, at: Tensor) -> None:
        """Set the parameters, and count from there what they move. The vector is kept, not copied."""
        self.start = at
        self._set(self._parts(at))

    def moved(self) -> list[Tensor]:
        """What the parameters have moved, as float32; `begin` comes next, since float32 ones hold it themselves."""
        now = _exchanged(self.model, self._local)
        same = len(now) == len(self.parameters) and all(map(is_, now, self.parameters))
        if not same or [tuple(parameter.shape) for parameter in now] != self.shapes:
            raise InvalidInput(
                "the model's trainable parameters have changed since LocalSteps was made: change layers, freeze "
                "parameters or resize embeddings before, or make a new LocalSteps"
            )
        pairs = zip(self._parts(self.start), [parameter.detach() for parameter in now], strict=True)
        return [
            torch.sub(start, values, out=values)
            if values.dtype == torch.float32
            else start.to(values.dtype).float().sub_(values)
            for start, values in pairs
        ]

    def move(self, total: Tensor, rate: float, momentum: float) -> None:
        """The outer optimizer: plain, or with Nesterov's momentum; the same operations as those of torch's SGD."""
        if self.velocity is not None:
            self.velocity.mul_(momentum).add_(total)
            total.add_(self.velocity, alpha=momentum)
        self.shared.add_(total, alpha=-rate)

    @contextmanager
    def as_shared(self) -> Iterator[nn.Module]:
        before = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self._parts(self.shared))
        try:
            yield self.model
        finally:
            self._set(before)

    def _set(self, values: Sequence[Tensor]) -> None:
        for parameter, part in zip(self.parameters, values, strict=True):
            parameter.detach().copy_(part)

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """A vector in the shapes of the parameters, without copying it."""
        parts = torch.split(vector, [parameter.numel() for parameter in self.parameters])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def _exchanged(model: nn.Module, local: Sequence[str]) -> list[nn.Parameter]:
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
    chosen = dict(trainable)
    for pattern in local:
        matches = [name for name in trainable if fnmatch(name, pattern)]
        if not matches:
            raise InvalidInput(
                f"local: no trainable parameter is called {pattern!r}; there are {list(trainable)!r:.300}"
            )
        chosen = {name: p for name, p in chosen.items() if name not in matches}
    if not chosen:
        raise InvalidInput("there is nothing to exchange: no parameter needs a gradient, or all are local")
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise InvalidInput(f"parameter {name!r} is of type {parameter.dtype}: only real numbers are exchanged")
    return list(chosen.values())


def device_of(parameters: Sequence[Tensor]) -> torch.device:
    """The device of these parameters, if they are all on one that can be used."""
    devices = sorted({parameter.device for parameter in parameters}, key=str)
    if len(devices) != 1:
        raise InvalidInput(f"the trainable parameters must be on one device, not on {list(map(str, devices))}")
    if devices[0].type in REFUSED:
        raise InvalidInput(f"the trainable parameters are on {str(devices[0])!r}: {REFUSED[devices[0].type]}")
    return devices[0]


def tensor_checksum(vector: Tensor) -> int:
    """`dagc.state.checksum` of a float32 vector on any device, without copying it to the host."""
    if vector.is_cpu:
        return checksum(vector.numpy())
    end = vector.numel() * vector.element_size() // BLOCK * BLOCK // vector.element_size()
    sums = vector[:end].view(torch.int64).view(-1, BLOCK // 8).sum(dim=1)
    return checksum_of_sums(sums.cpu().numpy(), vector[end:].cpu().numpy())
