"""Read IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped."""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagc.data.limits import most_unpacked, refuse_bomb
from dagc.errors import DataError

__all__ = ["read_idx"]

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes: two zero bytes, a type, the number of axes, their lengths, the values.

    Raises:
        DataError: If the file is truncated, too long or something else; it is named.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                raw = packed.read(most_unpacked(path) + 1)
            refuse_bomb(path, len(raw))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it and get the data set again") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path} is not an IDX file of bytes: it begins with {raw[:4].hex() or 'nothing'}")
    header = 4 + 4 * raw[3]
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, header, 4))
    expected = header + int(np.prod(shape, dtype=object))
    if len(raw) != expected:
        raise DataError(f"{path} has {len(raw):,} bytes where its header says {expected:,}; get the data set again")
    if len(shape) > 32:
        raise DataError(f"{path} has {len(shape)} axes; IDX files of images have three")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy()
