"""Vectors that come from training: checked, scaled, counted by magnitude, and searched for their largest entries."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import InvalidInput, NonFiniteGradient
from dagc.updates import _kernels

__all__ = ["BINS", "checked", "count_magnitudes", "energy_of", "largest_entries", "normalized"]

Floats = NDArray[np.float32]
Reals = NDArray[np.float64]
BINS = 512  # half octaves of magnitudes: exponent and first bit of the mantissa
COUNTED = 1 << 18  # of longer tensors, about as many entries are counted, evenly spread
PIECE = 1 << 16  # entries that are compared at once: they fit into a cache
MAGNITUDE = np.uint32(0x7FFFFFFF)


def checked(vector: Any, size: int) -> Floats:
    """The vector as a flat float32 array, not copied if it is that already."""
    tensor = torch.as_tensor(vector)
    if tensor.shape != (size,) or not tensor.is_floating_point():
        raise InvalidInput(f"the vector must have {size} floats in one dimension, not {tuple(tensor.shape)}")
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())


def normalized(values: Floats) -> tuple[Floats, int]:
    """The vector over 2^exponent, and the exponent: 0 unless squares could overflow or vanish."""
    largest = float(max(values.max(), -values.min()))
    if not np.isfinite(largest):
        raise NonFiniteGradient("the vector has entries that are NaN or infinite: it was refused, and nothing changed")
    if largest == 0 or 2.0**-30 < largest < 2.0**30:
        return values, 0
    exponent = int(np.frexp(largest)[1])
    return np.ldexp(values, -exponent), exponent


def count_magnitudes(values: Floats) -> tuple[Reals, Reals]:
    """How many entries there are of each half octave, and the sum of their squares; of long vectors, estimates."""
    stride = max(1, len(values) // COUNTED)
    stride += stride > 1 and stride % 2 == 0  # rows often have even lengths
    count, energy = np.zeros(BINS), np.zeros(BINS)
    if compiled():
        _kernels.histogram(values, values.view(np.uint32), stride, count, energy)
    else:
        some = values[::stride]
        places = (some.view(np.uint32) & MAGNITUDE) >> np.uint32(22)
        count += np.bincount(places, minlength=BINS)
        energy += np.bincount(places, np.square(some, dtype=np.float64), minlength=BINS)
    return count * stride, energy * stride


def energy_of(values: Floats) -> float:
    """The sum of all squares."""
    pieces = (values[start : start + PIECE] for start in range(0, len(values), PIECE))
    return sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces)


def largest_entries(values: Floats, most: int) -> NDArray[np.int64]:
    """The indices of about the `most` largest entries that are not zero, the largest first; never more than that."""
    bits = values.view(np.uint32)
    stride = max(1, len(values) // COUNTED)
    sample = bits[::stride] & MAGNITUDE
    rank = most * 1.1 / len(values) * len(sample) + 8
    least = np.uint32(1)
    if rank < len(sample):
        place = len(sample) - int(rank)
        least = max(np.partition(sample, place)[place], np.uint32(1))
    parts = [
        first + np.flatnonzero((bits[first : first + PIECE] & MAGNITUDE) >= least)
        for first in range(0, len(bits), PIECE)
    ]
    indices = np.concatenate(parts)
    sizes = bits[indices] & MAGNITUDE
    keys = (MAGNITUDE - sizes).astype(np.uint64) << np.uint64(32) | np.arange(len(sizes), dtype=np.uint64)
    keys.sort()  # much faster than a stable argsort, with the same result
    order: NDArray[np.int64] = indices[(keys[:most] & np.uint64(0xFFFFFFFF)).astype(np.int64)]
    return order
