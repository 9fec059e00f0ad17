"""A coder with memory: both sides remember what a client sent before, so its next frame takes fewer bytes.

Error feedback makes sending nearly periodic: an entry that was sent takes about as long as last time until it is large
enough to be sent again. Neighbors are sent together, and the entries of a row mostly have the same sign. A `Memory`
estimates from this how likely each coordinate is to be in the next frame: its share of what is left to send is
2^w / (sum of 2^w over the coordinates left), where w is a sum of one number from each table.

The memory changes only with frames that were accepted (`learn`), so either both sides have counted a frame or neither
has. `docs/reference/wire-entries.md` has every step, `docs/studies/coder.md` what each table is worth.
"""

import zlib
from collections.abc import Mapping
from copy import copy
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload
from dagc.sparse import Sparse
from dagc.state import MISFITS, Check, flag, like, whole
from dagc.wire.shapes import Shapes, extents

__all__ = ["MOST_ENTRIES", "MOST_SIZE", "Memory"]

MOST_SIZE = 1 << 26
"""The largest model. With this many entries, and any number sent, every number in the computation fits 64 bits."""
MOST_ENTRIES = 1 << 18

OCTAVE = 1 << 16  # one, as a weight
SEEN = 4 << 16  # every context starts as if four entries had been seen
FULL = 0xFFFF  # the last value of the clock. When it is reached, half of it is subtracted from all times
SIGNS = 3 * 17
TABLES = {
    "phase": (8, -39, -39, -29, -17, -9, 14, -66, -18, 5, 19, 28, 34, 36, 35, 33, 26, 13),
    "near": (19, 16, 13, 7, -1, -9, -11, -4, -24),
    "column": (13, 11, 8, 4, -2, -11, -15, -6, -21),
    "gap": (26, 12, 9, 5, 2, 8, 3, -15),
    "gap two": (0, 20, 11, 8, 3, 7, -1, -7),
}
"""The initial weights, in 16ths of an octave: the mean over trainings of several models (`benchmarks/coder.py`)."""
AGREE = ((50, 25, 75), (71, 27, 71), (98, 80, 99))
"""How likely a sign is to agree with its row's lean, in percent. One row each for a lean of 0 (taken as positive), of
1 to 7, and of 8; one column each for coordinates never sent, last sent with the other sign, or with the same."""
TRIALS = 2  # how many observed signs each of these percentages counts for


NUMBERS = {"frames": 1 << 63, "fingerprint": 1 << 32, "mean": 0x7F80, "now": FULL + 1}
"""What a memory's state holds besides arrays, and below what."""


