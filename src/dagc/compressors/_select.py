"""The compressors on compiled kernels: the same entries, bit for bit, with the residual added in the same pass."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.compressors import _kernels as kernels
from dagc.compressors._vector import checked_count, checked_threshold, refuse_non_finite
from dagc.compressors.hard_threshold import hard_threshold
from dagc.compressors.random_k import random_k
from dagc.compressors.top_k import top_k
from dagc.draws import draw
from dagc.sparse import Sparse

__all__ = ["SELECT", "Total", "total"]

STREAM_FROM = 1 << 21
"""From this many entries on, sums are written past the cache, where they would not stay until the next step."""
FIRST = 1 << 13
"""The smallest buffer for entries above a threshold."""

GUESS = 0, 0
"""The lower and upper key between which Top-k expects its threshold; zeros if it is to be estimated from a sample."""

Floats = NDArray[np.float32]
NOTHING = np.zeros(0, dtype=np.float32)
KINDS = {torch.float32: kernels.FP32, torch.float16: kernels.FP16, torch.bfloat16: kernels.BF16}
INDEX, VALUE = np.dtype(np.int64), np.dtype(np.float32)


class _Last(threading.local):
    """What a thread's last call found: the guess for its next one."""

    room = FIRST


_last = _Last()


class Total(NamedTuple):
    """The vector to select from: residual + gradient, or the gradient alone."""

    size: int
    tensors: Sequence[torch.Tensor]  # keeps alive what `parts` points to
    parts: NDArray[np.int64]
    residual: Floats  # empty if there is none
    out: Floats  # where the sum goes, with zero for selected entries; empty if the residual is

    @property
    def stream(self) -> bool:
        return len(self.out) >= max(1, STREAM_FROM)

    def pass_over(self, threshold: int, cursor: NDArray[np.int64], indices: Any, values: Any) -> bool:
        """Collect from the cursor on. True if the buffers are full. Refuses sums that are not finite."""
        full = kernels.collect(self.parts, self.residual, self.out, self.stream, threshold, cursor, indices, values)
        if cursor[4]:
            self.refuse()
        return bool(full)

    def refuse(self) -> None:
        """Raise the error for sums that are not finite; it names the first one."""
        vector = torch.cat([tensor.to(torch.float32) for tensor in self.tensors])
        refuse_non_finite(torch.from_numpy(self.residual) + vector if len(self.residual) else vector)


def total(tensors: Sequence[torch.Tensor], residual: Floats = NOTHING, out: Floats = NOTHING) -> Total:
    """The sum of a residual and a gradient, both contiguous vectors in CPU memory."""
    kept = [tensor if tensor.dtype in KINDS else tensor.to(torch.float32) for tensor in tensors]
    rows = [(tensor.data_ptr(), tensor.numel(), KINDS[tensor.dtype]) for tensor in kept]
    return Total(sum(row[1] for row in rows), kept, np.array(rows, dtype=np.int64), residual, out)


def _top_k(total: Total, parameter: int, seed: int) -> Sparse:
    count = checked_count(parameter, total.size)
    candidates = pool.take(2 * (min(2 * count + 8192, total.size) + kernels.BLOCK), INDEX)
    indices, values = pool.take(count + kernels.LANES, INDEX), pool.take(count + kernels.LANES, VALUE)
    source = total.parts, total.residual, total.out, total.stream, total.size
    found = kernels.top_k(*source, count, GUESS, candidates, indices, values)
    if found < 0:
        total.refuse()
    if found < count:  # zeros were left out: free their memory
        indices, values = indices[:found].copy(), values[:found].copy()
    return Sparse.trusted(total.size, indices[:found], values[:found])


def _hard_threshold(total: Total, parameter: float, seed: int) -> Sparse:
    """Starts with room for twice as many entries as last time, and doubles it when it is full."""
    threshold = max(1, int(checked_threshold(parameter).view(torch.int32)))
    room = min(_last.room, total.size) + kernels.BLOCK
    indices, values = pool.take(room, INDEX), pool.take(room, VALUE)
    cursor = np.zeros(5, dtype=np.int64)
    while total.pass_over(threshold, cursor, indices, values):
        indices, values = _twice(indices), _twice(values)
    found = int(cursor[3])
    _last.room = max(FIRST, 2 * found)
    indices, values = indices[:found], values[:found]
    if 4 * found < room:  # do not keep an oversized buffer
        indices, values = indices.copy(), values.copy()
    return Sparse.trusted(total.size, indices, values)


def _twice(array: NDArray[Any]) -> NDArray[Any]:
    """A copy with twice the room."""
    longer = pool.take(2 * len(array), array.dtype)
    longer[: len(array)] = array
    return longer


def _random_k(total: Total, parameter: int, seed: int) -> Sparse:
    count = checked_count(parameter, total.size)
    indices, values = np.empty(kernels.BLOCK, dtype=np.int64), np.empty(kernels.BLOCK, dtype=np.float32)
    total.pass_over(kernels.INFINITE, np.zeros(5, dtype=np.int64), indices, values)
    drawn = draw(seed % (1 << 64), total.size, count)
    sent = total.out[drawn]
    total.out[drawn] = 0.0
    return Sparse.trusted(total.size, drawn, sent, seed % (1 << 64))


SELECT: dict[Any, Callable[[Total, Any, int], Sparse]] = {
    top_k: _top_k,
    hard_threshold: _hard_threshold,
    random_k: _random_k,
}
"""The kernel version of each compressor, applied to a `Total`. Random-k needs one with a residual."""
