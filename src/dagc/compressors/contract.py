"""What a compressor is: a function that selects entries, and what it says about its parameter."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast

import torch

from dagc.compressors._vector import Gradient
from dagc.sparse import Sparse

__all__ = ["AddAndSelect", "Compressor", "Parameter", "compressor"]

Parameter = Literal["entries", "threshold", "none"]
"""What a compressor's parameter is: a number of entries, a least magnitude, or nothing."""


class AddAndSelect(Protocol):
    """Select from residual + gradient in fewer passes than an addition and the compressor would take."""

    def __call__(
        self, parts: Sequence[torch.Tensor], residual: torch.Tensor, out: torch.Tensor, parameter: Any, seed: int
    ) -> Sparse:
        """Write residual + gradient to `out`, with zero for what is selected; return what is selected.

        It raises `NonFiniteGradient` if the sum is not finite, and never writes to `residual`.

        Args:
            parts: The gradient as vectors, in order.
            residual: A float32 vector on the same device.
            out: Another one of that size, with arbitrary content.
            parameter: The compressor's.
            seed: The compressor's.
        """
        ...


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


def compressor(
    parameter: Parameter, *, add_and_select: AddAndSelect | None = None
) -> Callable[[Callable[..., Sparse]], Compressor]:
    """Make a function a compressor: say what its parameter is.

    Args:
        parameter: "entries", "threshold" or "none".
        add_and_select: A faster way to do what error feedback needs: add, select and set to zero in one call.

    Example:
        >>> @compressor("entries")
        ... def first(vector, parameter, *, seed=0):
        ...     return Sparse(len(vector), range(parameter), vector[:parameter])
        >>> first.parameter
        'entries'
    """

    def declare(select: Callable[..., Sparse]) -> Compressor:
        select.parameter = parameter  # type: ignore[attr-defined]
        select.add_and_select = add_and_select  # type: ignore[attr-defined]
        return cast(Compressor, select)

    return declare
