"""A node's file, changed in place: two models and two residuals in fixed places, and two small heads that take turns.

| bytes | content |
|---|---|
| 64 | `dagn`, the version of this format, the number of entries, the length of a head's place, CRC-32 of these |
| 2 · length | the places of two heads: 8 bytes for a state's length, then that state (`dagc.state`) |
| 4 · entries, four times | two models, two residuals; float32, each up to a multiple of 64 |

A round writes the new residual where the older one is, and its head where the older head is; so the newest state is
whole until the next one is. The state is the newest head whose model and residual have the checksums that the head
says. That holds after kill -9, and after a loss of power in whatever order the disk has written.

A model that has changed in many entries is written as residuals are. Few entries are in the head, with those of the
round before, and are written to the model's place in the next round: a head that is on the disk never rests on entries
that may not be. A first model, or a head that has outgrown its place, makes a new file.
"""

import os
import zlib
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.errors import CheckpointError
from dagc.files import failure, write_atomically
from dagc.state import CHECKSUM, NewerVersion, State, checksum, dump_state, parse_state

__all__ = ["KIND", "MAGIC", "Place", "Stored", "change", "replace", "restore"]

MAGIC = b"dagn"
FORMAT = 1
KIND = "node"
LENGTH = 8
ALIGN = 64
FEW = 1024
"""A model of which more than one in so many entries has changed is written whole. A page holds as many entries, so with
more changes nearly every page would be written anyway."""
PATCHED = 12
"""Bytes that an entry of the model takes in a head."""
MODEL, RESIDUAL = 0, 2
"""The first of the two places of each."""
FLOAT = np.dtype("<f4")
NOTHING: dict[str, NDArray[Any]] = {
    "before.indices": np.empty(0, np.int64), "before.values": np.empty(0, np.float32),
    "patch.indices": np.empty(0, np.int64), "patch.values": np.empty(0, np.float32),
}  # fmt: skip
"""No entry of the model has changed."""


class Place(NamedTuple):
    """Where things are in a file of this many entries whose heads have this much room."""

    entries: int
    room: int

    @property
    def step(self) -> int:
        """From one array to the next."""
        return _aligned(FLOAT.itemsize * self.entries)

    def head(self, number: int) -> int:
        """Where a head begins."""
        return ALIGN + number % 2 * self.room

    def array(self, slot: int) -> int:
        """Where an array begins."""
        return ALIGN + 2 * self.room + slot * self.step

    @property
    def total(self) -> int:
        """The length of the file."""
        return self.array(4)

    def preamble(self) -> bytes:
        """The first bytes of the file."""
        fixed = MAGIC + bytes([FORMAT]) + self.entries.to_bytes(8, "little") + self.room.to_bytes(8, "little")
        return (fixed + zlib.crc32(fixed).to_bytes(4, "little")).ljust(ALIGN, b"\0")


class Stored(NamedTuple):
    """What was in a file, and what is needed to change it.

    Attributes:
        state: Of the head.
        model: The newest model.
        residual: What was kept back.
        place: Where things are.
        sequence: How often the file was written.
        slots: Where model and residual are.
        fell_back: Whether a newer head was not whole: that round's upload was never sent, or the disk is damaged.
        marks: Of both heads: they are others once somebody else has written.
    """

    state: State
    model: NDArray[np.float32]
    residual: NDArray[np.float32]
    place: Place
    sequence: int
    slots: tuple[int, int]
    fell_back: bool
    marks: list[bytes]


