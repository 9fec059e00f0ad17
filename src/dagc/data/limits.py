"""How much a file may unpack to, so that a small file cannot fill the memory or the disk."""

import os
from pathlib import Path

from dagc.errors import DataError, InvalidInput, shown

VARIABLE = "DAGC_MAX_UNPACKED"  # the environment variable that raises the bound, in bytes
TIMES, ALWAYS = 100, 1 << 26
"""Useful data hardly ever compresses better than this; and every file may unpack to this many bytes."""


def most_unpacked(file: Path) -> int:
    """The most bytes that a file may unpack to."""
    text = os.environ.get(VARIABLE, "0")
    try:
        return max(ALWAYS, TIMES * file.stat().st_size, int(float(text)))
    except (ValueError, OverflowError):
        raise InvalidInput(f"{VARIABLE} is {shown(text)}: give a number of bytes, such as 4e9") from None


def refuse_bomb(file: Path, unpacked: int) -> None:
    """Refuse a file that holds, or claims to hold, implausibly many bytes for its size."""
    bound = most_unpacked(file)
    if unpacked > bound:
        raise DataError(
            f"{file} has {file.stat().st_size:,} bytes and would unpack to {unpacked:,} or more; the bound is "
            f"{bound:,}, {TIMES} times its size or {ALWAYS:,}: if you trust it, set {VARIABLE}={unpacked}"
        )
