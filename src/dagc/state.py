"""The one file format for all state kept between rounds: safetensors, with everything that is not an array as JSON.

Whatever keeps state has `state_dict()`, a tree of dicts and lists whose leaves are arrays or what JSON can hold, and
`load_state_dict(state)`, which loads all of it or raises `InvalidInput` and changes nothing. Arrays in a tree are not
copies: write or copy them before the next step.

A file has a `kind`, which says what the state belongs to, the version of that kind's content, and a checksum over
everything. It is written as a whole and atomically.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load, save

from dagc.errors import CheckpointError, InvalidInput, shown
from dagc.files import failure, write_atomically

__all__ = [
    "BLOCK",
    "Damaged",
    "NewerVersion",
    "all_or_nothing",
    "checksum",
    "checksum_of_sums",
    "dump_state",
    "flag",
    "is_count",
    "load_part",
    "load_state",
    "parse_state",
    "save_state",
    "sequence",
    "whole",
]

META = "dagc"
"""The one entry of the header's metadata."""
MARK = "$"
ARRAY = f"{MARK}array"
"""Stands for an array in the JSON; its value is the tensor's name. A state's own keys get a second `MARK`."""
BLOCK = 1 << 15
"""Bytes that `checksum` adds up before it computes a CRC."""
LARGEST_HEADER = 100_000_000
"""The largest header that safetensors itself accepts, in bytes."""
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


class Damaged(CheckpointError):
    """A file that could be read, but does not hold what was written to it."""


class NewerVersion(CheckpointError):
    """A file that is intact, but was written by a newer version of dagc."""


def checksum(array: NDArray[Any]) -> int:
    """CRC-32 of the sums of every 4,096 words of eight bytes, then of the bytes left over.

    Many times faster than the CRC-32 of all bytes. Any single change is detected; words that changed places within
    their 32,768 bytes are not.

    Example:
        >>> checksum(np.arange(10, dtype=np.float32))
        3869632361
    """
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    end = len(raw) // BLOCK * BLOCK
    sums = raw[:end].view("<u8").reshape(-1, BLOCK // 8).sum(axis=1, dtype="<u8")
    return checksum_of_sums(sums, raw[end:])


def checksum_of_sums(sums: NDArray[Any], rest: NDArray[Any]) -> int:
    """The checksum of an array, whose sums another device may have computed, and the bytes left over."""
    return zlib.crc32(rest.data, zlib.crc32(sums.data))


def save_state(
    path: str | os.PathLike[str], kind: str, version: int, state: Mapping[str, Any], private: bool = False
) -> None:
    """Write a state. The file is replaced as a whole, or stays as it was.

    Args:
        path: The file.
        kind: What the state belongs to; `load_state` refuses any other kind.
        version: The version of the state's content, from 1.
        state: Dicts and lists, with numpy arrays or anything that JSON can hold as leaves.
        private: Only the user may read the file.

    Raises:
        CheckpointError: The file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "example.safetensors"
        ...     save_state(path, "example", 1, {"round": 7, "client": {"residual": np.ones(3, np.float32)}})
        ...     load_state(path, "example", newest=1)
        {'round': 7, 'client': {'residual': array([1., 1., 1.], dtype=float32)}}
    """
    content = dump_state(kind, version, state)
    try:
        with write_atomically(Path(path), private) as file:
            file.write(content)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {failure(error)}") from error


def dump_state(kind: str, version: int, state: Mapping[str, Any]) -> bytes:
    """A state as the bytes of such a file."""
    arrays: dict[str, NDArray[Any]] = {}
    try:
        tree = _without_arrays(state, (), arrays)
        text = json.dumps({"kind": kind, "version": version, "state": tree})
    except InvalidInput:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"JSON cannot hold the state of this {kind}: {error}") from error
    about = json.dumps({"content": text, "checksum": _sum(text, arrays)})
    return bytes(save(arrays, metadata={META: about}))


