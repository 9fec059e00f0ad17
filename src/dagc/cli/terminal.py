"""What people see on stderr: progress, messages, warnings and errors, all through one console."""

import warnings

from rich.console import Console

__all__ = ["log", "say", "show_warnings"]

log = Console(stderr=True, highlight=False)


def say(text: str, style: str | None = None) -> None:
    """A message is one line, however long it is."""
    log.print(text, style=style, markup=False, soft_wrap=True)


def show_warnings() -> None:
    """From now on, a warning is one line, too."""
    warnings.showwarning = lambda message, *_: say(f"warning: {message}", "yellow")
