"""The loops that write and read single bits: a binary range coder, and the Rice codes of `dagc.wire.indices`.

Integers only, so every machine computes the same. The range coder's state is four numbers. What was coded so far may
continue with any number from the first to the second; the third is how many bytes are done. A reader has the next four
bytes in the fourth; zeros follow the end of the data.
"""

import numpy as np
from numpy.typing import NDArray

from dagc._numba import inlined, kernel

__all__ = ["READ", "WRITE", "begin", "code", "finish", "plain_number", "raw"]

READ, WRITE = 0, 1  # what to do with each decision
EVEN = 32768  # the chance of a decision that may go either way
TOP, BYTE, WORD = 0xFF000000, 0xFF, 0xFFFFFFFF
ZEROS = np.array([next(bit for bit in range(9) if bit == 8 or byte >> bit & 1) for byte in range(256)])
"""How many zero bits are below the lowest set bit of a byte."""


def begin(data: NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """The state before the first decision, to write these bytes or to read them."""
    return 0, WORD, 0, int.from_bytes(data[:4].tobytes().ljust(4, b"\0"), "big")


@kernel
def code(mode, data, coder, bit, chance):
    """Write or read one decision: it and the coder afterwards. `chance` is that of a one in 65,536ths."""
    low, high, done, following = coder
    span = high - low
    middle = low + (span >> 16) * chance + (((span & 0xFFFF) * chance) >> 16)
    if mode == READ:
        bit = 1 if following <= middle else 0
    if bit:
        high = middle
    else:
        low = middle + 1
    while (low ^ high) & TOP == 0:
        if mode == WRITE:
            if done < len(data):
                data[done] = high >> 24
        else:
            following = (following << 8 & WORD) | (int(data[done + 4]) if done + 4 < len(data) else 0)
        done += 1
        low = low << 8 & WORD
        high = (high << 8 & WORD) | BYTE
    return bit, (low, high, done, following)


@kernel
def raw(mode, data, coder, bits, value):
    """Code a number of `bits` bits as it is."""
    read = 0
    for place in range(bits - 1, -1, -1):
        bit, coder = code(mode, data, coder, value >> place & 1, EVEN)
        read = 2 * read + bit
    return read, coder


@kernel
def plain_number(mode, data, coder, value, low_bits):
    """Code a number of at least 0: how many bits it has beyond `low_bits`, then its bits."""
    width = 0
    if mode == WRITE:
        while (value >> low_bits) + 1 >> (width + 1):
            width += 1
    count, bit = 0, 1
    while bit and count < 32:
        bit, coder = code(mode, data, coder, 1 if count < width else 0, EVEN)
        count += bit
    count += low_bits
    low, coder = raw(mode, data, coder, count, (value + (1 << low_bits)) & ((1 << count) - 1))
    return (1 << count) + low - (1 << low_bits), coder


@kernel
def finish(mode, data, coder):
    """Write or read the fewest bytes after which anything may follow.

    Returns how many bytes there are then, which may be more than `data` has room for; -1 if they are not what was read.
    """
    low, high, done, _ = coder
    for count in range(5):
        rest = (1 << 8 * (4 - count)) - 1
        first = (low + rest) & ~rest
        if first + rest <= high:
            for place in range(count):
                byte = first >> (24 - 8 * place) & BYTE
                if done < len(data):
                    if mode == WRITE:
                        data[done] = byte
                    elif data[done] != byte:
                        return -1
                done += 1
            return done
    return -1


@kernel
def quotients(indices, block, parameters):
    """The sum of all gaps' quotients."""
    total = 0
    for j in range(len(parameters)):
        start, stop = j * block, min(len(indices), (j + 1) * block)
        total += (indices[start] - (indices[start - 1] if j else -1) - 1) >> parameters[j]
        ahead, behind = indices[start + 1 : stop], indices[start : stop - 1]
        for i in range(len(ahead)):
            total += (ahead[i] - behind[i] - 1) >> parameters[j]
    return total


@inlined
def _append(out, at, word, bits, number, width):
    """Append the lowest `width` bits of a number. Whole bytes are written; up to seven bits stay in the word."""
    word |= (number & ((1 << width) - 1)) << bits
    bits += width
    while bits >= 8:
        out[at] = word & BYTE
        at += 1
        word >>= 8
        bits -= 8
    return at, word, bits


@kernel
def rice_write(indices, block, parameters, sent, head, out):
    """Write parameters, low bits and quotients to `out`, which is zero. The first two take `head` bits."""
    at, word, bits, mark, before = 0, 0, 0, head, -1
    if sent:
        for width in parameters:
            at, word, bits = _append(out, at, word, bits, width, sent)
    for j in range(len(parameters)):
        width = parameters[j]
        for i in range(j * block, min(len(indices), (j + 1) * block)):
            gap = indices[i] - before - 1
            before += gap + 1
            at, word, bits = _append(out, at, word, bits, gap, width)
            mark += gap >> width
            out[mark >> 3] |= 1 << (mark & 7)
            mark += 1
    if bits:
        out[at] |= word


@kernel
def rice_read(data, block, parameters, low, unary, size, out):
    """Fill in the indices. False if anything is wrong. Low bits begin at bit `low`, quotients at bit `unary`."""
    place, end = low >> 3, len(data)
    bits = 8 - (low & 7)
    word = np.int64(data[place]) >> (low & 7) if place < end else 0
    at = unary >> 3
    byte = np.int64(data[at]) >> (unary & 7) << (unary & 7) if at < end else 0
    last, before = unary - 1, -1
    for j in range(len(parameters)):
        width = parameters[j]
        for i in range(j * block, min(len(out), (j + 1) * block)):
            while byte == 0:
                at += 1
                if at >= end:
                    return False
                byte = np.int64(data[at])
            mark = 8 * at + ZEROS[byte]
            quotient, last = mark - last - 1, mark
            byte &= byte - 1
            while bits < width:
                place += 1
                word |= np.int64(data[place]) << bits
                bits += 8
            if quotient > size >> width:
                return False
            before += (quotient << width) + (word & ((1 << width) - 1)) + 1
            word >>= width
            bits -= width
            if before >= size:
                return False
            out[i] = before
    return byte == 0 and at + 1 >= end and 8 * end - last - 1 < 8
