"""How indices are written: seven codecs, and the rule that picks the smallest."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.draws import draw
from dagc.errors import InvalidInput, MalformedPayload, unknown
from dagc.sparse import Sparse
from dagc.wire import rice, tight_rice

__all__ = ["INDEX_CODECS", "IndexCodec", "by_number", "largest_section", "smallest"]

Ints = NDArray[np.int64]


class IndexCodec(NamedTuple):
    """One way to write indices.

    Attributes:
        id: Its number on the wire, from 0 to 7.
        plan: `sparse -> (size, write) | None`: the exact number of bytes, known before anything is written, and the
            function that writes them; None if this codec does not apply.
        read: `(section, size, count) -> indices`: checks everything, and raises `MalformedPayload` for anything that
            is not exactly right.
    """

    id: int
    plan: Callable[[Sparse], tuple[int, Callable[[], bytes]] | None]
    read: Callable[[memoryview, int, int], Ints]


def _plan_dense(sparse: Sparse) -> tuple[int, Callable[[], bytes]] | None:
    return (0, bytes) if len(sparse) == sparse.size else None


def _read_dense(section: memoryview, size: int, count: int) -> Ints:
    if count != size or len(section):
        raise MalformedPayload(
            f"a dense frame has all {size} entries and no index bytes, not {count} entries and {len(section)} bytes"
        )
    return np.arange(size)


def _plan_bitmap(sparse: Sparse) -> tuple[int, Callable[[], bytes]]:
    def write() -> bytes:
        bits = np.zeros(sparse.size, dtype=np.uint8)
        bits[sparse.indices] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    return -(-sparse.size // 8), write


def _read_bitmap(section: memoryview, size: int, count: int) -> Ints:
    if len(section) != -(-size // 8):
        raise MalformedPayload(f"a bitmap of {size} entries takes {-(-size // 8)} bytes, not {len(section)}")
    indices = np.flatnonzero(np.unpackbits(np.frombuffer(section, dtype=np.uint8), bitorder="little"))
    if len(indices) != count:
        raise MalformedPayload(f"the bitmap has {len(indices)} entries, the header says {count}")
    if count and indices[-1] >= size:
        raise MalformedPayload(f"index {indices[-1]} is out of range for a vector of {size}")
    return indices


def _rice(id: int, adaptive: bool) -> IndexCodec:
    def plan(sparse: Sparse) -> tuple[int, Callable[[], bytes]]:
        planned = rice.plan(sparse.indices, adaptive)
        return planned.size, lambda: rice.write(planned, adaptive)

    return IndexCodec(id, plan, lambda section, size, count: rice.read(section, size, count, adaptive))


def _plan_tight(sparse: Sparse) -> tuple[int, Callable[[], bytes]]:
    return tight_rice.plan(sparse.indices, sparse.size), lambda: tight_rice.write(sparse.indices, sparse.size)


def _plan_seed(sparse: Sparse) -> tuple[int, Callable[[], bytes]] | None:
    seed = sparse.seed
    return None if seed is None else (8, lambda: seed.to_bytes(8, "little"))


def _read_seed(section: memoryview, size: int, count: int) -> Ints:
    if len(section) != 8:
        raise MalformedPayload(f"a seed takes 8 bytes, not {len(section)}")
    return draw(int.from_bytes(section, "little"), size, count)


def _plan_raw(sparse: Sparse) -> tuple[int, Callable[[], bytes]] | None:
    return None if sparse.size > RAW_SIZE else (4 * len(sparse), lambda: sparse.indices.astype("<i4").tobytes())


def _read_raw(section: memoryview, size: int, count: int) -> Ints:
    if len(section) != 4 * count:
        raise MalformedPayload(f"{count} raw indices take {4 * count} bytes, not {len(section)}")
    indices = np.frombuffer(section, dtype="<i4").astype(np.int64)
    if count and (indices[0] < 0 or indices[-1] >= size or np.any(np.diff(indices) <= 0)):
        raise MalformedPayload(f"raw indices do not ascend, or one is out of range for a vector of {size}")
    return indices


INDEX_CODECS: dict[str, IndexCodec] = {
    "dense": IndexCodec(0, _plan_dense, _read_dense),
    "bitmap": IndexCodec(1, _plan_bitmap, _read_bitmap),
    "rice": _rice(2, adaptive=False),
    "adaptive-rice": _rice(3, adaptive=True),
    "seed": IndexCodec(4, _plan_seed, _read_seed),
    "tight-rice": IndexCodec(5, _plan_tight, tight_rice.read),
    "raw": IndexCodec(6, _plan_raw, _read_raw),
}
"""Every index codec by name."""
ONLY_COMPACT = ("tight-rice",)
"""Picked automatically in compact frames only: it is made for few entries, and newer than plain frames."""
ONLY_ASKED = ("raw",)
"""Never picked automatically: it is for comparisons with systems that send int32."""
RAW_SIZE = 1 << 31
"""The longest vector whose indices fit into an int32."""


def smallest(sparse: Sparse, name: str | None = None, compact: bool = False) -> tuple[int, bytes]:
    """The id of the named codec, or of the one that needs the fewest bytes, and its section."""
    if name is not None and name not in INDEX_CODECS:
        raise unknown("index codec", name, INDEX_CODECS)
    best: tuple[int, str, Callable[[], bytes]] | None = None
    left_out = ONLY_ASKED if compact else (*ONLY_ASKED, *ONLY_COMPACT)
    names = [name] if name else [name for name in INDEX_CODECS if name not in left_out]
    if name is None and len(sparse) <= rice.BLOCK:
        names.remove("adaptive-rice")  # with a single block it is as long as plain Rice
    for known in names:
        planned = INDEX_CODECS[known].plan(sparse)
        if planned is not None and (best is None or planned[0] < best[0]):
            best = planned[0], known, planned[1]
    if best is None:
        raise InvalidInput(f"the index codec {name!r} cannot hold {len(sparse)} of {sparse.size} entries")
    _, chosen, write = best
    number = INDEX_CODECS[chosen].id
    if not 0 <= number < 8 or by_number(INDEX_CODECS, number) != chosen:
        raise InvalidInput(f"the index codec {chosen!r} has the number {number}, which is not its own: choose another")
    return number, write()


def by_number(codecs: Mapping[str, Any], number: int) -> str | None:
    """The name of the codec with this number, of those that were registered until now; None if there is none."""
    return next((name for name, codec in codecs.items() if codec.id == number), None)


def largest_section(size: int, counts: Ints, compact: bool = False, raw: bool = False) -> Ints:
    """The most bytes that a number of indices of a vector can take, wherever they are.

    Gaps add up to at most size − count, so b low bits and unary quotients take at most count·(b+1) + (size − count)/2^b
    bits. The second bound covers indices that end early and so take b − 1 bits.
    """
    if raw:
        return np.where(counts == size, 0, 4 * counts)
    k = np.maximum(counts, 1)
    b = rice.best_parameter(size - k, k)
    bits = np.maximum(k * (b + 1) + ((size - k) >> b), np.where(b > 0, np.ceil(k * (b + 2.0782)).astype(np.int64), 0))
    coded = np.minimum(-(-bits // 8) + 2, -(-size // 8))  # a parameter byte, and padding for each bit string
    if compact:
        coded = np.minimum(coded, tight_rice.largest(size, counts))
    return np.where(counts == size, 0, np.where(counts == 0, 0, coded))
