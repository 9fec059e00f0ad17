"""Compiled loops for Rice codes and int8 values: the same bytes as the array code in `rice` and `values`."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dagc._numba import kernel

__all__ = ["int8_write", "quotients", "rice_read", "rice_write"]

_I64 = ir.IntType(64)
ZERO, ONE, TWO, THREE, FOUR = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
FOURTEEN, FIFTY_SIX, LAST = np.uint64(14), np.uint64(56), np.uint64(63)
LOW, HIGH = np.uint64(7), np.uint64(56)
"""Masks for a number of bits below 64: the bits beyond whole bytes, and the bits in whole bytes."""
FOURS = 256
"""The most groups of four gaps that are prepared before they are written."""
CHUNK = 128
"""How many indices are read together."""


@intrinsic
def _load(typing: Any, address: Any) -> Any:
    """The eight bytes at an address, lowest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = builder.load(builder.inttoptr(arguments[0], _I64.as_pointer()))
        loaded.align = 1
        return loaded

    return types.uint64(types.int64), generate


@intrinsic
def _store(typing: Any, address: Any, word: Any) -> Any:
    """Write eight bytes to an address, lowest first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _I64.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def _zeros_below(typing: Any, word: Any) -> Any:
    """How many zero bits are below the lowest set bit; 64 if no bit is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate


