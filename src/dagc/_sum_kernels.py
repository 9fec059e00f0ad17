"""The server's sum, compiled: block by block of the vector, and client by client within a block, to stay in cache.

Every coordinate is summed in the order of the clients, so the result does not depend on the blocks.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dagc._numba import kernel

__all__ = ["BLOCK", "add_up", "add_up_sparse"]

BLOCK = 1 << 15
"""Coordinates per block: 128 KiB of float32, which fit into a core's own cache."""


@intrinsic
def _index(typing: Any, address: Any, i: Any) -> Any:
    """Entry i of the int64 array at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(start, [arguments[1]]))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _value(typing: Any, address: Any, i: Any) -> Any:
    """Entry i of the float32 array at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.inttoptr(arguments[0], ir.FloatType().as_pointer())
        return builder.load(builder.gep(start, [arguments[1]]))

    return types.float32(types.int64, types.int64), generate


@kernel
def add_up(clients, shares, out):
    """Out = Σ share · client, for clients given as rows (address of indices, address of values, length).

    Invariant: before each block, a client's cursor is at its first entry in the block or beyond. An index below 0 or
    beyond the vector is never reached. Returns the first client that has such an index, or -1.
    """
    cursors = np.zeros(len(clients), np.int64)
    for start in range(0, len(out), BLOCK):
        stop = min(len(out), start + BLOCK)
        out[start:stop] = np.float32(0)
        for c in range(len(clients)):
            indices, values, length = clients[c, 0], clients[c, 1], clients[c, 2]
            share, i = shares[c], cursors[c]
            while i < length:
                at = np.uint64(_index(indices, i))  # a negative index becomes a huge one
                if at >= np.uint64(stop):
                    break
                out[at] += share * _value(values, i)
                i += 1
            cursors[c] = i
    for c in range(len(clients)):
        if cursors[c] < clients[c, 2]:
            return c
    return -1


@kernel
def add_up_sparse(clients, shares, size, out_indices, out_values):
    """The same for only the coordinates that some client has. Returns how many there are.

    The outputs need room for one more. Returns -1 if a client's indices do not ascend from 0 to `size` - 1.
    Invariant as above; between blocks, `total` is zero and `seen` is empty.
    """
    cursors = np.zeros(len(clients), np.int64)
    total = np.zeros(BLOCK, np.float32)
    seen = np.zeros(BLOCK, np.uint8)
    found, stop = 0, np.int64(0)
    while True:
        nearest = np.int64(-1)  # the next block that holds anything
        for c in range(len(clients)):
            if cursors[c] < clients[c, 2]:
                at = _index(clients[c, 0], cursors[c])
                if at < stop or at >= size:
                    return -1
                if nearest < 0 or at < nearest:
                    nearest = at
        if nearest < 0:
            return found
        start = nearest // BLOCK * BLOCK
        stop = min(size, start + BLOCK)
        for c in range(len(clients)):
            indices, values, length = clients[c, 0], clients[c, 1], clients[c, 2]
            share, i = shares[c], cursors[c]
            while i < length:
                at = np.uint64(_index(indices, i) - start)
                if at >= np.uint64(stop - start):
                    break
                total[at] += share * _value(values, i)
                seen[at] = 1
                i += 1
            cursors[c] = i
        for at in range(BLOCK):
            out_indices[found], out_values[found] = start + at, total[at]  # seen or not: cheaper than a branch
            found += np.int64(seen[at])
        total[:] = np.float32(0)
        seen[:] = 0
