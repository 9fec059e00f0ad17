"""Rice codes and int8 values one entry at a time, compiled: the same bytes as the array code in `rice` and `values`."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dagc._numba import kernel

__all__ = ["int8_write", "rice_parameters", "rice_read", "rice_read_parameters", "rice_write"]

_I64 = ir.IntType(64)
ZERO, ONE, TWO, THREE, FOUR = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
FOURTEEN, FIFTY_SIX, SIXTY_FOUR = np.uint64(14), np.uint64(56), np.uint64(64)
LOW, HIGH = np.uint64(7), np.uint64(56)
"""Of a number of bits below 64: those beyond the whole bytes, and those in them."""
CHUNK = 128
"""So many gaps are taken apart before they are written."""


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
    """How many zeros there are below the lowest one; there must be a one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@kernel
def rice_parameters(indices, block, parameters):
    """Fill in the best parameter of each block, and return the bits that the low bits and the quotients take."""
    low = unary = 0
    for j in range(len(parameters)):
        start, stop = j * block, min(len(indices), (j + 1) * block)
        before = indices[start - 1] if start else -1
        count = stop - start
        total = indices[stop - 1] - before - count  # gaps add up to this
        x = (2 * total + count) * 4812 // (20000 * count)
        width = 0
        while x >> width:
            width += 1
        parameters[j] = width
        low += width * count
        quotients = np.uint64((indices[start] - before - 1) >> width)
        ahead, behind = indices[start + 1 : stop], indices[start : stop - 1]
        for i in range(len(ahead)):
            quotients += np.uint64(ahead[i] - behind[i] - 1) >> np.uint64(width)
        unary += count + np.int64(quotients)
    return low, unary


@kernel
def _put(at, word, bits):
    """Write the word at an address; those of its bits that fill bytes are then done with.

    Invariant of all that write bits: what is not written yet are the lowest `bits` of `word`, and go to `at`.
    """
    _store(at, word)
    return at + np.int64(bits >> THREE), word >> (bits & HIGH), bits & LOW


@kernel
def _put_quotient(at, word, bits, quotient):
    """Write as many zeros, however many, and a one."""
    _store(at, word)
    bits += quotient
    word = word >> (bits & HIGH) if bits < SIXTY_FOUR else ZERO
    at, bits = at + np.int64(bits >> THREE), bits & LOW
    return _put(at, word | ONE << bits, bits + ONE)


@kernel
def _split_gaps(indices, before, width, low, quotients):
    """The low bits and the quotients of the gaps between up to `CHUNK` indices: a loop for the vector unit."""
    mask = (ONE << width) - ONE
    gap = np.uint64(indices[0] - before - 1)
    low[0], quotients[0] = gap & mask, gap >> width
    behind, ahead, more_low, more_quotients = indices[:-1], indices[1:], low[1:], quotients[1:]
    for i in range(len(ahead)):
        gap = np.uint64(ahead[i] - behind[i] - 1)
        more_low[i], more_quotients[i] = gap & mask, gap >> width


