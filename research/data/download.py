"""Download files: with progress, resumed if interrupted, and verified before they are used."""

import gzip
import hashlib
import http.client
import io
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from dagc.data.limits import refuse_bomb
from dagc.errors import DataError

__all__ = ["Source", "fetch", "fetch_all", "unpack"]

_CHUNK = 1 << 18
_LONGEST_READ = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte
Report = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all where known


@dataclass(frozen=True)
class Source:
    """One file to fetch.

    Attributes:
        url: The official address.
        checksum: `md5:…` or `sha256:…` as published; None if none is published.
        into: The folder, below the data folder, that the file or the archive's contents go to.
        inner: The folder inside of the archive that becomes `into`; empty for all of it.
    """

    url: str
    checksum: str | None
    into: str
    inner: str = ""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[1]


def fetch_all(
    sources: tuple[Source, ...], root: Path, mirror: str | None = None, report: Report | None = None, pause: float = 1.0
) -> None:
    """Fetch and unpack all of `sources` below `root`. Existing files are replaced only by complete ones.

    Args:
        sources: What to fetch.
        root: The data folder.
        mirror: The address of a mirror with the same files under the same names.
        report: Called with the file's name, the bytes so far and the bytes in all, if known.
        pause: Seconds to wait before the first retry, doubled for each further one.
    """
    for source in sources:
        url = f"{mirror.rstrip('/')}/{source.name}" if mirror else source.url
        file = root / "downloads" / source.name
        fetch(url, file, source.checksum, report, pause)
        target = root / source.into
        if source.name.endswith((".tar.gz", ".tgz")):
            unpack(file, target, source.inner)
            file.unlink()
        else:
            target.mkdir(parents=True, exist_ok=True)
            file.replace(target / source.name)


def fetch(
    url: str, path: Path, checksum: str | None, report: Report | None = None, pause: float = 1.0, attempts: int = 4
) -> None:
    """Fetch one file; `path` appears when it is complete and has the right checksum, `path`.part grows until then.

    Raises:
        DataError: If the server refuses, the connection breaks off in every attempt, or the checksum is wrong.
    """
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url!r} is not an address: it must start with http:// or https://")
    part = path.with_name(path.name + ".part")
    problem = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(attempts):
            if attempt:
                time.sleep(pause * 2 ** (attempt - 1))
            try:
                _receive(url, part, path.name, report)
                break
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500:
                    raise DataError(f"{url}: the server says {error.code} {error.reason}; try --mirror") from None
                problem = f"{error.code} {error.reason}"
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                problem = str(error)
            except ValueError as error:  # from urllib, for an invalid address, ours or one we are redirected to
                raise DataError(f"{url!r:.200} is not a valid address, or leads to one that is not: {error}") from None
        else:
            size = part.stat().st_size if part.exists() else 0
            raise DataError(
                f"{url} was interrupted at byte {size:,} ({problem}); run the same command again to continue, or try "
                "--mirror"
            )
        _verify(part, checksum, url)
        part.replace(path)
    except OSError as error:
        raise DataError(f"{part} cannot be written ({error})") from None


def _receive(url: str, part: Path, name: str, report: Report | None) -> None:
    """Append to `part` what is still missing."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "dagc"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        error.close()
        total = error.headers.get("Content-Range", "").rpartition("/")[2]
        if total != str(have):  # not the rest of this file: start again
            part.unlink()
            raise ConnectionError(f"{have:,} bytes are here but the file has {total or 'another number'}") from None
        return
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        length = response.headers.get("Content-Length") or ""
        total_bytes = have + int(length) if re.fullmatch("[0-9]{1,18}", length) else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                if report:
                    report(name, have, total_bytes)
    if total_bytes is not None and have != total_bytes:
        raise ConnectionError(f"only {have:,} of {total_bytes:,} bytes arrived")


def _verify(part: Path, checksum: str | None, url: str) -> None:
    if checksum is None:
        return
    kind, _, expected = checksum.partition(":")
    with part.open("rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != expected:
        part.unlink()
        raise DataError(
            f"{url} has the {kind} {found} and not the published {expected}; it was deleted: try again or --mirror"
        )


def unpack(archive: Path, target: Path, inner: str = "") -> None:
    """Unpack a tar archive next to `target`, and rename it to `target` only when it is complete.

    Args:
        archive: The tar file, compressed or not.
        target: The folder that it becomes; an existing one is replaced.
        inner: The folder inside of the archive that is wanted; empty for all of it.

    Raises:
        DataError: If the archive is corrupt, would write outside of its folder, or would fill the disk.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
        raise DataError(f"{target} cannot be written ({error})") from None
    try:
        with _plain(archive) as plain, tarfile.open(fileobj=_ShortReads(plain), mode="r:") as tar:
            unpacked = 0
            for member in tar:
                _refuse_escape(archive, member)
                unpacked += member.size
                refuse_bomb(archive, unpacked)
                tar.extract(member, workplace / "new", filter="data")
        fresh = workplace / "new" / inner
        if not fresh.is_dir():
            raise DataError(f"{archive} has no folder {inner!r}: it is not the official archive")
        if target.exists():
            target.rename(workplace / "old")
        try:
            fresh.rename(target)
        except OSError:
            if (workplace / "old").exists() and not target.exists():
                (workplace / "old").rename(target)
            raise
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); delete it and get it again") from None
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _plain(archive: Path) -> IO[bytes]:
    """The archive without its gzip compression, if it has any."""
    with archive.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(archive)) if packed else archive.open("rb")


class _ShortReads(io.RawIOBase):
    """A file of which no more than a mebibyte is read at once: a header may announce any size for a name."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise tarfile.ReadError(f"a header of {size:,} bytes is longer than {_LONGEST_READ:,}")
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()


def _refuse_escape(archive: Path, member: tarfile.TarInfo) -> None:
    name = Path(member.name)
    if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
        raise DataError(
            f"{archive} holds {member.name!r}, which is not a plain file inside the archive; nothing was unpacked"
        )
