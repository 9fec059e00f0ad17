"""The one place that decides whether compiled kernels are used, and how they are compiled."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from dagc.errors import InvalidInput


@cache
def compiled() -> bool:
    """Whether the CPU kernels are used, decided once, on first use; the results are the same bits either way."""
    choice = os.environ.get("DAGC_KERNELS", "auto")
    if choice not in ("auto", "torch"):
        raise InvalidInput(f"the environment variable DAGC_KERNELS must be auto or torch, not {choice!r}")
    if choice == "auto":
        try:
            import numba  # noqa: F401
        except ImportError:  # or it is too old for this numpy
            return False
    return choice == "auto"


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
    """A part of a kernel, inlined: a call would count references, and wait for all writes past the cache first."""
    if not compiled():
        return function
    import numba

    return numba.njit(inline="always")(function)
