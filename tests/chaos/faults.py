"""A schedule of faults: drawn from a seed, so that the same seed breaks the same things at the same moments."""

import errno
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dagc.draws import scramble
from dagc.errors import DagcError
from dagc.state import save_state

__all__ = ["Broken", "Faults", "Killed", "newer_version", "refused"]

T = TypeVar("T")


class Killed(Exception):
    """As a process dies: nobody may catch it but who starts the process again."""


class Broken(Exception):
    """A promise that did not hold; the message says which."""


class Faults:
    """What goes wrong in one run.

    Args:
        seed: Decides everything.
        rate: How often things go wrong, as a factor of the usual chances.

    Attributes:
        happened: How often each kind of fault has happened.

    Example:
        >>> faults = Faults(seed=7)
        >>> [faults.happens("lost upload", 0.5) for _ in range(4)]
        [False, False, True, True]
        >>> faults.happened["lost upload"]
        2
    """

    def __init__(self, seed: int, rate: float = 1.0) -> None:
        self.seed = seed
        self.rate = rate
        self.happened: Counter[str] = Counter()
        self._drawn = 0

    def number(self, below: int) -> int:
        """A whole number from 0 to `below` - 1."""
        self._drawn += 1
        return scramble(self.seed, self._drawn) % below

    def pick(self, of: Sequence[T]) -> T:
        """One of these."""
        return of[self.number(len(of))]

    def happens(self, kind: str, chance: float) -> bool:
        """Whether something goes wrong now; if so, it is counted."""
        if self.number(1 << 32) >= chance * self.rate * (1 << 32):
            return False
        self.happened[kind] += 1
        return True

    def damaged(self, content: bytes) -> bytes:
        """These bytes with one bit flipped, an end that is missing or one that is too long."""
        how = self.number(4) if content else 3
        if how == 2:
            return content[: self.number(len(content))]
        if how == 3:
            return content + bytes([self.number(256)])
        at = self.number(len(content))
        return content[:at] + bytes([content[at] ^ 1 << self.number(8)]) + content[at + 1 :]

    @contextmanager
    def disk(self, chance: float) -> Iterator[None]:
        """In this block the disk may be full: one of the first calls that bring bytes to it fails.

        Where it is not, no call waits for the disk: nobody pulls the plug here.
        """
        usual, left = os.fsync, self.number(4) if self.happens("full disk", chance) else -1

        def sync(handle: int) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(errno.ENOSPC, "No space left on device")

        os.fsync = sync  # type: ignore[assignment]
        try:
            yield
        finally:
            os.fsync = usual

    @contextmanager
    def unreadable(
        self, code: int, fails: Callable[[Path], bool] = lambda path: True, folder: Path = Path("/")
    ) -> Iterator[None]:
        """In this block, a folder and all below it cannot be read with this error of the system, if it `fails`."""
        usual, list_folder, scan_folder = io.open, os.listdir, os.scandir

        def opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            if "r" in mode and folder in Path(file).parents and fails(Path(file)):
                raise OSError(code, os.strerror(code), str(file))
            return usual(file, mode, *more, **options)

        def listed(function: Callable[..., Any], path: Any = ".") -> Any:
            if folder in (Path(path), *Path(path).parents) and fails(Path(path)):
                raise OSError(code, os.strerror(code), str(path))
            return function(path)

        # What pathlib calls:
        io.open, os.listdir, os.scandir = opened, partial(listed, list_folder), partial(listed, scan_folder)
        try:
            yield
        finally:
            io.open, os.listdir, os.scandir = usual, list_folder, scan_folder

    @contextmanager
    def reading(self, chance: float, folder: Path) -> Iterator[None]:
        """In this block, one of the first files below a folder may not be readable: bad sectors, open files."""
        left = self.number(3) if self.happens("unreadable file", chance) else -1
        code = self.pick((errno.EIO, errno.EMFILE, errno.EACCES)) if left >= 0 else 0

        def fails(path: Path) -> bool:
            nonlocal left
            left -= 1
            return left == -1

        with self.unreadable(code, fails, folder):
            yield


@contextmanager
def newer_version(path: Path, kind: str) -> Iterator[None]:
    """In this block, a state was written by a newer version of dagc. It is not damaged: it must stay as it is."""
    right = path.read_bytes()
    save_state(path, kind, 99, {"what": "nobody here understands"})
    wrong = path.read_bytes()
    yield
    if not path.exists() or path.read_bytes() != wrong:
        raise Broken(f"the file of a newer version of a {kind} has changed")
    path.write_bytes(right)


def refused(doing: str, function: Callable[[], object]) -> None:
    """Whatever this function does must be refused, and by an error of ours."""
    try:
        function()
    except DagcError:
        return
    raise Broken(f"{doing} was not refused")
