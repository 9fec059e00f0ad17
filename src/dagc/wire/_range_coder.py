"""A binary range coder. Integers only, so every machine computes the same.

Its state is four numbers. What was coded so far may continue with any number from the first to the second; the third is
how many bytes are done. A reader has the next four bytes in the fourth; zeros follow the end of the data. Compiled if
numba is installed; without it the same functions run as plain Python.
"""

from typing import Any

from dagc._numba import compiled, kernel

__all__ = ["READ", "WRITE", "build", "code", "finish"]

READ, WRITE = 0, 1
"""What to do with each decision."""
TOP, BYTE, WORD = 0xFF000000, 0xFF, 0xFFFFFFFF

build: Any = kernel if compiled() else lambda function: function


@build
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


@build
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
