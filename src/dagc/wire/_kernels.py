"""Compiled loops for Rice codes and int8 values: the same bytes as the array code in `rice` and `values`."""

import numpy as np

from dagc._numba import inlined, kernel

__all__ = ["int8_write", "quotients", "rice_read", "rice_write"]

U = np.uint64
ZERO, ONE, SEVEN, EIGHT = U(0), U(1), U(7), U(8)
ZEROS = np.array([next(bit for bit in range(9) if bit == 8 or byte >> bit & 1) for byte in range(256)], dtype=np.uint64)
"""How many zero bits are below the lowest set bit of a byte."""


@kernel
def quotients(indices, block, parameters):
    """The sum of all gaps' quotients."""
    total = np.uint64(0)
    for j in range(len(parameters)):
        start, stop = j * block, min(len(indices), (j + 1) * block)
        width = np.uint64(parameters[j])
        before = indices[start - 1] if start else -1
        total += np.uint64(indices[start] - before - 1) >> width
        ahead, behind = indices[start + 1 : stop], indices[start : stop - 1]
        for i in range(len(ahead)):
            total += np.uint64(ahead[i] - behind[i] - 1) >> width
    return np.int64(total)


@inlined
def _append(out, at, word, bits, number, width):
    """Append the lowest `width` bits of a number. Whole bytes are written; up to seven bits stay in the word."""
    word |= (number & ((ONE << width) - ONE)) << bits
    bits += width
    while bits >= EIGHT:
        out[at] = np.uint8(word & U(255))
        at += ONE
        word >>= EIGHT
        bits -= EIGHT
    return at, word, bits


@kernel
def rice_write(indices, block, parameters, sent, head, out):
    """Write parameters, low bits and quotients to `out`, which is zero. The first two take `head` bits."""
    at, word, bits, mark = ZERO, ZERO, ZERO, U(head)
    if sent:
        for width in parameters:
            at, word, bits = _append(out, at, word, bits, U(width), U(sent))
    before = np.int64(-1)
    for j in range(len(parameters)):
        width = U(parameters[j])
        for i in range(U(j * block), U(min(len(indices), (j + 1) * block))):
            index = indices[i]
            gap = U(index - before - 1)
            before = index
            at, word, bits = _append(out, at, word, bits, gap, width)
            mark += gap >> width
            out[mark >> U(3)] |= np.uint8(ONE << (mark & SEVEN))
            mark += ONE
    if bits:
        out[at] |= np.uint8(word)


@kernel
def rice_read(data, block, parameters, low, unary, size, out):
    """Fill in the indices. False if anything is wrong. Low bits begin at bit `low`, quotients at bit `unary`."""
    place, end = U(low) >> U(3), U(len(data))
    bits = EIGHT - (U(low) & SEVEN)
    word = U(data[place]) >> (U(low) & SEVEN) if place < end else ZERO
    at = U(unary) >> U(3)
    byte = data[at] >> np.uint8(unary & 7) << np.uint8(unary & 7) if at < end else np.uint8(0)
    last, before = np.int64(unary) - 1, np.int64(-1)
    for j in range(len(parameters)):
        width = U(parameters[j])
        for i in range(U(j * block), U(min(len(out), (j + 1) * block))):
            while byte == 0:
                at += ONE
                if at >= end:
                    return False
                byte = data[at]
            mark = np.int64(EIGHT * at + ZEROS[byte])
            quotient, last = mark - last - 1, mark
            byte &= byte - np.uint8(1)
            while bits < width:
                place += ONE
                word |= U(data[place]) << bits
                bits += EIGHT
            gap = np.int64(word & ((ONE << width) - ONE))
            word >>= width
            bits -= width
            if quotient > size >> np.int64(width):
                return False
            before += (quotient << np.int64(width)) + gap + 1
            if before >= size:
                return False
            out[i] = before
    return byte == 0 and at + ONE >= end and 8 * len(data) - last - 1 < 8


@kernel
def int8_write(values, block, scales, steps):
    """Fill in the scale of each block, and each value in scales.

    Invariant: a scale has 16 significant bits and 127 times it does not overflow, so what is read back is exact. A
    scale that would be denormal is 0.
    """
    limit = np.float64(np.finfo(np.float32).max)
    normal = np.finfo(np.float32).tiny
    for j in range(len(scales)):
        start, stop = j * block, min(len(values), (j + 1) * block)
        mine, to = values[start:stop], steps[start:stop]
        largest = np.float32(0)
        for i in range(len(mine)):
            largest = max(largest, abs(mine[i]))
        bits = np.float32(largest / np.float32(127)).view(np.uint32)
        up = np.uint32((bits + np.uint32(0xFF)) & np.uint32(0xFFFFFF00)).view(np.float32)
        down = np.uint32(bits & np.uint32(0xFFFFFF00)).view(np.float32)
        if up < normal:
            up = np.float32(0)
        scale = down if np.float64(up) * 127 > limit else up
        scales[j] = scale
        for i in range(len(mine)):
            step = np.rint(mine[i] / scale) if scale > 0 else np.float32(0)
            to[i] = np.int8(min(max(step, np.float32(-127)), np.float32(127)))