def load_state(path: str | os.PathLike[str], kind: str, newest: int) -> dict[str, Any]:
    """Read a state that `save_state` wrote.

    Args:
        path: The file.
        kind: What the state must belong to.
        newest: The version of this kind that the caller understands.

    Raises:
        Damaged: The file does not hold a state of this kind.
        NewerVersion: It was written by a newer version of dagc.
        CheckpointError: It is missing or cannot be read now; the file may be intact.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return parse_state(content, kind, newest, str(path))


def parse_state(content: bytes, kind: str, newest: int, where: str) -> dict[str, Any]:
    """Read the bytes of such a file; `where` says in errors what they are. It raises what `load_state` raises."""
    try:
        known, version, state = _read(content)
    except MemoryError as error:  # nothing is wrong with the file: whoever sets damaged ones aside must not do it
        raise CheckpointError(f"{where} cannot be read now: there is too little memory") from error
    except (ValueError, TypeError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise Damaged(f"{where} is damaged: {str(error) or type(error).__name__}") from error
    if known != kind:
        raise Damaged(f"{where} holds a state of kind {known!r:.100}, not {kind!r}")
    if version > newest:
        raise NewerVersion(f"{where} was written by a newer version of dagc: update dagc to read it")
    if version < newest:
        raise CheckpointError(f"{where} was written by an older version of dagc, which this one cannot read")
    return state


def _read(content: bytes) -> tuple[str, int, dict[str, Any]]:
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(len(content) - 8, LARGEST_HEADER):
        raise ValueError(f"it has {len(content):,} bytes, but its header claims {length:,}")
    header = json.loads(content[8 : 8 + length])
    about = json.loads(header["__metadata__"][META])
    arrays = load(content)
    if not isinstance(about["content"], str) or about["checksum"] != _sum(about["content"], arrays):
        raise ValueError("its checksum does not match")
    head = json.loads(about["content"])
    kind, version, tree = head["kind"], head["version"], head["state"]
    if not isinstance(kind, str) or not is_count(version) or not isinstance(tree, dict):
        raise ValueError("its header is malformed")
    state: dict[str, Any] = _with_arrays(tree, arrays)
    return kind, version, state


def _without_arrays(leaf: Any, path: tuple[str, ...], arrays: dict[str, NDArray[Any]]) -> Any:
    """The tree with a reference in place of each array, which is added to `arrays`."""
    if isinstance(leaf, np.ndarray):
        if leaf.dtype.name not in TYPES:
            raise InvalidInput(f"the state's {'.'.join(path)} is of type {leaf.dtype}: use one of {', '.join(TYPES)}")
        name = ".".join(path).encode("ascii", "backslashreplace").decode()  # clients may be called anything
        while name in arrays or name == "__metadata__":
            name += "'"
        little_endian = leaf.dtype.newbyteorder("<")
        arrays[name] = np.ascontiguousarray(leaf, dtype=little_endian).reshape(leaf.shape)
        return {ARRAY: name}
    if isinstance(leaf, list | tuple):
        return [_without_arrays(value, (*path, str(place)), arrays) for place, value in enumerate(leaf)]
    if isinstance(leaf, Mapping):
        return {_marked(str(key)): _without_arrays(value, (*path, str(key)), arrays) for key, value in leaf.items()}
    return leaf


def _marked(key: str) -> str:
    return MARK + key if key.startswith(MARK) else key


def _with_arrays(leaf: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(leaf, list):
        return [_with_arrays(value, arrays) for value in leaf]
    if not isinstance(leaf, dict):
        return leaf
    if leaf.keys() == {ARRAY}:
        return arrays[leaf[ARRAY]]
    return {key.removeprefix(MARK): _with_arrays(value, arrays) for key, value in leaf.items()}


def _sum(text: str, arrays: Mapping[str, NDArray[Any]]) -> int:
    """The checksum of a file's content."""
    total = zlib.crc32(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        about = f"{name} {array.dtype.name} {array.shape} {checksum(array)}"
        total = zlib.crc32(about.encode(), total)
    return total


@contextmanager
def all_or_nothing(owner: Any, what: str) -> Iterator[None]:
    """Make loading a state all or nothing: if the block fails, `owner` is rolled back and `InvalidInput` raised.

    Args:
        owner: Has `snapshot()` and `rollback(snapshot)`.
        what: What the state must be, for the error.
    """
    before = owner.snapshot()
    try:
        yield
    except InvalidInput:
        owner.rollback(before)
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
        owner.rollback(before)
        raise InvalidInput(f"the state does not fit {what}: {error!r}") from error


def whole(value: Any, least: int = 0, below: int = 1 << 63) -> int:
    """An integer from a state, in these limits; ValueError if it is anything else."""
    if type(value) is not int or not least <= value < below:
        raise ValueError(f"{shown(value, 50)} is not an integer from {least} and below {below}")
    return value


def load_part(part: Any, state: Any) -> None:
    """Load the state of a part that may be absent: both are None, or neither; ValueError otherwise."""
    if (part is None) != (state is None):
        raise ValueError(f"there is {'no' if part is None else 'a'} part for {shown(state, 50)}")
    if part is not None:
        part.load_state_dict(state)


def sequence(value: Any) -> list[Any]:
    """A list from a state; ValueError if it is anything else."""
    if not isinstance(value, list):
        raise ValueError(f"{shown(value, 50)} is not a list")
    return value


def flag(value: Any) -> bool:
    """A boolean from a state; ValueError if it is anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value, 50)} is neither true nor false")
    return value


def is_count(value: object) -> bool:
    """Whether it is an integer from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