@kernel
def rice_write(indices, block, parameters, parameter_bits, low_start, out, unary):
    """Write parameters and low bits to `out`, quotients to `unary`, which is zero; each has eight bytes to spare.

    Four at a time if they fit a word. Everything is unsigned: that saves a look for negative places at each step, half
    of the time.
    """
    at, word, bits = out.ctypes.data, ZERO, ZERO
    for width in parameters:
        at, word, bits = _put(at, word | np.uint64(width) << bits, bits + np.uint64(parameter_bits))
    _store(at, word)

    at, word, bits = out.ctypes.data + low_start, ZERO, ZERO
    unary_at, unary_word, unary_bits = unary.ctypes.data, ZERO, ZERO
    low, quotients = np.empty(CHUNK, np.uint64), np.empty(CHUNK, np.uint64)
    before = np.int64(-1)
    for j in range(len(parameters)):
        width = np.uint64(parameters[j])
        stop = min(len(indices), (j + 1) * block)
        for begin in range(j * block, stop, CHUNK):
            here = indices[begin : min(stop, begin + CHUNK)]
            _split_gaps(here, before, width, low, quotients)
            before = here[-1]
            i, count = ZERO, np.uint64(len(here))
            fours = count >> TWO if width <= FOURTEEN else ZERO
            for _ in range(fours):
                first = low[i] | low[i + ONE] << width
                last = low[i + TWO] << (TWO * width) | low[i + THREE] << (THREE * width)
                at, word, bits = _put(at, word | (first | last) << bits, bits + FOUR * width)
                a, b, c, d = quotients[i], quotients[i + ONE], quotients[i + TWO], quotients[i + THREE]
                i += FOUR
                second = a + b + ONE  # where the four ones go, the first to a
                third = second + c + ONE
                fourth = third + d + ONE
                if fourth < FIFTY_SIX:
                    ones = (ONE << a | ONE << second) | (ONE << third | ONE << fourth)
                    unary_word |= ones << unary_bits
                    unary_at, unary_word, unary_bits = _put(unary_at, unary_word, unary_bits + fourth + ONE)
                else:
                    for quotient in (a, b, c, d):
                        unary_at, unary_word, unary_bits = _put_quotient(unary_at, unary_word, unary_bits, quotient)
            while i < count:
                at, word, bits = _put(at, word | low[i] << bits, bits + width)
                unary_at, unary_word, unary_bits = _put_quotient(unary_at, unary_word, unary_bits, quotients[i])
                i += ONE
    _store(at, word)
    _store(unary_at, unary_word)


@kernel
def rice_read_parameters(data, parameter_bits, block, count, most, parameters):
    """Fill in the parameters, and return the bits that the low bits take; -1 if anything is not right."""
    start = data.ctypes.data
    mask = (np.uint64(1) << np.uint64(parameter_bits)) - np.uint64(1)
    low = bit = 0
    for j in range(len(parameters)):
        parameters[j] = np.int64(_load(start + (bit >> 3)) >> np.uint64(bit & 7) & mask)
        bit += parameter_bits
        if parameters[j] > most:
            return -1
        low += parameters[j] * min(block, count - j * block)
    if bit & 7 and data[bit >> 3] >> (bit & 7):
        return -1
    return low


@kernel
def rice_read(data, block, parameters, low_start, unary_start, end, size, out):
    """Fill in the indices from `data`, which goes on with eight zero bytes after `end`. False if anything is not right.

    Invariant: all bits before `low` and all ones up to `last` are read, and `before` is the last index.
    """
    start = data.ctypes.data
    low = 8 * low_start
    unary = 8 * unary_start  # where the bits of `word` begin
    word = _load(start + unary_start)
    last = unary - 1
    before = np.int64(-1)
    for j in range(len(parameters)):
        width = parameters[j]
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        stop = min(len(out), (j + 1) * block)
        for begin in range(j * block, stop, 128):
            longest = np.int64(0)
            for i in range(begin, min(stop, begin + 128)):
                while word == 0:
                    unary += 64
                    if unary >= 8 * end:
                        return False
                    word = _load(start + (unary >> 3))
                place = unary + _zeros_below(word)
                word &= word - np.uint64(1)
                quotient = place - last - 1
                last = place
                longest = max(longest, quotient)
                rest = _load(start + (low >> 3)) >> np.uint64(low & 7) & mask
                low += width
                before += (quotient << width) + np.int64(rest) + 1
                out[i] = before
            # 128 steps, each at most twice the size, cannot overflow before they are looked at.
            if longest > size >> width or before >= size:
                return False
    if low & 7 and data[low >> 3] >> (low & 7):
        return False
    while word == 0 and unary + 64 < 8 * end:
        unary += 64
        word = _load(start + (unary >> 3))
    return word == 0 and 8 * end - last - 1 < 8


@kernel
def int8_write(values, block, scales, steps):
    """Fill in the scale of each block and each value in scales.

    Invariant: a scale has 16 significant bits and 127 of it do not overflow, so what is read back is exact. It is 0
    where it would be denormal.
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