class Memory:
    """What one side of a connection remembers of the frames sent over it.

    Args:
        shapes: The shapes of the model's tensors. A tensor's first dimension is its number of rows; a vector is one
            row.
        clocks: Whether to remember when each coordinate was sent, which takes 4 bytes each.
        signs: Whether frames hold signs and one magnitude, which the coder then writes, too; if not, it writes
            indices only.

    Attributes:
        layout: CRC-32 of the rows and of whether there are clocks and signs. Both sides must have the same.
        frames: How many frames were counted.
        fingerprint: CRC-32 of their entries. Memories with the same fingerprint are equal.

    Example:
        >>> sparse = Sparse(784, [3, 4, 500], [0.5, 0.5, -0.5])
        >>> sender, receiver = Memory([(8, 98)]), Memory([(8, 98)])
        >>> section = sender.write(sparse, most=3)
        >>> read, _ = receiver.read(section, most=3)
        >>> read == sparse, sender.fingerprint == receiver.fingerprint
        (True, True)
        >>> for memory in (sender, receiver):
        ...     memory.learn(sparse)
        >>> sender.frames, sender.fingerprint == receiver.fingerprint
        (1, True)
        >>> len(section) > len(sender.write(sparse, most=3))   # repeating it is less of a surprise
        True
    """

    def __init__(self, shapes: Shapes, clocks: bool = True, signs: bool = True) -> None:
        self._rows, self._width = _rows(tuple(extents(shapes)))
        self.size = int(self._rows[-3] + self._rows[-2])
        if self.size > MOST_SIZE:
            raise InvalidInput(f"the coder is for models of at most {MOST_SIZE:,} entries, not {self.size:,}")
        self.clocks, self.signs = clocks, signs
        self.layout = zlib.crc32(bytes((clocks, signs)), zlib.crc32(self._rows.astype("<u4").data))
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.frames, self.fingerprint, self.mean, self.now = 0, 0, 0, 1
        self.tables = _first_tables(len(self._rows) // 3)
        self.columns = np.zeros(self._width, dtype=np.uint16)
        self.last, self.interval = (np.zeros(self.size if self.clocks else 0, dtype=np.uint16) for _ in range(2))
        self._lesson: _Lesson | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in use. The tables count twice: a frame that was read but not yet counted has a copy."""
        return int(self.tables.nbytes + sum(getattr(self, name).nbytes for name in self._arrays))

    def write(self, sparse: Sparse, most: int | None = None, limit: int | None = None) -> bytes | None:
        """Encode these entries as a section; None if there are too many, or if it would exceed `limit` bytes.

        If signs are coded, all entries must have the same magnitude, representable in bf16. `most` is how many entries
        there can be, if the reader knows that, too.
        """
        if len(sparse) > (MOST_ENTRIES if most is None else min(most, MOST_ENTRIES)):
            return None
        from dagc.wire import _coder  # compiles, so only on use

        data = np.zeros(64 + 4 * len(sparse) + self.size // 4 if limit is None else limit, dtype=np.uint8)
        length, _ = self._walk(_coder.WRITE, data, self._entries(sparse), most)
        return None if length < 0 else data[:length].tobytes()

    def read(self, section: memoryview | bytes, most: int | None = None, first: bool = False) -> tuple[Sparse, int]:
        """Decode a section: its entries, with values of 1 if no signs are coded, and its length in bytes.

        Anything may follow it. `MalformedPayload` if it is not exactly what `write` produces. If the writer's memory
        was empty (`first`), `learn` resets this one before it counts the frame.
        """
        if first and self.frames:
            empty = copy(self)
            empty.reset()
            read = empty.read(section, most)
            self._lesson = empty._lesson
            return read
        from dagc.wire import _coder

        room = min(self.size if most is None else most, self.size, MOST_ENTRIES)
        entries = _Entries(np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.uint8), 0)
        length, entries = self._walk(_coder.READ, np.frombuffer(section, dtype=np.uint8).copy(), entries, most)
        if length < 0 or (self.signs and not entries.mean and entries.negative.any()):
            raise MalformedPayload("the coded section is invalid: damaged, or written with another memory")
        magnitude = np.array([entries.mean << 16 if self.signs else 0x3F800000], dtype=np.uint32).view(np.float32)
        values = np.where(entries.negative > 0, -magnitude, magnitude)
        return Sparse.trusted(self.size, entries.indices, values), length

    def learn(self, sparse: Sparse) -> None:
        """Count a frame with these entries. The other side must count it, too."""
        entries, lesson = self._entries(sparse), self._lesson
        if lesson is not None and not lesson.before and lesson.after == entries.fingerprint(0):
            self.reset()
        elif lesson is None or lesson[:2] != (self.fingerprint, entries.fingerprint(self.fingerprint)):
            from dagc.wire import _coder

            self._walk(_coder.LEARN, np.zeros(0, dtype=np.uint8), entries, None)
            lesson = self._lesson
        assert lesson is not None
        self.tables, self.fingerprint, self._lesson = lesson.tables, lesson.after, None
        self.mean = entries.mean
        self.frames += 1
        self._stamp(entries)
        if self.now == FULL:
            for times in (self.columns, self.last):
                times[:] = np.where(times > 0, np.maximum(times, 32769) - 32768, 0)
            self.now -= 32768
        self.now += 1

    def _entries(self, sparse: Sparse) -> "_Entries":
        if not self.signs or not len(sparse):
            return _Entries(sparse.indices, np.zeros(len(sparse), dtype=np.uint8), 0)
        magnitude = int(np.abs(sparse.values[:1]).view(np.uint32)[0] >> 16)  # the bits of bf16
        return _Entries(sparse.indices, (sparse.values < 0).astype(np.uint8), magnitude)

    def _stamp(self, entries: "_Entries") -> None:
        """Record when each coordinate and each column was sent."""
        indices, now = entries.indices, self.now
        row = np.searchsorted(self._rows[0::3], indices, side="right") - 1
        self.columns[self._rows[2::3][row] + indices - self._rows[0::3][row]] = now
        if self.clocks:
            last = self.last[indices].astype(np.int64)
            since = np.where(last > 0, np.minimum(now - last, 32767), 0)
            self.interval[indices] = 2 * since + entries.negative
            self.last[indices] = now

    def _walk(
        self, mode: int, data: NDArray[np.uint8], entries: "_Entries", most: int | None
    ) -> tuple[int, "_Entries"]:
        """Write, read or only learn. Returns the section's length, or -1, and the entries."""
        from dagc.wire import _coder

        learned = self.tables.copy()
        ages = self.now - self.columns.astype(np.int64)
        octaves = np.searchsorted(np.int64(1) << np.arange(1, 8), ages, side="right")
        columns = np.where(self.columns > 0, octaves, 8)
        past = _coder.Past(self._rows, self.last, self.interval, columns, self.now, self.size)
        indices, negative = np.append(entries.indices, -1), np.append(entries.negative, np.uint8(0))
        frame = _coder.Frame(indices, negative, self.signs, -1 if most is None else most)
        tables = _coder.Tables(*self._parts(learned))
        known = len(entries.indices), entries.mean, self.mean
        count, mean, length = _coder.walk(mode, data, _coder.begin(data), tables, past, frame, *known)
        if count < 0:
            return -1, entries
        done = _Entries(indices[:count], negative[:count], int(mean))
        self._lesson = _Lesson(self.fingerprint, done.fingerprint(self.fingerprint), learned)
        return int(length), done

    def _parts(self, tables: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Weights, what was seen of each, the chances of signs, trials, leans."""
        rows = len(self._rows) // 3
        contexts = (len(tables) - 2 * SIGNS - rows) // 2
        return np.split(tables, np.cumsum([contexts, contexts, SIGNS, SIGNS]))

    @property
    def _arrays(self) -> tuple[str, ...]:
        return ("tables", "columns", "last", "interval") if self.clocks else ("tables", "columns")

    def state_dict(self) -> dict[str, Any]:
        """The whole state; arrays are not copied."""
        return {name: getattr(self, name) for name in ("clocks", "signs", *NUMBERS, *self._arrays)}

    @classmethod
    def restored(cls, shapes: Shapes, state: Mapping[str, Any]) -> Self:
        """A memory with the state returned by `state_dict`. State that does not fit is refused."""
        try:
            memory = cls(shapes, flag(state["clocks"]), flag(state["signs"]))
            checks: dict[str, Check] = {name: partial(whole, below=below) for name, below in NUMBERS.items()}
            checks |= {name: like(getattr(memory, name)) for name in memory._arrays}
            for name, check in checks.items():
                setattr(memory, name, check(state[name]))
        except MISFITS as error:
            raise InvalidInput(f"the coder's memory does not fit this model: {error!r}") from error
        if not memory._in_range():
            raise InvalidInput("the coder's memory is damaged: a number in its state is out of range")
        return memory

    def _in_range(self) -> bool:
        """Whether the state can have come from frames, as far as the kernels rely on that."""
        limits = ((-12 * OCTAVE, 12 * OCTAVE), (1, 1 << 50), (1, 65535), (0, 255), (-8, 8))
        parts = zip(self._parts(self.tables), limits, strict=True)
        return (
            all(np.all((low <= part) & (part <= high)) for part, (low, high) in parts)
            and bool(self.frames) == bool(self.fingerprint)
            and max(self.columns.max(), self.last.max(initial=0)) < self.now
        )


class _Entries(NamedTuple):
    indices: NDArray[np.int64]
    negative: NDArray[Any]
    mean: int

    def fingerprint(self, before: int) -> int:
        head = self.mean.to_bytes(2, "little") + len(self.indices).to_bytes(4, "little")
        after = zlib.crc32(self.indices.astype("<u4").data, zlib.crc32(head, before))
        return zlib.crc32(np.packbits(self.negative).data, after) or 1  # 0 means an empty memory


class _Lesson(NamedTuple):
    """The memory's tables after a frame, computed while it was coded."""

    before: int
    after: int
    tables: NDArray[np.int64]


@lru_cache(maxsize=16)
def _rows(parts: tuple[tuple[int, int, int], ...]) -> tuple[NDArray[np.int64], int]:
    """Start, length and first column of each row, in turn; and the total number of columns of all tensors."""
    if not parts:
        raise InvalidInput("a model without entries has nothing to code")
    table: list[int] = []
    first = 0
    for start, rows, length in parts:
        for row in range(rows):
            table += (start + row * length, length, first)
        first += length
    return np.array(table, dtype=np.int64), first


@lru_cache(maxsize=16)
def _first_tables(rows: int) -> NDArray[np.int64]:
    weights = [weight * OCTAVE // 16 for table in TABLES.values() for weight in table] + [0] * rows
    signs = [_first_chance(lean, last) for lean in range(-8, 9) for last in range(3)]
    return np.array(weights + [SEEN] * len(weights) + signs + [TRIALS] * SIGNS + [0] * rows, dtype=np.int64)


def _first_chance(lean: int, last: int) -> int:
    """The probability of a negative sign, in 65,536ths; `last` is 0 for never sent, 1 for positive, 2 for negative."""
    same = 2 if lean < 0 else 1
    percent = AGREE[min(abs(lean), 1) + (abs(lean) == 8)][0 if not last else 2 if last == same else 1]
    return (percent if lean < 0 else 100 - percent) * 65536 // 100
