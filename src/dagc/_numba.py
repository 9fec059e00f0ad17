"""The one place that decides whether compiled kernels are used, and how they are compiled."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from dagc.errors import InvalidInput

__all__ = ["compiled", "kernel"]


@cache
def compiled() -> bool:
    """Whether the CPU kernels run: numba can be imported and the environment does not say `DAGC_KERNELS=torch`.

    The results are the same bits either way. Found out at the first use, not when dagc is imported, and only once.
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
    """Compile at the first call and keep the machine code on disk, if there is a place to keep it.

    Without the interpreter's lock, so that threads run side by side; without fast-math, so that every machine rounds
    alike. Kernels never start threads of their own: those would not survive a fork.
    """
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for the cache can be written to: compile in every process, then
        return numba.njit(nogil=True)(function)
