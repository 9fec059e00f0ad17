"""A pool for the large arrays of a step: touching new memory takes as long as the whole step on ten million entries."""

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SMALL = 1 << 19
"""Arrays of fewer bytes come from numpy directly: the system's allocator reuses such memory itself, and faster."""
LINE = 64
"""The bytes of a cache line. Blocks are aligned to one, since kernels write whole lines."""
KEEP_BLOCKS, KEEP_BYTES = 16, 1 << 28
"""At most so many blocks of similar size are kept, and so many bytes in them, or two blocks if those are larger."""

_Shelf = deque[NDArray[np.uint8]]


class _Lease:
    """Lends a block to one array, and puts it back on its shelf when the last user of that array is gone.

    numpy keeps the object whose `__array_interface__` an array was made from alive; views and tensors keep the array
    alive. So a block cannot be on its shelf while anybody can still read it, and nothing has to be counted.
    """

    __slots__ = ("__array_interface__", "_block", "_shelf")

    def __init__(self, block: NDArray[np.uint8], shelf: _Shelf, count: int, dtype: np.dtype[Any]) -> None:
        self._block = block
        self._shelf = shelf
        self.__array_interface__ = block[: count * dtype.itemsize].view(dtype).__array_interface__

    def __del__(self) -> None:
        # This runs in any thread, inside the garbage collector, at exit: one atomic call, no globals.
        self._shelf.append(self._block)


class Pool:
    """Arrays whose memory is reused, by any thread, as soon as nobody can see it any more.

    Blocks of 2^(n-1) to 2^n bytes are on one shelf: a block that fits is at most twice as large as needed. A full shelf
    frees the block unused for longest. All operations on a shelf are atomic: threads share the pool without a lock.
    """

    def __init__(self) -> None:
        self._shelves: list[_Shelf] = [deque(maxlen=max(2, min(KEEP_BLOCKS, KEEP_BYTES >> bits))) for bits in range(64)]

    def take(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A vector with arbitrary content, aligned to a cache line unless it is small."""
        size = count * dtype.itemsize
        if size < SMALL:
            return np.empty(count, dtype)
        shelf = self._shelves[size.bit_length()]
        for _ in range(len(shelf)):
            block = _pop(shelf)
            if block is None:
                break
            if len(block) >= size:
                return np.asarray(_Lease(block, shelf, count, dtype))
            shelf.appendleft(block)  # too small: to the end where blocks are dropped
        return np.asarray(_Lease(_new(size), shelf, count, dtype))

    def vector(self, size: int, device: Any = "cpu") -> torch.Tensor:
        """A float32 vector with arbitrary content, on any device."""
        if torch.device(device).type != "cpu":
            return torch.empty(size, dtype=torch.float32, device=device)
        return torch.from_numpy(self.take(size, np.dtype(np.float32)))

    def release(self) -> int:
        """Free all blocks that are not in use, and return how many bytes that were."""
        freed = 0
        for shelf in self._shelves:
            while (block := _pop(shelf)) is not None:
                freed += len(block)
        return freed


def _pop(shelf: _Shelf) -> NDArray[np.uint8] | None:
    try:
        return shelf.pop()
    except IndexError:  # checking first would not help: another thread may take the last one in between
        return None


def _new(size: int) -> NDArray[np.uint8]:
    """A block with up to an eighth to spare, since the next array of its kind may be a little longer."""
    step = 1 << (size.bit_length() - 4)
    size = -(-size // step) * step
    memory = np.empty(size + LINE, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % LINE
    return memory[start : start + size]


pool = Pool()  # all of dagc shares it


def release_memory() -> int:
    """Free the memory that dagc keeps for reuse, and return how many bytes that were.

    At most 256 MB are kept in blocks of similar size, or two blocks if those are larger. Call this when a run is over
    and the process continues. It is always safe: arrays and tensors in use are not affected.

    Example:
        >>> import dagc, torch
        >>> feedback = dagc.ErrorFeedback(dagc.top_k, size=1_000_000)
        >>> sparse = feedback.step(torch.ones(1_000_000), 1000)
        >>> dagc.release_memory() > 4_000_000, dagc.release_memory()
        (True, 0)
    """
    return pool.release()
