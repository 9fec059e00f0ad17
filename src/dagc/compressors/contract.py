"""What a compressor is: a function that selects entries, and what it says about its parameter."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

from dagc.compressors._vector import Gradient
from dagc.sparse import Sparse

__all__ = ["Compressor", "Parameter", "compressor"]

Parameter = Literal["entries", "threshold", "none"]
"""What a compressor's parameter is: a number of entries, a least magnitude, or nothing."""


class Compressor(Protocol):
    """A pure function from a vector and a parameter to some of the vector's entries, values unchanged.

    Attributes:
        parameter: What its parameter is. Whatever its type, a threshold is never taken for a number of entries.
    """

    parameter: Parameter

    def __call__(self, vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
        """Select entries.

        Args:
            vector: A tensor of any shape and float type, or the tensors of a model.
            parameter: The number of entries, or the threshold.
            seed: For compressors that draw at random; the others ignore it.
        """
        ...


def compressor(parameter: Parameter, *, adds: bool = False) -> Callable[[Callable[..., Sparse]], Compressor]:
    """Make a function a compressor: say what its parameter is.

    Args:
        parameter: "entries", "threshold" or "none".
        adds: Whether the function can add in the same pass: it then takes `residual` and `out`, too. It writes
            residual + vector to `out`, with zero for the selected entries, and selects from that sum. It refuses sums
            that are not finite and never writes to `residual`.

    Example:
        >>> @compressor("entries")
        ... def first(vector, parameter, *, seed=0):
        ...     return Sparse(len(vector), range(parameter), vector[:parameter])
        >>> first.parameter
        'entries'
    """

    def declare(select: Callable[..., Sparse]) -> Compressor:
        vars(select).update(parameter=parameter, adds=adds)
        return cast(Compressor, select)

    return declare
