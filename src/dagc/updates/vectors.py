"""Vectors that come from training: checked, scaled, counted by magnitude, and searched for their largest entries.

A vector stays on its device. In CPU memory numpy does the work, elsewhere torch. Both give the same numbers, but sums
of squares may differ in their last bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.errors import InvalidInput, NonFiniteGradient
from dagc.updates import _kernels

__all__ = ["BINS", "checked", "count_magnitudes", "energy_of", "largest_entries", "normalized"]

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Reals = NDArray[np.float64]
BINS = 512  # half octaves of magnitudes: exponent and first bit of the mantissa
COUNTED = 1 << 18  # of longer tensors, about as many entries are counted, evenly spread
PIECE = 1 << 16  # entries that are compared at once: they fit into a cache
PIECE_THERE = 1 << 24  # on a device: few calls, and little memory
MAGNITUDE = np.uint32(0x7FFFFFFF)
MASK = int(MAGNITUDE)  # for torch
NEAR = 64  # half octaves that cross from a device; what is smaller counts as of the last of them


def checked(vector: Any, size: int) -> torch.Tensor:
    """The vector as a flat float32 tensor on its device, not copied if it is that already."""
    tensor = torch.as_tensor(vector).detach()
    if tensor.shape != (size,) or not tensor.is_floating_point():
        raise InvalidInput(f"the vector must have {size} floats in one dimension, not {tuple(tensor.shape)}")
    device = "cpu" if tensor.device.type == "mps" else tensor.device  # MPS lacks float64
    return tensor.to(device, torch.float32).contiguous()


def normalized(vector: torch.Tensor) -> tuple[torch.Tensor, int, float]:
    """The vector over 2^exponent; the exponent, 0 unless squares could overflow or vanish; its largest magnitude."""
    if vector.is_cpu:
        values = vector.numpy()
        largest = float(max(values.max(), -values.min()))
    else:
        largest = float(torch.stack(torch.aminmax(vector)).abs().max())
    if not np.isfinite(largest):
        raise NonFiniteGradient("the vector has entries that are NaN or infinite: it was refused, and nothing changed")
    if largest == 0 or 2.0**-30 < largest < 2.0**30:
        return vector, 0, largest
    mantissa, exponent = np.frexp(largest)
    if vector.is_cpu:
        return torch.from_numpy(np.ldexp(vector.numpy(), -int(exponent))), int(exponent), float(mantissa)
    half = -int(exponent) // 2  # 2^-exponent alone may not be a float32
    scaled = vector * 2.0**half * 2.0 ** (-int(exponent) - half)
    return scaled, int(exponent), float(mantissa)


def count_magnitudes(vectors: Sequence[torch.Tensor], largest: float) -> tuple[Reals, Reals]:
    """How many entries each vector has of each half octave, and the sum of their squares; of long vectors, estimates.

    `largest` is the largest magnitude of all.
    """
    if vectors[0].is_cpu:
        count, energy = zip(*(_counted(vector.numpy()) for vector in vectors), strict=True)
        return np.stack(count), np.stack(energy)
    top = int(np.float32(largest).view(np.uint32) >> np.uint32(22))
    lowest = max(0, top + 1 - NEAR)
    found = torch.stack([_counted_there(vector, lowest) for vector in vectors]).cpu().numpy()
    both = np.zeros((2, len(vectors), BINS))
    both[:, :, lowest : lowest + NEAR] = found.transpose(1, 0, 2)
    return both[0], both[1]


def _stride(size: int) -> int:
    """Every which entry is counted."""
    stride = max(1, size // COUNTED)
    return stride + (stride > 1 and stride % 2 == 0)  # rows often have even lengths


def _counted_there(vector: torch.Tensor, lowest: int) -> torch.Tensor:
    """Counts and sums of squares of the half octaves from `lowest` on, on the vector's device."""
    stride = _stride(len(vector))
    some = vector[::stride]
    places = ((some.view(torch.int32) & MASK) >> 22).sub_(lowest).clamp_(0, NEAR - 1)
    found = torch.zeros(2, NEAR, dtype=torch.float64, device=vector.device)
    numbers = some.double()
    found[0].index_add_(0, places, torch.ones_like(numbers))
    found[1].index_add_(0, places, numbers.square_())
    return found.mul_(stride)


