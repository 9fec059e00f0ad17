"""Files that appear whole or not at all, and locks between processes."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import IO

from dagc.errors import CheckpointError

__all__ = ["failure", "locked", "make_folder", "remove_partial", "sync_folder", "write_atomically"]

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


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left behind while writing with `write_atomically`.

    Only for the one process that writes there: a file that another process is writing would be lost.

    Args:
        folder: Where to look; it need not exist.
        name: The file whose leftovers are removed; those of all files if not given.
    """
    for partial in folder.glob(f".{'*' if name is None else escape(name)}.{'[0-9a-f]' * 8}.partial"):
        with suppress(OSError):
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