def replace(
    path: Path,
    version: int,
    numbers: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    model: NDArray[np.float32],
    residual: NDArray[np.float32],
) -> None:
    """Write a whole file; it is there, or what was there before."""
    slots = MODEL, RESIDUAL
    head = _head(version, numbers, {**arrays, **NOTHING}, 0, slots, model, residual)
    patches = 2 * PATCHED * (len(model) // FEW)  # of two rounds
    place = Place(len(model), _aligned(2 * len(head) + 4096 + patches))
    try:
        with write_atomically(path, private=True) as file:
            file.write(place.preamble() + head)
            for slot, array in zip(slots, (model, residual), strict=True):
                file.seek(place.array(slot))
                file.write(np.ascontiguousarray(array, FLOAT).data)
            file.truncate(place.total)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {failure(error)}") from error


def change(
    path: Path,
    stored: Stored,
    version: int,
    numbers: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    model: NDArray[np.float32],
    residual: NDArray[np.float32] | None,
    changed: NDArray[np.int64],
) -> bool:
    """Change the file that `stored` was read from; False if what is new does not fit, and nothing was changed.

    A node that was given up while it trained may have a successor that has written since: then this is too late.

    Args:
        path: The file.
        stored: What was read from it.
        version: As in `save_state`, like the two that follow.
        numbers: Everything but the arrays.
        arrays: All but model and residual.
        model: The model, and
        residual: the residual; None if it is as it was.
        changed: Where the model differs from the stored one; some places may be in it twice.
    """
    place, old, patches, new = stored.place, stored.state.arrays, NOTHING, {}
    at, kept = stored.slots
    if FEW * len(changed) > place.entries:
        at = at ^ 1
        new[at] = model
    else:
        patches = {f"before.{key}": old[f"patch.{key}"] for key in ("indices", "values")}
        patches |= {"patch.indices": changed, "patch.values": model[changed]}
    if residual is not None:
        kept = kept ^ 1
        new[kept] = residual
    sequence, residual = stored.sequence + 1, stored.residual if residual is None else residual
    head = _head(version, numbers, {**arrays, **patches}, sequence, (at, kept), model, residual)
    try:
        with path.open("r+b", buffering=0) as file:
            if _marks(file, place) != stored.marks:
                raise CheckpointError(f"{path} was changed by another process of this node, which goes on from there")
            if len(head) > place.room:
                return False
            if at not in new and len(old["before.indices"]) + len(old["patch.indices"]):
                _apply(np.memmap(file, FLOAT, "r+", place.array(at), place.entries), old)
            for slot, array in new.items():
                _write(file, np.ascontiguousarray(array, FLOAT).data.cast("B"), place.array(slot))
            _write(file, memoryview(head), place.head(sequence))
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {failure(error)}") from error
    return True


def restore(path: Path, newest: int, mapped: bool = False) -> Stored:
    """The newest state in a file that is whole.

    Args:
        path: The file.
        newest: The newest version of the state that the caller understands.
        mapped: Whether model and residual are views of the file, which hold until it is written the next time but one.

    Raises:
        CheckpointError: There is none.
        NewerVersion: It was written by a newer version of dagc.
    """
    try:
        with path.open("rb") as file:
            place = _place(path, file.read(ALIGN), os.fstat(file.fileno()).st_size)
            heads = []
            for number in range(2):
                file.seek(place.head(number))
                heads.append(file.read(place.room))
            marks = _marks(file, place)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    states, broken = [], False
    for head in heads:
        length = int.from_bytes(head[:LENGTH], "little")
        if not length:
            continue
        try:
            states.append(parse_state(head[LENGTH : LENGTH + length], path, KIND, newest))
        except NewerVersion:
            raise
        except CheckpointError:
            broken = True
    for state in sorted(states, key=lambda one: _number(one, "sequence"), reverse=True):
        slots = _number(state, "model slot") & 1, RESIDUAL + (_number(state, "residual slot") & 1)
        shape = (4, place.step // FLOAT.itemsize)
        found = np.memmap(path, FLOAT, "c", place.array(0), shape).view(np.ndarray)[:, : place.entries]
        model, residual = (found[slot] if mapped else found[slot].copy() for slot in slots)
        _apply(model, state.arrays)
        if checksum(model) == _number(state, "model") and checksum(residual) == _number(state, "residual"):
            return Stored(state, model, residual, place, _number(state, "sequence"), slots, broken, marks)
        broken = True
    raise CheckpointError(f"{path} is damaged: neither of its heads has its model and residual")


def _head(
    version: int,
    numbers: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    sequence: int,
    slots: tuple[int, int],
    model: NDArray[np.float32],
    residual: NDArray[np.float32],
) -> bytes:
    about = {**numbers, "sequence": sequence, "model slot": slots[0] - MODEL, "residual slot": slots[1] - RESIDUAL}
    about |= {"model": checksum(model), "residual": checksum(residual)}
    state = dump_state(KIND, version, about, arrays)
    return len(state).to_bytes(LENGTH, "little") + state


def _place(path: Path, preamble: bytes, size: int) -> Place:
    if len(preamble) == ALIGN and preamble[:4] == MAGIC and preamble[4] > FORMAT:
        raise NewerVersion(f"{path} was written by a newer version of dagc: update dagc to read it")
    place = Place(int.from_bytes(preamble[5:13], "little"), int.from_bytes(preamble[13:21], "little"))
    if preamble != place.preamble() or place.total != size:
        raise CheckpointError(f"{path} is damaged: its first bytes, or its {size:,} bytes, are not as they should be")
    return place


def _marks(file: BinaryIO | FileIO, place: Place) -> list[bytes]:
    """The length and the checksum of each head."""
    found = []
    for number in range(2):
        file.seek(place.head(number))
        length = file.read(LENGTH) or b""
        file.seek(place.head(number) + min(LENGTH + int.from_bytes(length, "little"), place.room) - CHECKSUM)
        found.append(length + (file.read(CHECKSUM) or b""))
    return found


def _apply(model: NDArray[np.float32], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Set what the last two rounds have changed; twice does no harm."""
    for name in ("before", "patch"):
        model[arrays[f"{name}.indices"]] = arrays[f"{name}.values"]


def _write(file: FileIO, content: memoryview, at: int) -> None:
    file.seek(at)
    while content:
        content = content[file.write(content) :]


def _number(state: State, name: str) -> int:
    number = state.numbers.get(name)
    return number if isinstance(number, int) else -1


def _aligned(length: int) -> int:
    return -(-length // ALIGN) * ALIGN
