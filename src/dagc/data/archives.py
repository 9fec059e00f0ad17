"""How much an archive may unpack to, so that a small file does not fill the disk or the memory."""

import zipfile
import zlib
from pathlib import Path

from dagc.errors import DataError

__all__ = ["UNREADABLE", "most_unpacked", "refuse_bomb"]

TIMES = 100
"""No useful data compresses better than this."""
ALWAYS = 1 << 26
"""This many bytes do no harm, however small the archive."""
UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, OverflowError, MemoryError, RecursionError, TypeError,
    zlib.error, zipfile.BadZipFile,
)  # fmt: skip
"""The errors of reading an `.npz` file that is damaged, or that claims more entries than fit into memory."""


def most_unpacked(archive: Path) -> int:
    """The most bytes that an archive may hold."""
    return max(ALWAYS, TIMES * archive.stat().st_size)


def refuse_bomb(archive: Path, unpacked: int) -> None:
    """Refuse an archive that holds, or claims to hold, implausibly many bytes for its size."""
    if unpacked > most_unpacked(archive):
        raise DataError(
            f"{archive} has {archive.stat().st_size:,} bytes and would unpack to {unpacked:,} or more, over {TIMES} "
            "times as many: if it is yours and you trust it, store it uncompressed"
        )
