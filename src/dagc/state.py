"""All state kept between rounds: how it is saved, loaded and brought back, and the one file format for it.

A file is safetensors, with everything that is not an array as JSON: the state's kind, which says what it belongs to,
the version of that kind's content, and a checksum over everything. It is written as a whole and atomically.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save

from dagc.errors import CheckpointError, Damaged, InvalidInput, NewerVersion, shown
from dagc.files import failure, write_atomically

Check = Callable[[Any], Any]
"""Makes the value of a field from what a file holds, or raises one of `MISFITS`."""
T = TypeVar("T")
MISFITS = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError)
"""What loading a state raises that is not one."""
META = "dagc"  # the one entry of the header's metadata
MARK = "$"
ARRAY = f"{MARK}array"
"""Stands for an array in the JSON; its value is the tensor's name. A state's own keys get a second `MARK`."""
BLOCK = 1 << 15  # bytes that `checksum` adds up before it computes a CRC
LARGEST_HEADER = 100_000_000  # the largest header that safetensors itself accepts, in bytes
TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def checksum(array: NDArray[Any]) -> int:
    """CRC-32 of the sums of every 4,096 words of eight bytes, then of the bytes left over: fast, unlike that of all.

    Any single change is detected; words that changed places within their 32,768 bytes are not.

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
    """Write a state: the file is replaced as a whole, or stays as it was, with a `CheckpointError`.

    A state is dicts and lists, with numpy arrays or anything that JSON can hold as leaves; the version counts from 1.

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
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"JSON cannot hold the state of this {kind}: {error}") from error
    about = json.dumps({"content": text, "checksum": _sum(text, arrays)})
    return bytes(save(arrays, metadata={META: about}))


def load_state(path: str | os.PathLike[str], kind: str, newest: int) -> dict[str, Any]:
    """Read a state that `save_state` wrote.

    Raises:
        Damaged: The file does not hold a state of this kind.
        NewerVersion: It was written by a newer version of dagc.
        CheckpointError: It is missing, or cannot be read now or by this version; the file may be intact.
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
        arrays[name] = np.ascontiguousarray(leaf, dtype=leaf.dtype.newbyteorder("<")).reshape(leaf.shape)
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
    for name, array in sorted(arrays.items()):
        about = f"{name} {array.dtype.name} {array.shape} {checksum(array)}"
        total = zlib.crc32(about.encode(), total)
    return total


def fields(**checks: Check) -> Mapping[str, Check]:
    """Attributes and their checks, for `Stateful.STATE`; `nested` and `like` check against what is there."""
    return checks