@intrinsic
def _ones(typing: Any, word: Any) -> Any:
    """How many bits are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


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


@kernel
def _put(at, word, bits):
    """Write the word to an address. The bits that fill whole bytes are then done.

    Invariant of all bit writers: the lowest `bits` of `word` are not written yet, and belong at `at`.
    """
    _store(at, word)
    return at + np.int64(bits >> THREE), word >> (bits & HIGH), bits & LOW


@kernel
def _put_quotient(at, word, bits, quotient):
    """Write `quotient` zeros, however many, and a one."""
    while quotient >= FIFTY_SIX:
        at, word, bits = _put(at, word, bits + FIFTY_SIX)
        quotient -= FIFTY_SIX
    bits += quotient
    return _put(at, word | ONE << bits, bits + ONE)


@kernel
def _fours(indices, start, fours, width, low, unary, lengths):
    """Four gaps at a time, from `start` > 0 on: low bits side by side, quotients in unary, and their number of bits.

    A loop for the vector unit. If there are more than 64 unary bits, the bits are wrong but their number is right.
    """
    mask = (ONE << width) - ONE
    for j in range(np.uint64(fours)):
        i = np.uint64(start) + FOUR * j
        before, first, second, third = indices[i - ONE], indices[i], indices[i + ONE], indices[i + TWO]
        a, b = np.uint64(first - before - 1), np.uint64(second - first - 1)
        c, d = np.uint64(third - second - 1), np.uint64(indices[i + THREE] - third - 1)
        low[j] = (a & mask | (b & mask) << width) | ((c & mask) << (TWO * width) | (d & mask) << (THREE * width))
        end_a = a >> width  # where its one goes
        end_b = end_a + (b >> width) + ONE
        end_c = end_b + (c >> width) + ONE
        end_d = end_c + (d >> width) + ONE
        unary[j] = (ONE << (end_a & LAST) | ONE << (end_b & LAST)) | (ONE << (end_c & LAST) | ONE << (end_d & LAST))
        lengths[j] = end_d + ONE


@kernel
def rice_write(indices, block, parameters, sent, head, out):
    """Write parameters and low bits to `out`, `head` bits; and quotients, 8 bytes behind where they belong.

    If their first bits belong into a byte with low bits, that byte is in both places. Eight indices are written at a
    time if the low bits of four fit into a word, and the quotients of eight do.
    """
    at, word, bits = np.int64(out.ctypes.data), ZERO, ZERO
    unary_at, unary_word, unary_bits = at + (head >> 3) + 8, ZERO, np.uint64(head) & LOW
    if sent:
        for width in parameters:
            at, word, bits = _put(at, word | np.uint64(width) << bits, bits + np.uint64(sent))
    low, unary, lengths = np.empty(FOURS, np.uint64), np.empty(FOURS, np.uint64), np.empty(FOURS, np.uint64)
    before, i = np.int64(-1), np.int64(0)
    for j in range(len(parameters)):
        width = np.uint64(parameters[j])
        stop = min(len(indices), (j + 1) * block)
        while i < stop:
            fours = min(FOURS, (stop - i) >> 3 << 1) if i > 0 and width <= FOURTEEN else 0
            _fours(indices, i, fours, width, low, unary, lengths)
            for a in range(ZERO, np.uint64(fours), TWO):
                b = a + ONE
                length = lengths[a] + lengths[b]
                if length > FIFTY_SIX:
                    break
                at, word, bits = _put(at, word | low[a] << bits, bits + FOUR * width)
                at, word, bits = _put(at, word | low[b] << bits, bits + FOUR * width)
                unary_word |= (unary[a] | unary[b] << lengths[a]) << unary_bits
                unary_at, unary_word, unary_bits = _put(unary_at, unary_word, unary_bits + length)
                i += 8
            if i > 0:
                before = indices[np.uint64(i - 1)]
            for _ in range(min(8, stop - i)):
                gap = np.uint64(indices[np.uint64(i)] - before - 1)
                at, word, bits = _put(at, word | (gap & ((ONE << width) - ONE)) << bits, bits + width)
                unary_at, unary_word, unary_bits = _put_quotient(unary_at, unary_word, unary_bits, gap >> width)
                before = indices[np.uint64(i)]
                i += 1
    _store(at, word)
    _store(unary_at, unary_word)


@kernel
def _places(word, base, places, found):
    """Append the place of each set bit, counted from `base`; always four at a time, even if there are fewer."""
    at = np.uint64(found)
    for _ in range((_ones(word) + 3) >> 2):
        for _ in range(4):
            places[at] = base + _zeros_below(word)
            word &= word - ONE
            at += ONE


@kernel
def rice_read(data, block, parameters, low, unary, end, size, out):
    """Fill in the indices from `data`, in which eight zero bytes follow `end`. False if anything is wrong.

    Low bits begin at bit `low`, quotients at bit `unary`. A quotient is the distance between two ones, so the places of
    the ones give the sum of all quotients up to any index. The sum of the low bits is kept along the way.
    Invariant: all bits before `low` and all ones up to `last` are read, and `before` is the last index; the places of
    the `found` ones that follow are known, and all are before `unary`.
    """
    start = np.int64(data.ctypes.data)
    last, before, found = unary - 1, np.int64(-1), 0
    low_bits = np.uint64(unary) & LOW  # in the first byte with quotients
    unary -= np.int64(low_bits)
    places = np.empty(CHUNK + 2 * 64, np.int64)
    for j in range(len(parameters)):
        width = np.uint64(parameters[j])
        mask = (ONE << width) - ONE
        stop = min(len(out), (j + 1) * block)
        for begin in range(j * block, stop, CHUNK):
            count = min(CHUNK, stop - begin)
            while found < count:
                if unary >= 8 * end:
                    return False
                word = _load(start + (unary >> 3)) >> low_bits << low_bits
                low_bits = ZERO
                _places(word, unary, places, found)
                found += _ones(word)
                unary += 64
            if places[count - 1] - last - count > size >> np.int64(width):
                return False
            total, base = before + 1, last + 1
            i, first = ZERO, np.uint64(begin)
            fours = np.uint64(count) >> TWO if width <= FOURTEEN else ZERO
            for _ in range(fours):
                bits = _load(start + (low >> 3)) >> np.uint64(low & 7)
                low += 4 * np.int64(width)
                for _ in range(4):
                    total += np.int64(bits & mask)
                    bits >>= width
                    out[first + i] = ((places[i] - base - np.int64(i)) << np.int64(width)) + total + np.int64(i)
                    i += ONE
            while i < np.uint64(count):
                total += np.int64(_load(start + (low >> 3)) >> np.uint64(low & 7) & mask)
                low += np.int64(width)
                out[first + i] = ((places[i] - base - np.int64(i)) << np.int64(width)) + total + np.int64(i)
                i += ONE
            before, last = out[begin + count - 1], places[count - 1]
            if before >= size:
                return False
            found -= count
            for i in range(np.uint64(found)):
                places[i] = places[i + np.uint64(count)]
    if found:
        return False
    while unary < 8 * end:
        if _load(start + (unary >> 3)) >> low_bits:
            return False
        low_bits = ZERO
        unary += 64
    return 8 * end - last - 1 < 8


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
