"""Everything on stderr: progress, messages, warnings and errors, all through one console."""

import warnings
from logging import INFO, WARNING, Handler, LogRecord, getLogger

from rich.console import Console

from dagc.text import printable

__all__ = ["log", "say", "show_log", "show_warnings"]

log = Console(stderr=True, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """Print a message as one line, however long; names in it cannot control the terminal."""
    log.print(printable(text), style=style, markup=False, soft_wrap=True)


def show_warnings() -> None:
    """From now on, print Python warnings as one line each."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}", "yellow")


class _Lines(Handler):
    """Prints log records of the library as one line each."""

    def emit(self, record: LogRecord) -> None:
        serious = record.levelno >= WARNING
        say(f"warning: {record.getMessage()}" if serious else record.getMessage(), "yellow" if serious else "dim")


def show_log(verbose: bool = False) -> None:
    """From now on, print warnings in the library's log; with `verbose`, everything that it logs."""
    logger = getLogger("dagc")
    for handler in [each for each in logger.handlers if isinstance(each, _Lines)]:
        logger.removeHandler(handler)
    logger.addHandler(_Lines())
    logger.setLevel(INFO if verbose else WARNING)
