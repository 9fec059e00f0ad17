"""Select while adding: one pass over residual and gradient that writes their sum and picks out its largest entries.

All comparisons use integer keys: the bits of a float32 without its sign, which sort like magnitudes, with infinity and
NaN above all numbers. A NaN is never below a threshold and cannot hide in the residual.

The pass does not write to the residual's own array: a refused gradient leaves no trace.
"""

import numpy as np

from dagc._numba import inlined, kernel
from dagc.compressors._sampling import GROUP
from dagc.compressors._stream import LINE, copy_line_past_cache, finish_writes
from dagc.compressors._vector import MAGNITUDE

__all__ = ["SLACK", "collect", "keep", "sample"]

BLOCK = 256
"""Entries that are added and compared together, without a branch."""
SLACK = BLOCK + 4
"""Entries that must be free in a buffer before each block: extraction writes four at a time."""
BATCH = 64
"""Groups that are requested from memory at a time: they are far apart."""

FIRST_BITS = np.uint64(0x0102040810204080)
"""Times a word of eight booleans: moves one bit of each into the highest byte, in order."""
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
"""Times a power of two: the highest six bits differ for each power."""
POSITIONS = np.array([int(DE_BRUIJN) * (1 << i) % (1 << 64) >> 58 for i in range(64)]).argsort().astype(np.uint8)
"""The power of two, by these six bits."""


@kernel
def _key(value):
    return np.int32(np.float32(value).view(np.int32) & MAGNITUDE)


@inlined
def _compare(gradient, at, size, sums, hits, threshold):
    """Copy a block and mark the keys that reach the threshold. Returns the highest key."""
    highest = np.int32(0)
    for i in range(size):
        key = _key(gradient[at + i])
        sums[i] = gradient[at + i]
        hits[i] = key >= threshold
        highest = max(highest, key)
    return highest


@inlined
def _add(gradient, residual, at, size, sums, hits, threshold, rest, shift):
    """The same for a sum. `rest` becomes the sum with zero for each key that reaches the threshold."""
    highest = np.int32(0)
    for i in range(size):
        total = residual[at + i] + gradient[at + i]
        key = _key(total)
        hit = key >= threshold
        sums[i] = total
        hits[i] = hit
        rest[shift + i] = np.float32(0) if hit else total
        highest = max(highest, key)
    return highest


@kernel
def collect(gradient, residual, out, stream, first, threshold, cursor, indices, values):
    """Continue from the cursor to the end of this part of the vector (False), or until the buffer is full (True).

    `gradient`, `residual` and `out` are the part that begins at entry `first` of the whole vector. The cursor is:
    position in the whole vector, number of entries found, and the highest key so far.
    Invariant: before the cursor's position, `out` holds residual + gradient, with zero for what was found. Found is
    every entry whose key is at least the threshold (which may rise between calls), in ascending order.
    If `residual` and `out` are None, the entries are the gradient's own and nothing is written.
    """
    buffer = np.empty(2 * BLOCK + LINE, np.float32)
    begin = (-buffer.ctypes.data % (4 * LINE)) // 4
    sums, rest = buffer[begin : begin + BLOCK], buffer[begin + BLOCK : begin + 2 * BLOCK]
    rest_address = np.int64(rest.ctypes.data)
    out_address = np.int64(0) if out is None else np.int64(out.ctypes.data)
    hits = np.zeros(BLOCK, np.uint8)
    words = hits.view(np.uint64)
    threshold, overall = np.int32(threshold), np.int32(cursor[2])
    block, length, room = np.uint64(BLOCK), np.uint64(len(gradient)), np.uint64(len(indices))
    at, found, full = np.uint64(cursor[0] - first), np.uint64(cursor[1]), False
    while at < length:
        full = found + np.uint64(SLACK) > room
        if full:
            break
        size = min(block, length - at)
        if stream:  # a shorter first block: the next one begins at a line
            size = min(size, block - (np.uint64(out_address // 4) + at) % np.uint64(LINE))
        if residual is None:
            highest = _compare(gradient, at, size, sums, hits, threshold)
        elif stream and size == block:
            highest = _add(gradient, residual, at, block, sums, hits, threshold, rest, np.uint64(0))
            for i in range(0, 4 * BLOCK, 4 * LINE):
                copy_line_past_cache(rest_address + i, out_address + 4 * np.int64(at) + i)
        else:
            highest = _add(gradient, residual, at, size, sums, hits, threshold, out, at)
        overall = max(overall, highest)
        if highest >= threshold:
            for i in range(size, block):
                hits[i] = 0
            found = _extract(words, sums, first + np.int64(at), indices, values, found)
        at += size
    cursor[0], cursor[1], cursor[2] = first + np.int64(at), np.int64(found), overall
    if stream:
        finish_writes()
    return full


@inlined
def _extract(words, sums, first, indices, values, found):
    """Append the hits of a block, given as words of eight booleans. Returns the number of entries found.

    Always four at a time, even if there are fewer: the surplus is overwritten next time, and the end of the loop is
    mispredicted less often.
    """
    for start in range(np.uint64(0), np.uint64(BLOCK), np.uint64(64)):
        mask = np.uint64(0)
        for i in range(np.uint64(8)):
            mask |= ((words[start // np.uint64(8) + i] * FIRST_BITS) >> np.uint64(56)) << (np.uint64(8) * i)
        while mask:
            for _ in range(4):
                lowest = mask & (~mask + np.uint64(1))
                place = start + np.uint64(POSITIONS[(lowest * DE_BRUIJN) >> np.uint64(58)])
                indices[found], values[found] = first + np.int64(place), sums[place]
                found += np.uint64(mask != 0)
                mask &= mask - np.uint64(1)
    return found


@kernel
def keep(indices, values, smallest, equal, to_indices, to_values, out):
    """Copy the entries whose key is above `smallest`, and the first `equal` of those equal to it.

    The others go back to `out`, if there is one, and `indices` and `values` are overwritten. `to_indices` and
    `to_values` need room for one entry more than are kept. Each entry is written to both places and only one of them
    is advanced, which is faster than a branch that cannot be predicted.
    """
    bound = np.int32(smallest)  # the least key to keep: one more after the last equal one
    kept, dropped = np.uint64(0), np.uint64(0)
    for i in range(np.uint64(len(indices))):
        index, value = indices[i], values[i]
        key = _key(value)
        keeps = np.uint64(key >= bound)
        to_indices[kept], to_values[kept] = index, value
        indices[dropped], values[dropped] = index, value
        kept += keeps
        dropped += np.uint64(1) - keeps
        if key == smallest:
            equal -= 1
            if equal == 0:
                bound += np.int32(1)
    if out is not None:
        for i in range(dropped):
            out[np.uint64(indices[i])] = values[i]


@kernel
def sample(gradient, residual, first, places, keys):
    """The keys of `GROUP` neighbors from each place on, in the part of the vector that begins at entry `first`."""
    end = len(gradient)
    touched = np.float32(0)
    for begin in range(0, len(places), BATCH):
        batch = places[begin : begin + BATCH]
        for place in batch:  # reading one of each requests them all from memory
            touched += gradient[place - first]
            if residual is not None:
                touched += residual[place - first]
        for j in range(len(batch)):
            start = max(0, min(batch[j] - first, end - GROUP))
            for i in range(GROUP):
                at = min(start + i, end - 1)
                total = gradient[at] if residual is None else residual[at] + gradient[at]
                keys[(begin + j) * GROUP + i] = _key(total)
    return touched
