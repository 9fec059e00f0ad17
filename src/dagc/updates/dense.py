"""A whole vector in small integers with a scale per row: for first models and full downloads."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload, NonFiniteGradient
from dagc.updates.update import Dense, pieces
from dagc.updates.vectors import checked

__all__ = ["quantize", "read", "write"]

Extents = list[tuple[int, int, int]]
Floats = NDArray[np.float32]
SHORTEST_ROW = 64
"""Tensors with shorter rows have one scale. A row with a scale of its own takes 16 bits more."""
SAMPLE = 4096
"""How many entries of a tensor the choice of its scale looks at."""
CLIPS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4)
"""Which part of the largest entry may be the largest that can be sent."""
SMALLEST = 2.0**-100
"""Of scales; what is below is 0."""
BF16 = np.uint32(0xFFFF0000)
"""The bits of a float32 that scales have: they are rounded up."""
PIECE = 1 << 16
"""Entries that are packed at once: a multiple of 8, so that pieces end with a byte."""


def rows_of(extents: Extents, bits: int) -> tuple[tuple[int, int], ...]:
    """The length and the number of the rows of each tensor that have a scale each."""
    by_row = bits > 4
    return tuple((c, r) if by_row and c >= SHORTEST_ROW else (r * c, 1) for _, r, c in extents)


def quantize(vector: Any, extents: Extents, bits: int) -> Dense:
    """The nearest integers from −(2^(bits − 1) − 1) to 2^(bits − 1) − 1, times a scale that errs least."""
    values = checked(vector, sum(r * c for _, r, c in extents))
    most = (1 << (bits - 1)) - 1
    rows = rows_of(extents, bits)
    levels = np.empty(len(values), dtype=np.int8)
    scales = np.empty(sum(count for _, count in rows), dtype=np.float32)
    start = row = 0
    for length, count in rows:
        tensor = values[start : start + length * count].reshape(count, length)
        largest = np.maximum(tensor.max(axis=1), -tensor.min(axis=1))
        if not np.isfinite(largest).all():
            raise NonFiniteGradient("the vector has entries that are NaN or infinite: nothing was sent")
        clipped = np.minimum(largest * np.float32(_clip(tensor, largest, most)), 2.0**99)
        bits_up = ((clipped / np.float32(most)).astype(np.float32).view(np.uint32) + np.uint32(0xFFFF)) & BF16
        scale = bits_up.view(np.float32)
        scales[row : row + count] = np.where(scale < SMALLEST, 0, scale)
        start, row = start + length * count, row + count
    inverse = np.where(scales > 0, 1 / np.where(scales > 0, scales, 1), 0).astype(np.float32)
    for start, end, shape, scale_rows in pieces(rows):
        part = values[start:end].reshape(shape) * inverse[scale_rows, None]
        np.clip(np.rint(part, out=part), -most, most, out=part)
        levels[start:end] = part.reshape(-1)
    return Dense(levels, scales, rows)


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


def write(dense: Dense, bits: int) -> bytes:
    """All scales as bf16, then all integers in two's complement, packed from the lowest bit up."""
    parts = [(dense.scales.view(np.uint32) >> 16).astype("<u2").tobytes()]
    codes = dense.levels.view(np.uint8) & np.uint8((1 << bits) - 1)
    for start in range(0, len(codes), PIECE):
        piece = codes[start : start + PIECE]
        words = np.zeros(-(-len(piece) // 8), dtype="<u8")
        for place in range(8):
            each = piece[place::8]
            words[: len(each)] |= each.astype(np.uint64) << np.uint64(bits * place)
        packed = words.view(np.uint8).reshape(-1, 8)[:, :bits].tobytes()
        parts.append(packed[: (bits * len(piece) + 7) // 8])
    return b"".join(parts)


def read(body: memoryview, bits: int, extents: Extents) -> Dense:
    """Read what `write` wrote."""
    if not 2 <= bits <= 8:
        raise MalformedPayload(f"a dense update has from 2 to 8 bits per entry, not {bits}")
    rows = rows_of(extents, bits)
    size, count = sum(r * c for _, r, c in extents), sum(count for _, count in rows)
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
    if levels[size:].any():
        raise MalformedPayload("the last byte of a dense update has bits beyond the last entry")
    if (levels[:size] == -(1 << (bits - 1))).any():
        raise MalformedPayload("an integer of a dense update is below the smallest")
    return Dense(levels[:size], scales, rows)
