"""The `dagc` command before anything heavy is imported: Ctrl-C ends it without a word, even while torch is loaded."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["main", "quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """In this block, Ctrl-C ends the process at once, with the usual exit code."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set what signals do
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """Load dagc, then run its command line."""
    with quiet():
        from dagc.__main__ import main as run
    run()
