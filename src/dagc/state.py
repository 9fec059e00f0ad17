"""The one file format for all state kept between rounds: named numbers and arrays, a version and a checksum.

A file is, in this order:

| bytes | content |
|---|---|
| 4 | `dagc` |
| 1 | version of this format: 1 |
| 8 | length of the head |
| | the head, JSON: `kind`, `version`, `numbers`, and `arrays`, a list of `[name, type, shape, offset]` |
| | zeros up to a multiple of 64 |
| | the arrays (offsets count from here), each followed by zeros up to a multiple of 64 |
| 4 | CRC-32 of everything before the arrays, then of each array's `checksum` and the zeros after the array |

Integers and arrays are little-endian. The format's version covers this table, the head's version the kind's content.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from math import prod
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagc.errors import CheckpointError, InvalidInput
from dagc.files import failure, write_atomically

__all__ = [
    "NewerVersion", "State", "below", "checksum", "dump_state", "is_count", "load_state", "parse_state",
    "save_state",
]  # fmt: skip

MAGIC = b"dagc"
FORMAT = 1
FIXED = len(MAGIC) + 1 + 8
ALIGN = 64
BLOCK = 1 << 15
CHECKSUM = 4
DIMENSIONS = 32
"""The most axes that every supported numpy can hold."""
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


class NewerVersion(CheckpointError):
    """A file that is intact, but was written by a newer version of dagc."""


class State(NamedTuple):
    """What was in a file.

    Attributes:
        version: The version passed to `save_state`; the caller migrates older ones.
        numbers: As they come back from JSON: keys are strings, tuples have become lists.
        arrays: By name, writable. They share one buffer: keeping a small one keeps all of it.
    """

    version: int
    numbers: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def checksum(array: NDArray[Any]) -> int:
    """CRC-32 of the sums of every 4,096 words of eight bytes, then of the bytes left over.

    Many times faster than the CRC-32 of all bytes. Any single change is detected; words that changed places within
    their 32,768 bytes are not.

    Example:
        >>> checksum(np.arange(10, dtype=np.float32))
        3869632361
    """
    raw = _raw(array)
    end = len(raw) // BLOCK * BLOCK
    sums = raw[:end].view("<u8").reshape(-1, BLOCK // 8).sum(axis=1, dtype="<u8")
    return zlib.crc32(raw[end:].data, zlib.crc32(sums.data))


def save_state(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    numbers: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    private: bool = False,
) -> None:
    """Write a state. The file is replaced as a whole, or stays as it was.

    Args:
        path: The file.
        kind: What the state belongs to; `load_state` refuses any other kind.
        version: The version of the content of `numbers` and `arrays`, from 1.
        numbers: Anything that JSON can hold.
        arrays: Booleans, integers and floats of up to 64 bits. They are written without copying them.
        private: Only the user may read the file.

    Raises:
        CheckpointError: The file cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "it.state"
        ...     save_state(path, "example", 1, {"round": 7}, {"residual": np.ones(3, np.float32)})
        ...     load_state(path, "example", newest=1)
        State(version=1, numbers={'round': 7}, arrays={'residual': array([1., 1., 1.], dtype=float32)})
    """
    parts = _parts(path, kind, version, numbers, arrays)
    try:
        with write_atomically(path, private) as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {failure(error)}") from error


def dump_state(kind: str, version: int, numbers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """What `save_state` would write.

    Example:
        >>> state = dump_state("example", 1, {"round": 7}, {})
        >>> parse_state(state, "here", "example", newest=1).numbers
        {'round': 7}
    """
    return b"".join(_parts("a state", kind, version, numbers, arrays))


def _parts(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    numbers: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
) -> Iterator[memoryview | bytes]:
    contents = [_little_endian(path, name, array) for name, array in arrays.items()]
    try:
        head = _head(kind, version, numbers, arrays)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be written, JSON cannot hold its numbers: {error}") from error
    return _content(head, contents)


def _content(head: bytes, contents: list[NDArray[np.uint8]]) -> Iterator[memoryview | bytes]:
    yield head
    crc = zlib.crc32(head)
    for content in contents:
        zeros = bytes(-len(content) % ALIGN)
        yield content.data
        yield zeros
        crc = _add(crc, content, zeros)
    yield crc.to_bytes(CHECKSUM, "little")


def load_state(path: str | os.PathLike[str], kind: str, newest: int) -> State:
    """Read a state that `save_state` wrote, with this version of dagc or an earlier one.

    Args:
        path: The file.
        kind: What the state must belong to.
        newest: The newest version of this kind that the caller understands.

    Raises:
        CheckpointError: The file is missing, damaged, or of another kind.
        NewerVersion: It was written by a newer version of dagc (a `CheckpointError`, too).
    """
    try:
        with open(path, "rb") as file:
            return _state(file, os.fstat(file.fileno()).st_size, path, kind, newest)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def parse_state(content: bytes, path: str | os.PathLike[str], kind: str, newest: int) -> State:
    """Like `load_state`, for bytes from `dump_state`; errors name the file `path`."""
    return _state(BytesIO(content), len(content), path, kind, newest)


def _state(file: IO[bytes], size: int, path: str | os.PathLike[str], kind: str, newest: int) -> State:
    newer = NewerVersion(f"{path} was written by a newer version of dagc: update dagc to read it")
    try:
        read = _read(file, size)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged: {str(error) or type(error).__name__}") from error
    if read is None:
        raise newer
    found, state = read
    if found != kind:
        raise CheckpointError(f"{path} holds a state of kind {found!r:.100}, not {kind!r}")
    if state.version > newest:
        raise newer
    return state


class _Entry(NamedTuple):
    """An array listed in a head; its offset counts from where the arrays begin."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int

    @property
    def length(self) -> int:
        """In bytes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The offset of the next one."""
        return _aligned(self.offset + self.length)


