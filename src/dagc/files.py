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

POLL = 0.2  # seconds between two attempts to get a lock


@contextmanager
def write_atomically(path: str | os.PathLike[str], private: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets the name `path` only when the block ends without an error.

    Missing folders are created. After the block, content and name survive a power failure. If it is private, only the
    user may read the file and the folders created for it.
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
    """The content of a file that somebody else may have written, if it is no larger, and no pipe that never ends."""
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
    """The CRC-32 of a regular file in this very folder; None if there is none by that name, or it is larger."""
    path = folder / name
    if path.name != name:
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
    """Remove what killed processes left behind while writing this file with `write_atomically`, or any in the folder.

    Only for the one process that writes there: a file that another process is writing would be lost.
    """
    with suppress(OSError):  # they do no harm
        for partial in folder.glob(f".{'*' if name is None else escape(name)}.{'[0-9a-f]' * 8}.partial"):
            partial.unlink()


def make_folder(path: Path, private: bool = False) -> None:
    """Create a folder and its missing parents; private ones are readable by the user alone."""
    if not path.is_dir():
        make_folder(path.parent, private)
        path.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: str | os.PathLike[str], patience: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder; `CheckpointError` if one is there for more than `patience` seconds.

    The lock's file stays. The lock is also released when the process ends.
    """
    from filelock import FileLock, Timeout  # not at the top: Flower nodes do not need it

    path = Path(path)
    make_folder(path.parent)
    lock = FileLock(path, thread_local=False)  # a generator may be closed on another thread
    try:
        with lock.acquire(timeout=patience, poll_interval=POLL):
            yield
    except Timeout:
        raise CheckpointError(
            f"another process is working in {path.parent}: wait for it, or choose another folder"
        ) from None


def failure(error: OSError) -> str:
    """Why a disk operation failed, and what to do about it."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full: free some space" if full else str(error)