def _counted(values: Floats) -> tuple[Reals, Reals]:
    stride = _stride(len(values))
    count, energy = np.zeros(BINS), np.zeros(BINS)
    if compiled():
        _kernels.histogram(values, values.view(np.uint32), stride, count, energy)
    else:
        some = values[::stride]
        places = (some.view(np.uint32) & MAGNITUDE) >> np.uint32(22)
        count += np.bincount(places, minlength=BINS)
        energy += np.bincount(places, np.square(some, dtype=np.float64), minlength=BINS)
    return count * stride, energy * stride


def energy_of(vector: torch.Tensor) -> float:
    """The sum of all squares."""
    if not vector.is_cpu:
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2
    values = vector.numpy()
    pieces = (values[start : start + PIECE] for start in range(0, len(values), PIECE))
    return sum(float(np.square(piece, dtype=np.float64).sum()) for piece in pieces)


def largest_entries(vector: torch.Tensor, most: int) -> tuple[Ints, Floats]:
    """About the `most` largest entries that are not zero, the largest first; never more: indices and values."""
    indices, values = (_reaching if vector.is_cpu else _reaching_there)(vector, most)
    sizes = values.view(np.uint32) & MAGNITUDE
    keys = (MAGNITUDE - sizes).astype(np.uint64) << np.uint64(32) | np.arange(len(sizes), dtype=np.uint64)
    keys.sort()  # much faster than a stable argsort, with the same result
    order = (keys[:most] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return indices[order], values[order]


def _rank(most: int, size: int, sampled: int) -> int:
    """How many entries of a sample are as large as those that are wanted, and some to spare."""
    return int(most * 1.1 / size * sampled + 8)


def _reaching(vector: torch.Tensor, most: int) -> tuple[Ints, Floats]:
    """The entries above a magnitude that about so many reach, by index."""
    values = vector.numpy()
    bits = values.view(np.uint32)
    sample = bits[:: max(1, len(values) // COUNTED)] & MAGNITUDE
    rank = _rank(most, len(values), len(sample))
    least = np.uint32(1)
    if rank < len(sample):
        place = len(sample) - rank
        least = max(np.partition(sample, place)[place], np.uint32(1))
    parts = [
        first + np.flatnonzero((bits[first : first + PIECE] & MAGNITUDE) >= least)
        for first in range(0, len(bits), PIECE)
    ]
    indices = np.concatenate(parts)
    return indices, values[indices]


def _reaching_there(vector: torch.Tensor, most: int) -> tuple[Ints, Floats]:
    """The same of a vector on a device: values cross, and of indices whatever is shorter, themselves or a bit map."""
    bits = vector.view(torch.int32)
    sample = bits[:: max(1, len(vector) // COUNTED)] & MASK
    rank = _rank(most, len(vector), len(sample))
    least = torch.topk(sample, min(rank, len(sample))).values[-1].clamp_min_(1) if rank < len(sample) else 1
    reaches = torch.zeros(-(-len(vector) // 8) * 8, dtype=torch.bool, device=vector.device)
    pieces = (torch.split(each, PIECE_THERE) for each in (bits, reaches[: len(vector)]))
    for piece, out in zip(*pieces, strict=True):
        out.copy_((piece & MASK) >= least)
    indices = reaches.nonzero()[:, 0]
    values = vector[indices].cpu().numpy()
    if 32 * len(indices) < len(vector):
        return (indices.int() if len(vector) < 1 << 31 else indices).cpu().numpy().astype(np.int64), values
    eight = [reaches.view(torch.uint8)[place::8] << place for place in range(8)]
    packed = torch.stack(eight).sum(dim=0, dtype=torch.uint8)
    return np.flatnonzero(np.unpackbits(packed.cpu().numpy(), bitorder="little")), values
