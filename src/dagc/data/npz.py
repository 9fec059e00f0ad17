"""Read `.npz` files of plain arrays, whoever made them."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.assemble import Samples, numbered
from dagc.data.limits import refuse_bomb
from dagc.errors import DataError

__all__ = ["UNREADABLE", "read_npz"]

NAMES = ("x", "y", "client", "x_test", "y_test")
"""The arrays that are read; others are not even opened."""
UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, OverflowError, MemoryError, RecursionError, TypeError,
    SyntaxError, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""The errors of reading a file that is damaged, or that claims more entries than it has."""


def read_npz(path: Path) -> tuple[Samples, Samples | None]:
    """The samples of a file with `x`, `y` and, optionally, `client`, `x_test`, `y_test`."""
    arrays = _open(path)
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise DataError(f"{path} has no array {missing[0]!r}, only {', '.join(arrays) or 'others'}; save x and y")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path} has only one of x_test and y_test; give both or none")
    train = _samples(path, "x", arrays["x"], arrays["y"])
    test = _samples(path, "x_test", arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    client = arrays.get("client")
    if client is None:
        return train, test
    if client.shape != train.y.shape or client.dtype.kind not in "iubU":
        kind = f"{client.dtype} of shape {client.shape}"
        raise DataError(f"{path}: client is {kind}; give a whole number or a text for each of {len(train.y)} samples")
    owner, clients = numbered(client.tolist())
    return train._replace(owner=owner, clients=clients), test


def _open(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of known names."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            wanted = {name: members[name] for name in NAMES if name in members}
            refuse_bomb(path, sum(member.file_size for member in wanted.values()))
            arrays = {}
            for name, member in wanted.items():
                with archive.open(member) as file:
                    _check_header(file, member.file_size)
                with archive.open(member) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
            return arrays
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read as .npz of plain arrays ({error!s:.300})") from None


def _check_header(file: IO[bytes], size: int) -> None:
    """Refuse an array of objects, and one that claims more bytes than its member has, before any is allocated."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of .npy is unknown")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    if kind.hasobject:
        raise ValueError("an array holds Python objects")
    if math.prod(shape) * kind.itemsize > size:
        raise ValueError(f"an array of shape {shape!s:.100} is announced in {size:,} bytes")


def _samples(path: Path, name: str, x: NDArray[Any], y: NDArray[Any]) -> Samples:
    """Samples as uint8 or float32."""
    if x.dtype.kind not in "iufb":
        raise DataError(f"{path}: {name} is of type {x.dtype}; it must be numbers")
    if x.ndim < 2 or len(x) < (2 if name == "x" else 1):
        raise DataError(f"{path}: {name} has shape {x.shape}; samples × features are needed, two samples or more")
    if y.shape[:1] != x.shape[:1]:
        raise DataError(f"{path}: y has shape {y.shape} for {len(x)} samples; give one value per sample")
    with np.errstate(over="ignore"):  # what does not fit becomes infinity, which Dataset refuses by sample
        return Samples(torch.from_numpy(x.astype(np.uint8 if x.dtype in (bool, np.uint8) else np.float32)), y)
