"""A whole vector in small integers with a scale per row: for first models and full downloads."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload, NonFiniteGradient
from dagc.updates.vectors import checked

__all__ = ["read", "write"]

Extents = list[tuple[int, int, int]]
Floats = NDArray[np.float32]
Levels = NDArray[np.int8]
SHORTEST_ROW = 64  # tensors with shorter rows have one scale. A row with a scale of its own takes 16 bits more
SAMPLE = 4096  # how many entries of a tensor the choice of its scale looks at
CLIPS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4)  # which part of the largest entry may be the largest that can be sent
SMALLEST = 2.0**-100  # of scales; what is below is 0
BF16 = np.uint32(0xFFFF0000)
"""The bits of a float32 that scales have: they are rounded up."""
PIECE = 1 << 16  # entries that are packed at once: a multiple of 8, so that pieces end with a byte


def tensors_of(extents: Extents, bits: int) -> list[tuple[slice, tuple[int, int], slice]]:
    """Where the entries of each tensor are, rows and columns, and where the rows' scales are.

    A tensor with short rows, or in few bits, is a single row.
    """
    tensors, scales = [], 0
    for start, rows, columns in extents:
        shape = (rows, columns) if bits > 4 and columns >= SHORTEST_ROW else (1, rows * columns)
        tensors.append((slice(start, start + rows * columns), shape, slice(scales, scales + shape[0])))
        scales += shape[0]
    return tensors


def write(vector: Any, extents: Extents, bits: int) -> tuple[bytes, Floats]:
    """All scales as bf16, then all integers in two's complement, packed from the lowest bit up; and what is decoded.

    Integers are the nearest from −(2^(bits − 1) − 1) to 2^(bits − 1) − 1, and scales those that err least.
    """
    most, tensors = (1 << (bits - 1)) - 1, tensors_of(extents, bits)
    values = checked(vector, tensors[-1][0].stop).cpu().numpy()
    scales, levels = np.empty(tensors[-1][2].stop, np.float32), np.empty(len(values), np.int8)
    for entries, shape, rows in tensors:
        part = values[entries].reshape(shape)
        largest = np.maximum(part.max(axis=1), -part.min(axis=1))
        if not np.isfinite(largest).all():
            raise NonFiniteGradient("the vector has entries that are NaN or infinite: nothing was sent")
        clipped = np.minimum(largest * np.float32(_clip(part, largest, most)), 2.0**99) / np.float32(most)
        scale = ((clipped.astype(np.float32).view(np.uint32) + np.uint32(0xFFFF)) & BF16).view(np.float32)
        scales[rows] = scale = np.where(scale < SMALLEST, np.float32(0), scale)
        part = part * np.where(scale > 0, 1 / np.where(scale > 0, scale, 1), 0).astype(np.float32)[:, None]
        levels[entries] = np.clip(np.rint(part, out=part), -most, most, out=part).reshape(-1)
    head = (scales.view(np.uint32) >> 16).astype("<u2").tobytes()
    return head + _packed(levels, bits), _decoded(scales, levels, extents, bits)


def _decoded(scales: Floats, levels: Levels, extents: Extents, bits: int) -> Floats:
    """What they stand for: exact products."""
    whole = np.empty(len(levels), dtype=np.float32)
    for entries, shape, rows in tensors_of(extents, bits):
        np.multiply(levels[entries].reshape(shape), scales[rows, None], out=whole[entries].reshape(shape))
    return whole


def _clip(tensor: Floats, largest: Floats, most: int) -> float:
    """The part of the largest entry that makes the least error on a sample."""
    flat = tensor.reshape(-1)
    step = max(1, len(flat) // SAMPLE)
    sample = flat[::step][:SAMPLE].astype(np.float64)
    bound = largest[np.arange(len(sample)) * step // tensor.shape[1]].astype(np.float64)
    bound[bound == 0] = 1.0
    errors = []
    for clip in CLIPS:
        scale = bound * clip / most
        errors.append(float(np.square(sample - np.clip(np.rint(sample / scale), -most, most) * scale).sum()))
    return CLIPS[int(np.argmin(errors))]


def _packed(levels: Levels, bits: int) -> bytes:
    if bits == 8:  # the most usual: six times faster
        return levels.tobytes()
    parts, codes = [], levels.view(np.uint8) & np.uint8((1 << bits) - 1)
    for start in range(0, len(codes), PIECE):
        piece = codes[start : start + PIECE]
        words = np.zeros(-(-len(piece) // 8), dtype="<u8")
        for place in range(8):
            each = piece[place::8]
            words[: len(each)] |= each.astype(np.uint64) << np.uint64(bits * place)
        packed = words.view(np.uint8).reshape(-1, 8)[:, :bits].tobytes()
        parts.append(packed[: (bits * len(piece) + 7) // 8])
    return b"".join(parts)


def read(body: memoryview, bits: int, extents: Extents) -> Floats:
    """Decode what `write` wrote."""
    if not 2 <= bits <= 8:
        raise MalformedPayload(f"a dense update has from 2 to 8 bits per entry, not {bits}")
    entries, _, rows = tensors_of(extents, bits)[-1]
    size, count = entries.stop, rows.stop
    if len(body) != 2 * count + (bits * size + 7) // 8:
        raise MalformedPayload(
            f"a dense update of {size} entries with {bits} bits each does not have {len(body)} bytes"
        )
    halves = np.frombuffer(body[: 2 * count], dtype="<u2").astype(np.uint32)
    scales = (halves << np.uint32(16)).view(np.float32)
    if not ((scales >= 0) & (scales <= 2.0**100 / ((1 << (bits - 1)) - 1))).all():
        raise MalformedPayload("a scale of a dense update is negative, infinite or too large")
    if ((scales > 0) & (scales < SMALLEST)).any():
        raise MalformedPayload("a scale of a dense update is too small")
    packed = np.frombuffer(body[2 * count :], dtype=np.uint8)
    levels = packed.view(np.int8) if bits == 8 else _unpacked(packed, size, bits)
    if levels[size:].any():
        raise MalformedPayload("the last byte of a dense update has bits beyond the last entry")
    if (levels[:size] == -(1 << (bits - 1))).any():
        raise MalformedPayload("an integer of a dense update is below the smallest")
    return _decoded(scales, levels[:size], extents, bits)


def _unpacked(packed: NDArray[np.uint8], size: int, bits: int) -> Levels:
    """The integers, and what the last bytes hold beyond them."""
    levels = np.empty(-(-size // 8) * 8, dtype=np.int8)
    for start in range(0, size, PIECE):
        piece = packed[start * bits // 8 : (start + PIECE) * bits // 8]
        words = np.zeros((-(-len(piece) // bits), 8), dtype=np.uint8)
        padded = np.zeros(len(words) * bits, dtype=np.uint8)
        padded[: len(piece)] = piece
        words[:, :bits] = padded.reshape(-1, bits)
        numbers = words.view("<u8").reshape(-1)
        for place in range(8):  # the highest of its bits becomes the sign
            whole = (numbers >> np.uint64(bits * place)).astype(np.uint8) << np.uint8(8 - bits)
            levels[start + place : start + 8 * len(words) : 8] = whole.view(np.int8) >> (8 - bits)
    return levels
