"""Which value codec to take: for the same bytes, more entries with fewer bits, or fewer entries with more."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["chosen_values"]

ENOUGH = 0.1
"""From so many entries on, as a part of all, signs are not taken: `docs/beyond.md` has what was measured, up to 7 %."""


def chosen_values(
    values: str, weights: NDArray[np.float64], size: int, ratio: float | None = None, bytes: int | None = None
) -> str:
    """The codec that `values` names; for "auto" the one that was measured to need the fewest bytes at this budget.

    Args:
        values: A name in `VALUE_CODECS`, or "auto".
        weights: How much data each client holds.
        size: The number of entries in the model.
        ratio: The budget as the mean ratio of entries sent, or
        bytes: as bytes per round for all clients together. With neither, auto is fp32.

    Example:
        >>> chosen_values("auto", np.ones(10), 7850, bytes=640), chosen_values("auto", np.ones(10), 7850, ratio=0.5)
        ('sign16', 'int8')
    """
    if values != "auto":
        return values
    if bytes is not None:
        ratio = bytes / (np.count_nonzero(weights) * size)  # as if an entry took a byte, which with signs is about so
    if ratio is None:
        return "fp32"
    return "sign16" if ratio < ENOUGH else "int8"
