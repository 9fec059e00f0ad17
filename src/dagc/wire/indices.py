"""How the indices of a frame are written: by whichever of four rules applies and takes the fewest bytes."""

import numpy as np
from numpy.typing import NDArray

from dagc.draws import draw
from dagc.errors import InvalidInput, MalformedPayload
from dagc.sparse import Sparse
from dagc.wire import rice

__all__ = ["BLOCKS", "EVEN", "PLAIN", "SEED", "read_indices", "write_indices"]

EVEN, BLOCKS, SEED, PLAIN = range(4)
"""Rice codes, even or in blocks; the seed that indices were drawn from; integers, if the value codec wants them.

If every entry is sent, there are no indices, and the rule is EVEN.
"""
SEED_BYTES = 8


def write_indices(sparse: Sparse, index_bytes: int) -> tuple[int, bytes]:
    """The number of the rule, and the section that it writes."""
    if len(sparse) == sparse.size:
        return EVEN, b""
    if index_bytes:
        if sparse.size > 1 << (8 * index_bytes - 1):
            raise InvalidInput(f"indices of {index_bytes} bytes are too small for a vector of {sparse.size:,} entries")
        return PLAIN, sparse.indices.astype(f"<i{index_bytes}").tobytes()
    kind, best = EVEN, rice.plan(sparse.indices, sparse.size, blocks=False)
    if len(sparse) > 1:
        blocks = rice.plan(sparse.indices, sparse.size, blocks=True)
        if blocks.size < best.size:
            kind, best = BLOCKS, blocks
    if sparse.seed is not None and best.size > SEED_BYTES:
        return SEED, sparse.seed.to_bytes(SEED_BYTES, "little")
    return kind, rice.write(best)


def read_indices(kind: int, section: memoryview, size: int, count: int, index_bytes: int) -> NDArray[np.int64]:
    """Decode the indices of an untrusted section; `MalformedPayload` if it is not exactly right."""
    if kind == EVEN and count == size:
        if len(section):
            raise MalformedPayload(f"all {size} entries need no indices, but there are {len(section)} bytes of them")
        return np.arange(size)
    if (kind == PLAIN) != bool(index_bytes):
        raise MalformedPayload(f"the index rule {kind} does not go with this value codec")
    if kind in (EVEN, BLOCKS):
        return rice.read(section, size, count, kind == BLOCKS)
    if kind == SEED:
        if len(section) != SEED_BYTES:
            raise MalformedPayload(f"a seed takes {SEED_BYTES} bytes, not {len(section)}")
        return draw(int.from_bytes(section, "little"), size, count)
    if kind != PLAIN:
        raise MalformedPayload(f"the frame uses the unknown index rule {kind}")
    if len(section) != index_bytes * count:
        raise MalformedPayload(f"{count} indices take {index_bytes * count} bytes, not {len(section)}")
    indices = np.frombuffer(section, dtype=f"<i{index_bytes}").astype(np.int64)
    if count and (indices[0] < 0 or indices[-1] >= size or np.any(indices[1:] <= indices[:-1])):
        raise MalformedPayload(f"the indices do not ascend, or one is out of range for a vector of {size}")
    return indices
