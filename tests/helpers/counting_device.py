"""A device that counts: tensors that claim to be elsewhere, and every copy and synchronization with the host.

There is no GPU here. `Elsewhere` wraps a CPU tensor and reports another device, so that code takes its device path;
every operation runs on the wrapped tensor. Whatever crosses between such a tensor and a plain CPU tensor is counted.
"""

import sys
from collections import Counter
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
SYNCHRONIZES = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::unique_dim"}
"""Operations whose result the host waits for."""


class Elsewhere(torch.Tensor):
    """A tensor that seems to be on another device."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=device()
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return Counts().__torch_dispatch__(operation, types, args, kwargs)  # outside of `counting`

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert a tensor on another device to numpy: use .cpu() first")

    def tolist(self):
        return self.cpu().tolist()


class Wrapped(torch.nn.parallel.DistributedDataParallel):
    """What the hook needs of a model in DDP, whose reducer knows only real devices."""

    def __init__(self, parameters):
        nn.Module.__init__(self)
        self.module = nn.Module()
        self.module.parts = nn.ParameterList(parameters)
        self.parameters_to_ignore, self.process_group = [], dist.group.WORLD
        self.find_unused_parameters, self.static_graph = True, False


class Counts(TorchDispatchMode):
    """Runs every operation on the wrapped tensors, and counts what crosses; `waits` counts by function of dagc."""

    def __init__(self):
        super().__init__()
        self.to_host = self.to_device = self.largest = self.synchronizations = 0
        self.names = Counter()
        self.waits = Counter()

    def __str__(self):
        bytes_each_way = f"{self.to_host:,} B to the host, {self.to_device:,} B to the device"
        return f"{bytes_each_way}, {self.synchronizations} synchronizations: {dict(self.names)}"

    def crossed(self, count, name, to_host):
        self.names[name] += 1
        self.largest = max(self.largest, count)
        if to_host:
            self.to_host += count
            self.synchronizations += 1
            self.waits[_asked_by()] += 1
        else:
            self.to_device += count

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        here = any(isinstance(leaf, Elsewhere) for leaf in leaves)
        asked = kwargs.get("device")
        wanted = None if asked is None else torch.device(asked).type
        if wanted == NAME:
            kwargs["device"] = torch.device("cpu")
        name = operation._schema.name
        if here:
            for leaf in leaves:
                if not isinstance(leaf, Elsewhere) and leaf.dim():
                    to_host = name == "aten::copy_" and leaf is args[0]
                    self.crossed(leaf.nbytes, f"{name} with a CPU tensor", to_host)
        if name in SYNCHRONIZES and here:
            self.crossed(0 if name != "aten::_local_scalar_dense" else 8, name, True)
        if name in ("aten::index", "aten::index_put_") and here and any(_is_mask(index) for index in args[1]):
            self.crossed(0, "a mask as index", True)
        result = operation(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        leaves_there = here and wanted != "cpu" and not (name == "aten::copy_" and not isinstance(args[0], Elsewhere))
        if here and wanted == "cpu":
            self.crossed(result.nbytes, name, True)
        if not here and wanted == NAME and leaves:
            self.crossed(result.nbytes, name, False)
        if not (leaves_there or wanted == NAME):
            return result
        changed = {id(leaf.inner): leaf for leaf in leaves if isinstance(leaf, Elsewhere)}
        return tree_map(lambda leaf: _wrapped(leaf, changed), result)


def _asked_by():
    """The function of dagc for which the host waits."""
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("dagc."):
            return f"{name.removeprefix('dagc.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside"


def _is_mask(index):
    return index is not None and index.dtype == torch.bool


def _inner(value):
    return value.inner if isinstance(value, Elsewhere) else value


def _wrapped(value, known):
    if not isinstance(value, torch.Tensor):
        return value
    return known.get(id(value)) if id(value) in known else Elsewhere(value)


_ready = False


def device():
    """The device that these tensors claim to be on."""
    global _ready
    if not _ready:
        _setup_privateuseone_for_python_backend(NAME)
        _ready = True
    return torch.device(NAME, 0)


@contextmanager
def counting():
    """Count everything inside the block."""
    device()
    with Counts() as counts:
        yield counts
