"""Data-aware gradient compression: each client sends as much as its data is worth, and keeps the rest.

The path of a gradient: `allocate` decides who may send how much, `ErrorFeedback` adds what was not sent before and
selects entries, `encode` and `decode` are the wire, `aggregate` is the server's sum.
"""

from logging import NullHandler, getLogger
from typing import TYPE_CHECKING, Any

from dagc import errors
from dagc._memory import release_memory
from dagc.allocation import ALLOCATORS, Allocator, allocate, entries
from dagc.compressors import COMPRESSORS, Compressor, everything, hard_threshold, per_tensor, random_k, top_k
from dagc.errors import *  # noqa: F403
from dagc.errors import needs_extra
from dagc.feedback import ErrorFeedback
from dagc.policies import Plan
from dagc.sparse import Sparse, aggregate
from dagc.wire import VALUE_CODECS, decode, encode, payload_size, quantize

if TYPE_CHECKING:
    from dagc.training import Callback, Config, Result, iterate, train

getLogger(__name__).addHandler(NullHandler())  # quiet, unless an application configures logging

__version__ = "0.2.0"  # pyproject.toml reads it here

__all__ = [
    "ALLOCATORS",
    "COMPRESSORS",
    "VALUE_CODECS",
    "Allocator",
    "Callback",
    "Compressor",
    "Config",
    "ErrorFeedback",
    "Plan",
    "Result",
    "Sparse",
    "aggregate",
    "allocate",
    "decode",
    "encode",
    "entries",
    "everything",
    "hard_threshold",
    "iterate",
    "payload_size",
    "per_tensor",
    "quantize",
    "random_k",
    "release_memory",
    "top_k",
    "train",
]
__all__ += errors.__all__

LAZY = ("Callback", "Config", "Result", "iterate", "train")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})


def __getattr__(name: str) -> Any:
    """`train` and `Config` are loaded on first use, so that code that only compresses does not load the rest."""
    if name in LAZY:
        with needs_extra(f"dagc.{name}", "lab"):
            from dagc import training
        return getattr(training, name)
    raise AttributeError(f"module 'dagc' has no attribute {name!r}")
