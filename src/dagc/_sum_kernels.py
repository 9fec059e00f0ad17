"""The server's sum, compiled: block by block of the vector, and client by client within a block, to stay in cache.

Every coordinate is summed in the order of the clients: the result does not depend on the blocks.
"""

import numpy as np

from dagc._numba import kernel

BLOCK = 1 << 15
"""Coordinates per block: 128 KiB of float32, which fit into a core's cache."""


@kernel
def add_up(starts, indices, values, shares, out, fresh):
    """Set `out` to Σ share · client, or add that if not `fresh`. Client c has entries starts[c] to starts[c + 1] - 1.

    Returns the first client that has an index below 0 or beyond the vector, or -1.
    """
    cursors = starts[:-1].copy()  # before each block: every client's first entry in the block or beyond
    for start in range(0, len(out), BLOCK):
        stop = min(len(out), start + BLOCK)
        if fresh:
            out[start:stop] = np.float32(0)
        for c in range(len(shares)):
            share, i = shares[c], cursors[c]
            while i < starts[c + 1]:
                at = np.uint64(indices[i])  # a negative index becomes a huge one
                if at >= np.uint64(stop):
                    break
                out[at] += share * values[i]
                i += 1
            cursors[c] = i
    for c in range(len(shares)):
        if cursors[c] < starts[c + 1]:
            return c
    return -1
