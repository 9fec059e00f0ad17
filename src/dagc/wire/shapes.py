"""The shapes of a model's tensors: how they divide a vector into matrices."""

from collections.abc import Sequence
from math import prod

__all__ = ["Shapes", "extents", "sizes_of"]

Shapes = Sequence[int | Sequence[int]]
"""The shape of each tensor of a model; a number stands for a vector of that length."""


def extents(shapes: Shapes) -> list[tuple[int, int, int]]:
    """Where each tensor starts, its rows and its columns. A vector is one row; tensors without entries are left out.

    Example:
        >>> extents([(2, 3), 4, (5, 1, 2, 2)])
        [(0, 2, 3), (6, 1, 4), (10, 5, 4)]
    """
    start, parts = 0, []
    for shape in shapes:
        sides = (shape,) if isinstance(shape, int) else tuple(shape)
        size = prod(sides)
        if size:
            rows = sides[0] if len(sides) > 1 and size > sides[0] else 1
            parts.append((start, rows, size // rows))
            start += size
    return parts


def sizes_of(shapes: Shapes) -> list[int]:
    """The number of entries in each tensor that is not empty."""
    return [rows * columns for _, rows, columns in extents(shapes)]
