"""The one place that decides whether compiled kernels are used, and how they are compiled."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from dagc.errors import InvalidInput

__all__ = ["compiled", "inlined", "kernel"]


@cache
def compiled() -> bool:
    """Whether the CPU kernels are used: numba can be imported, and `DAGC_KERNELS=torch` is not set.

    The results are the same bits either way. This is decided once, on first use, not when dagc is imported.
    """
    choice = os.environ.get("DAGC_KERNELS", "auto")
    if choice not in ("auto", "torch"):
        raise InvalidInput(f"the environment variable DAGC_KERNELS must be auto or torch, not {choice!r}")
    if choice == "torch":
        return False
    try:
        import numba  # noqa: F401
    except ImportError:  # or it is too old for this numpy
        return False
    return True


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on the first call, and cache the machine code on disk if possible; without numba, run as plain Python.

    Kernels release the interpreter's lock, so that threads run in parallel, and do not use fast-math, so that every
    machine rounds alike. They never start threads of their own, which would not survive a fork.
    """
    if not compiled():
        return function
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable folder for the cache: compile in every process
        return numba.njit(nogil=True)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a kernel. It becomes part of the caller's code, where a call would count references to its arrays.

    Counting waits for all writes past the cache, which takes longer than a whole block.
    """
    if not compiled():
        return function
    import numba

    return numba.njit(inline="always")(function)