class Stateful:
    """Whatever keeps state between rounds says in `STATE` what that is; saving, loading and going back follow.

    Example:
        >>> class Counter(Stateful):
        ...     STATE = fields(_count=whole)
        ...     _count = 0
        >>> counter = Counter()
        >>> counter.load_state_dict({"count": 7})
        >>> counter.state_dict()
        {'count': 7}
        >>> counter.load_state_dict({"count": -1})
        Traceback (most recent call last):
        ...
        dagc.errors.InvalidInput: the state does not fit this part: ValueError('-1 is not an integer from 0 ...')
    """

    FITS = "this part"
    """What a state must fit, for errors."""
    STATE: Mapping[str, Check] = fields()
    """For each attribute that is saved, the check of what a file holds, where names have no leading underscore."""

    def checks(self) -> dict[str, Check]:
        """`STATE` for this object; subclasses add checks that depend on it."""
        present = (nested, like)
        return {name: check(getattr(self, name)) if check in present else check for name, check in self.STATE.items()}

    def loaded(self) -> None:
        """Called when all fields are loaded: `ValueError` if they do not go together; for subclasses."""

    def state_dict(self) -> dict[str, Any]:
        """The whole state; arrays are not copies."""
        return {name.lstrip("_"): plain(getattr(self, name)) for name in self.checks()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. State that does not fit is refused, and then nothing changes."""
        with all_or_nothing(self, self.FITS):
            if not isinstance(state, Mapping):
                raise ValueError(f"{shown(state, 50)} must be a mapping")
            for name, check in self.checks().items():
                setattr(self, name, check(state[name.lstrip("_")]))
            self.loaded()

    def snapshot(self) -> Any:
        """What `rollback` needs. Arrays are not copied: what is changed in place stays changed."""
        return {name: _kept(value) for name, value in vars(self).items()}

    def rollback(self, snapshot: Any) -> None:
        """Undo everything since `snapshot`."""
        vars(self).update({name: _brought_back(value) for name, value in snapshot.items()})


class _Kept(NamedTuple):
    part: Any
    snapshot: Any


def _kept(value: Any) -> Any:
    if isinstance(value, Stateful):
        return _Kept(value, value.snapshot())
    if hasattr(value, "load_state_dict"):  # a part of somebody else's
        return _Kept(value, deepcopy(value.state_dict()))
    if type(value) is dict:
        return {key: _kept(each) for key, each in value.items()}
    return copy(value) if isinstance(value, list | set) else value


def _brought_back(kept: Any) -> Any:
    if not isinstance(kept, _Kept):
        return _kept(kept) if type(kept) is not dict else {key: _brought_back(each) for key, each in kept.items()}
    if isinstance(kept.part, Stateful):
        kept.part.rollback(kept.snapshot)
    else:
        kept.part.load_state_dict(deepcopy(kept.snapshot))
    return kept.part


@contextmanager
def all_or_nothing(owner: Any, what: str) -> Iterator[None]:
    """If the block fails, `owner` is rolled back, and the state does not fit `what`: `InvalidInput` with a remedy."""
    before = owner.snapshot()
    try:
        yield
    except MISFITS as error:  # InvalidInput is one of them
        owner.rollback(before)
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"the state does not fit {what}: {error!r}{getattr(owner, 'REMEDY', '')}") from error


def plain(value: Any) -> Any:
    """The value as a file holds it: dicts and lists of arrays, numbers and texts."""
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, bytes):
        return np.frombuffer(value, dtype=np.uint8)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def whole(value: Any, least: int = 0, below: int = 1 << 63) -> int:
    """An integer from a state, in these limits."""
    if type(value) is not int or not least <= value < below:
        raise ValueError(f"{shown(value, 50)} is not an integer from {least} and below {below}")
    return value


def finite(value: Any, least: float = -math.inf, below: float = math.inf) -> float:
    """A finite number from a state, in these limits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{shown(value, 50)} is not a finite number")
    if not least <= value < below:
        raise ValueError(f"{shown(value, 50)} is not from {least} and below {below}")
    return float(value)


def instance(kind: type[T]) -> Callable[[Any], T]:
    """A value of exactly this type from a state."""

    def check(value: Any) -> T:
        if type(value) is not kind:
            raise ValueError(f"{shown(value, 50)} is not of type {kind.__name__}")
        return value

    return check


flag, text = instance(bool), instance(str)


def optional(check: Check) -> Check:
    """The same, or None."""
    return lambda value: None if value is None else check(value)


def listed(check: Check) -> Check:
    """A list of such values."""
    return lambda value: [check(each) for each in instance(list)(value)]


def named(check: Check) -> Check:
    """Such values by name."""
    return lambda value: {text(name): check(each) for name, each in value.items()}


def like(present: NDArray[Any]) -> Check:
    """A copy of an array with the shape and type of this one, finite everywhere."""

    def check(value: Any) -> NDArray[Any]:
        if value.shape != present.shape or value.dtype != present.dtype or not np.isfinite(value).all():
            raise ValueError(f"it is {value.dtype} {value.shape}, not {present.dtype} {present.shape}, or not finite")
        return cast(NDArray[Any], value.copy())

    return check


def raw(value: Any) -> bytes:
    """Bytes from a state."""
    if value.dtype != np.uint8 or value.ndim != 1:
        raise ValueError(f"it is {value.dtype} {value.shape}, not bytes")
    return bytes(value.tobytes())


def nested(present: Any) -> Check:
    """A part that loads its own state; one that is absent, None, has none."""

    def check(state: Any) -> Any:
        if (present is None) != (state is None):
            raise ValueError(f"there is {'no' if present is None else 'a'} part for {shown(state, 50)}")
        if present is not None:
            present.load_state_dict(state)
        return present

    return check


def is_count(value: object) -> bool:
    """Whether it is an integer from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
