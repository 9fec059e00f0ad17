"""Files that appear whole or not at all, that are bounded when read, and locks between processes."""

import errno
import os
import secrets
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

from dagc.errors import CheckpointError, InvalidInput
from dagc.text import in_bytes

__all__ = [
    "checksum_of",
    "failure",
    "locked",
    "make_folder",
    "read_bounded",
    "remove_partial",
    "sync_folder",
    "write_atomically",
]

POLL = 0.2
"""Seconds between two attempts to get a lock."""


@contextmanager
def write_atomically(path: str | os.PathLike[str], private: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets the name `path` only when the block ends without an error.

    Missing folders are created. After the block, content and name survive a power failure.

    Args:
        path: The file, which is replaced if it exists.
        private: Only the user may read the file and the folders created for it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with write_atomically(Path(folder) / "results" / "seen") as file:
        ...         _ = file.write(b"everything")
        ...     (Path(folder) / "results" / "seen").read_bytes()
        b'everything'
    """
    path = Path(path)
    make_folder(path.parent, private)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    mode = 0o600 if private else 0o666  # the user's umask applies, as for any new file
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_bounded(path: Path, most: int, regular: bool = True) -> bytes:
    """The content of a file that somebody else may have written.

    Args:
        path: The file.
        most: The largest number of bytes that it may have.
        regular: Whether to refuse anything but a regular file: reading a device or a pipe may never end.

    Raises:
        InvalidInput: It is larger, or not a regular file.
    """
    status = path.stat()
    if regular and not stat.S_ISREG(status.st_mode):
        raise InvalidInput(f"{path} is not a regular file: replace it, or leave its folder out")
    content = b""
    if status.st_size <= most:
        with path.open("rb") as file:
            content = file.read(most + 1)
    if max(status.st_size, len(content)) > most:
        raise InvalidInput(f"{path} has more than {in_bytes(most)}, which no such file needs")
    return content


def checksum_of(folder: Path, name: str, most: int) -> int | None:
    """The CRC-32 of a regular file in this very folder, in constant memory.

    Returns:
        None if the name leaves the folder, or the file is missing, no regular file, or larger than `most`.
    """
    path = folder / name
    if name in ("", ".", "..") or "\0" in name or path.name != name:
        return None
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        checksum = 0
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                checksum = zlib.crc32(block, checksum)
    except FileNotFoundError:
        return None
    return checksum


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left behind while writing with `write_atomically`.

    Only for the one process that writes there: a file that another process is writing would be lost.

    Args:
        folder: Where to look; it need not exist.
        name: The file whose leftovers are removed; those of all files if not given.
    """
    with suppress(OSError):  # they do no harm
        for partial in folder.glob(f".{'*' if name is None else escape(name)}.{'[0-9a-f]' * 8}.partial"):
            partial.unlink()


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its missing parents; private ones are readable by the user alone."""
    missing = []
    for folder in (path, *path.parents):
        if folder.is_dir():
            break
        missing.append(folder)
    for folder in reversed(missing):
        folder.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: str | os.PathLike[str], patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder while the block runs. The lock is also released when the process ends.

    Args:
        path: The lock's file. It stays when the lock is released.
        patience: Seconds to wait for the lock.

    Raises:
        CheckpointError: Another process still holds the lock after `patience` seconds.
    """
    from filelock import FileLock, Timeout  # not at the top: Flower nodes do not need it

    path = Path(path)
    make_folder(path.parent)
    lock = FileLock(path, thread_local=False)  # a generator may be closed on another thread
    try:
        lock.acquire(timeout=patience, poll_interval=POLL)
    except Timeout:
        raise CheckpointError(
            f"another process is working in {path.parent}: wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def failure(error: OSError) -> str:
    """Why a disk operation failed, and what to do about it.

    Example:
        >>> failure(OSError(errno.ENOSPC, "No space left on device"))
        'the disk is full: free some space'
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full: free some space" if full else str(error)
