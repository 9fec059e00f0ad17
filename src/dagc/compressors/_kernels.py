"""Select while adding: one pass over residual and gradient that writes their sum and picks out its largest entries.

All comparisons use integer keys: the bits of a float32 without its sign, which sort like magnitudes, with infinity and
NaN above all numbers. A NaN is never below a threshold and cannot hide in the residual. The pass does not write to the
residual's own array: a refused gradient leaves no trace.

Positions are unsigned: numba checks signed ones for being negative, and would not use vector instructions.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dagc._numba import inlined, kernel
from dagc.compressors._vector import MAGNITUDE

U = np.uint64
BLOCK = U(256)  # entries that are added and compared together, without a branch
SLACK = int(BLOCK) + 4  # entries that must be free in a buffer before each block: extraction writes four at a time
FIRST_BITS = U(0x0102040810204080)
"""Times a word of eight booleans: moves one bit of each into the highest byte, in order."""
DE_BRUIJN = U(0x03F79D71B4CB0A89)  # times a power of two: the highest six bits differ for each power
POSITIONS = np.array([int(DE_BRUIJN) * (1 << i) % (1 << 64) >> 58 for i in range(64)]).argsort().astype(np.uint8)
"""The power of two, by these six bits."""
LINE = 16  # float32 values per cache line


@intrinsic
def copy_line_past_cache(typing, source, target):
    """Copy a line between two addresses, multiples of 64, past the cache: numba has no words for it, LLVM has.

    An ordinary store first reads the line that it overwrites, a quarter of a step's memory traffic: with 11 M entries,
    a pass that selects 0.1 % then takes 1.54 times as long as `residual.add_(gradient)`, with these 1.14.
    """

    def generate(context, builder, signature, arguments):
        pointers = [builder.inttoptr(address, ir.PointerType()) for address in arguments]
        line = builder.load(pointers[0], typ=ir.VectorType(ir.FloatType(), LINE), align=64)
        store = builder.store(line, pointers[1], align=64)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def finish_writes(typing):
    """Complete writes past the cache before anything that follows, also as seen by other threads."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@inlined
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


@inlined
def _extract(words, sums, first, indices, values, taken):
    """Append the hits of a block, given as words of eight booleans. Returns the number of entries found.

    Always four at a time, even if there are fewer: the surplus is overwritten next time, and the end of the loop is
    mispredicted less often.
    """
    for start in range(U(0), BLOCK, U(64)):
        mask = U(0)
        for i in range(U(8)):
            mask |= ((words[start // U(8) + i] * FIRST_BITS) >> U(56)) << (U(8) * i)
        while mask:
            for _ in range(4):
                lowest = mask & (~mask + U(1))
                place = start + U(POSITIONS[(lowest * DE_BRUIJN) >> U(58)])
                indices[taken], values[taken] = first + np.int64(place), sums[place]
                taken += U(mask != 0)
                mask &= mask - U(1)
    return taken


@kernel
def collect(gradient, residual, out, stream, first, threshold, cursor, indices, values):
    """Continue from the cursor to the end of this part of the vector (False), or until the buffer is full (True).

    The part begins at entry `first` of the whole vector. The cursor is: position in the whole vector, number of entries
    found, and the highest key so far. Before that position, `out` holds residual + gradient, with zero for what was
    found: every entry whose key is at least the threshold, ascending. Without `out`, they are the gradient's own.
    """
    buffer = np.empty(2 * BLOCK + U(LINE), np.float32)
    begin = U((-buffer.ctypes.data % 64) // 4)
    sums, rest = buffer[begin : begin + BLOCK], buffer[begin + BLOCK : begin + U(2) * BLOCK]
    source, target = np.int64(rest.ctypes.data), np.int64(0) if out is None else np.int64(out.ctypes.data)
    hits = np.zeros(BLOCK, np.uint8)
    words = hits.view(U)
    threshold, overall = np.int32(threshold), np.int32(cursor[2])
    at, taken, full = U(cursor[0] - first), U(cursor[1]), False
    while at < U(len(gradient)):
        full = taken + U(SLACK) > U(len(indices))
        if full:
            break
        size = min(BLOCK, U(len(gradient)) - at)
        if stream:  # a shorter first block: the next one begins at a line
            size = min(size, BLOCK - (U(target // 4) + at) % U(LINE))
        if residual is None:
            highest = _compare(gradient, at, size, sums, hits, threshold)
        elif stream and size == BLOCK:
            highest = _add(gradient, residual, at, BLOCK, sums, hits, threshold, rest, U(0))
            for i in range(0, 4 * np.int64(BLOCK), 4 * LINE):
                copy_line_past_cache(source + i, target + 4 * np.int64(at) + i)
        else:
            highest = _add(gradient, residual, at, size, sums, hits, threshold, out, at)
        overall = max(overall, highest)
        if highest >= threshold:
            for i in range(size, BLOCK):
                hits[i] = 0
            taken = _extract(words, sums, first + np.int64(at), indices, values, taken)
        at += size
    cursor[0], cursor[1], cursor[2] = first + np.int64(at), np.int64(taken), overall
    if stream:
        finish_writes()
    return full


@kernel
def keep(indices, values, smallest, equal, to_indices, to_values, out):
    """Copy the entries whose key is above `smallest`, and the first `equal` of those equal to it.

    The others go back to `out`, if there is one. Each entry is written to both places, so that each needs room for one
    more, and only one of them is advanced: that is faster than a branch that cannot be predicted.
    """
    bound = np.int32(smallest)  # the least key to keep: one more after the last equal one
    kept, dropped = U(0), U(0)
    for i in range(U(len(indices))):
        index, value = indices[i], values[i]
        key = _key(value)
        keeps = U(key >= bound)
        to_indices[kept], to_values[kept] = index, value
        indices[dropped], values[dropped] = index, value
        kept += keeps
        dropped += U(1) - keeps
        if key == smallest:
            equal -= 1
            if equal == 0:
                bound += np.int32(1)
    if out is not None:
        for i in range(dropped):
            out[U(indices[i])] = values[i]
