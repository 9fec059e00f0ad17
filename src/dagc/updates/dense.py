"""A whole vector in small integers with a scale per row: for first models and full downloads."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagc.errors import MalformedPayload, NonFiniteGradient
from dagc.updates.update import Dense, pieces
from dagc.updates.vectors import checked

__all__ = ["quantize", "read", "write"]

Extents = list[tuple[int, int, int]]
SHORTEST_ROW = 64
"""Tensors with shorter rows have one scale. A row with a scale of its own takes 16 bits more."""
SAMPLE = 4096
"""How many entries of a tensor the choice of its scale looks at."""
CLIPS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4)
"""Which part of the largest entry may be the largest that can be sent."""
PIECE = 1 << 16
"""Entries that are packed at once."""


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
        scale = _rounded(np.minimum(largest * np.float32(_clip(tensor, largest, most)), 2.0**99) / np.float32(most))
        scales[row : row + count] = scale
        start, row = start + length * count, row + count
    inverse = np.where(scales > 0, 1 / np.where(scales > 0, scales, 1), 0).astype(np.float32)
    for start, end, shape, scale_rows in pieces(rows):
        part = values[start:end].reshape(shape) * inverse[scale_rows, None]
        np.clip(np.rint(part, out=part), -most, most, out=part)
        levels[start:end] = part.reshape(-1)
    return Dense(levels, scales, rows)


def _clip(tensor: NDArray[np.float32], largest: NDArray[np.float32], most: int) -> float:
    """The part of the largest entry that makes the least error on a sample."""
    flat = tensor.reshape(-1)
    step = max(1, len(flat) // SAMPLE)
    sample = flat[::step][:SAMPLE].astype(np.float64)
    bound = np.repeat(largest, 1)[np.arange(len(sample)) * step // tensor.shape[1]].astype(np.float64)
    bound[bound == 0] = 1.0
    errors = []
    for clip in CLIPS:
        scale = bound * clip / most
        errors.append(float(np.square(sample - np.clip(np.rint(sample / scale), -most, most) * scale).sum()))
    return CLIPS[int(np.argmin(errors))]


def _rounded(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales with eight significant bits, as bf16, rounded up. What is below 2^-100 is 0."""
    bits = scales.astype(np.float32).view(np.uint32)
    up = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(up < 2.0**-100, np.float32(0), up)


def write(levels: Dense, bits: int) -> bytes:
    """All scales as bf16, then all integers in two's complement, packed from the lowest bit up."""
    head = (levels.scales.view(np.uint32) >> 16).astype("<u2").tobytes()
    if bits == 8:
        return head + levels.levels.tobytes()
    codes = levels.levels.view(np.uint8)
    parts = [head]
    if bits == 4:
        pairs = codes if len(codes) % 2 == 0 else np.append(codes, np.uint8(0))
        return head + ((pairs[0::2] & np.uint8(15)) | (pairs[1::2] << np.uint8(4))).tobytes()
    for start in range(0, len(codes), PIECE):  # a multiple of 8, so pieces end with a byte
        unpacked = (codes[start : start + PIECE, None] >> np.arange(bits, dtype=np.uint8)) & np.uint8(1)
        parts.append(np.packbits(unpacked, bitorder="little").tobytes())
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
    if not (np.isfinite(scales).all() and (scales >= 0).all() and (scales <= 2.0**100 / ((1 << (bits - 1)) - 1)).all()):
        raise MalformedPayload("a scale of a dense update is negative, infinite or too large")
    if ((scales > 0) & (scales < 2.0**-100)).any():
        raise MalformedPayload("a scale of a dense update is too small")
    packed = np.frombuffer(body[2 * count :], dtype=np.uint8)
    levels = np.empty(size, dtype=np.int8)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    for start in range(0, size, PIECE):
        many = min(PIECE, size - start)
        piece = packed[start * bits // 8 : ((start + many) * bits + 7) // 8]
        if bits == 8:
            levels[start : start + many] = piece.view(np.int8)
            continue
        if bits == 4:
            pairs = np.empty((len(piece), 2), dtype=np.int8)
            pairs[:, 0] = (piece << np.uint8(4)).view(np.int8) >> 4
            pairs[:, 1] = piece.view(np.int8) >> 4
            levels[start : start + many] = pairs.reshape(-1)[:many]
            if pairs.reshape(-1)[many:].any():
                raise beyond()
            continue
        unpacked = np.unpackbits(piece, bitorder="little")
        if unpacked[many * bits :].any():
            raise beyond()
        codes = (unpacked[: many * bits].reshape(many, bits) * weights).sum(axis=1, dtype=np.uint8)
        levels[start : start + many] = (codes << np.uint8(8 - bits)).view(np.int8) >> (8 - bits)
    if (levels == -(1 << (bits - 1))).any():
        raise MalformedPayload("an integer of a dense update is below the smallest")
    return Dense(levels, scales, rows)


def beyond() -> MalformedPayload:
    """The error for bits after the last entry."""
    return MalformedPayload("the last byte of a dense update has bits beyond the last entry")