def _head(kind: str, version: int, numbers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Everything before the arrays."""
    listed, offset = [], 0
    for name, array in arrays.items():
        listed.append((name, array.dtype.name, array.shape, offset))
        offset += _aligned(array.nbytes)
    fields = {"kind": kind, "version": version, "numbers": numbers, "arrays": listed}
    text = json.dumps(fields, separators=(",", ":")).encode()
    head = MAGIC + bytes([FORMAT]) + len(text).to_bytes(8, "little") + text
    return head.ljust(_aligned(len(head)), b"\0")


def _read(file: IO[bytes], size: int) -> tuple[str, State] | None:
    """The kind and the state in a file; None if its format is newer than ours."""
    fixed = file.read(FIXED)
    if len(fixed) < FIXED or fixed[:4] != MAGIC or fixed[4] < 1:
        raise ValueError("it does not start like a file of dagc")
    if fixed[4] > FORMAT:
        return None
    length = int.from_bytes(fixed[5:], "little")
    start = _aligned(FIXED + length)
    if start + CHECKSUM > size:
        raise ValueError(f"it has {size:,} bytes, but its head claims {length:,}")
    rest = file.read(start - FIXED)
    head = json.loads(rest[:length].decode())
    if not isinstance(head, dict) or set(head) != {"kind", "version", "numbers", "arrays"}:
        raise ValueError("its head is malformed")
    kind, version, numbers = head["kind"], head["version"], head["numbers"]
    if not isinstance(kind, str) or not is_count(version) or not isinstance(numbers, dict):
        raise ValueError("its head is malformed")
    entries = _entries(head["arrays"])
    end = entries[-1].end if entries else 0
    if start + end + CHECKSUM != size:
        raise ValueError(f"it has {size:,} bytes, but its head says {start + end + CHECKSUM:,}")
    buffer = np.empty(end + CHECKSUM, np.uint8)
    if file.readinto(buffer.data) != len(buffer):  # type: ignore[attr-defined]
        raise ValueError("it ends too early")
    crc = zlib.crc32(rest, zlib.crc32(fixed))
    arrays = {}
    for entry in entries:
        content, zeros = np.split(buffer[entry.offset : entry.end], [entry.length])
        crc = _add(crc, content, zeros.tobytes())
        array = content.view(entry.dtype.newbyteorder("<")).reshape(entry.shape)
        arrays[entry.name] = array.astype(entry.dtype, copy=False)
    if crc.to_bytes(CHECKSUM, "little") != buffer[end:].tobytes():
        raise ValueError("its checksum does not match")
    return kind, State(version, numbers, arrays)


def _entries(listed: list[Any]) -> list[_Entry]:
    """The arrays listed in a head, which must be consecutive."""
    entries: list[_Entry] = []
    names = set()
    for name, dtype, shape, offset in listed:
        if not isinstance(name, str) or name in names:
            raise ValueError(f"its array {name!r:.100} is listed twice, or that is not a name")
        if dtype not in TYPES:
            raise ValueError(f"its array {name!r:.100} is of type {dtype!r:.100}")
        if not isinstance(shape, list) or len(shape) > DIMENSIONS or not all(map(is_count, shape)):
            raise ValueError(f"its array {name!r:.100} has shape {shape!r:.100}")
        expected = entries[-1].end if entries else 0
        if offset != expected:
            raise ValueError(f"its array {name!r:.100} is at {offset!r:.100}, not at {expected:,}")
        names.add(name)
        entries.append(_Entry(name, np.dtype(dtype), tuple(shape), expected))
    return entries


def _add(crc: int, content: NDArray[np.uint8], zeros: bytes) -> int:
    """The file's checksum, continued with one more array and the zeros after it."""
    return zlib.crc32(checksum(content).to_bytes(CHECKSUM, "little") + zeros, crc)


def _little_endian(path: object, name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    """An array's bytes as written: a view if the memory already has that layout."""
    if array.dtype.name not in TYPES:
        raise InvalidInput(
            f"{path} cannot hold the array {name!r} of type {array.dtype}: use one of {', '.join(TYPES)}"
        )
    return _raw(array.astype(array.dtype.newbyteorder("<"), copy=False))


def _raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _aligned(length: int) -> int:
    return -(-length // ALIGN) * ALIGN


def is_count(value: object) -> bool:
    """Whether it is an integer from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def below(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
