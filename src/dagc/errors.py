"""The one family of errors: whatever dagc refuses, it refuses with one of these."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

__all__ = [
    "BudgetTooSmall",
    "BudgetWarning",
    "CheckpointError",
    "DagcError",
    "DataError",
    "Diverged",
    "InvalidInput",
    "MalformedPayload",
    "MissingData",
    "MissingExtra",
    "NonFiniteGradient",
    "OutOfSync",
    "OutsideBound",
    "TooFewNodes",
    "needs_extra",
    "shown",
    "unknown",
]


class DagcError(Exception):
    """Everything that this library raises on purpose."""


class InvalidInput(DagcError, ValueError):
    """A value the caller gave cannot be used; the message names it and says what to do."""


class BudgetTooSmall(InvalidInput):
    """The budget does not allow one entry for everybody; clients have to wait for each other, or it must be raised."""


class NonFiniteGradient(InvalidInput):
    """A gradient with NaN or infinity was offered; nothing was changed."""


class MalformedPayload(DagcError, ValueError):
    """Bytes that are not a valid frame; the message says what is wrong with them."""


class OutsideBound(MalformedPayload):
    """An upload that is well formed, but larger than the plan's `clip` or `norm_bound` allows; it is not taken."""


class Diverged(DagcError):
    """The model of a training became NaN or infinite."""


class DataError(DagcError):
    """A data file cannot be fetched, read or trusted; the message names the file."""


class MissingData(DataError):
    """A data set is not in the data folder; the message is the command that gets it."""


class MissingExtra(DagcError, ImportError):
    """A part of dagc needs a package that is not installed; the message names the extra that brings it."""


class BudgetWarning(UserWarning):
    """The budget could not be spent in full, because every client has reached its cap."""


class CheckpointError(DagcError):
    """A run cannot be saved, or cannot be resumed; the message says what is left and what to do."""


class OutOfSync(DagcError):
    """A client's model is not the one that the server builds on; it needs the full model."""


class TooFewNodes(DagcError):
    """Fewer nodes than needed have contributed to a round; the message says why, and what to do."""


def shown(value: object, most: int = 100) -> str:
    """A value as an error shows it: whatever it is, this neither fails nor gets long.

    Example:
        >>> shown("x" * 200, most=10), shown(10**5000)
        ("'xxxxxxxx…", 'an int that is too large to show')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of 5,000 digits, a table nested 5,000 deep
        name = type(value).__name__
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name} that is too large to show"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unknown(kind: str, name: object, names: Iterable[str]) -> InvalidInput:
    """The error for a name that does not exist, with the nearest one that does.

    Example:
        >>> print(unknown("method", "dagcr", ["none", "top-k", "dagc-r"]))
        there is no method 'dagcr': did you mean 'dagc-r'? Choose one of none, top-k, dagc-r
    """
    known = list(names)
    near = get_close_matches(name[:100], known, n=1) if isinstance(name, str) else []
    guess = f"did you mean {near[0]!r}? Choose" if near else "choose"
    return InvalidInput(f"there is no {kind} {shown(name)}: {guess} one of {', '.join(known)}")


@contextmanager
def needs_extra(part: str, extra: str) -> Iterator[None]:
    """Import what a part of dagc needs in this block; where a package is missing, the error names the extra.

    Example:
        >>> with needs_extra("the example", "lab"):
        ...     import no_such_package
        Traceback (most recent call last):
        dagc.errors.MissingExtra: the example needs no_such_package, which is not installed: install dagc ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "dagc").partition(".")[0] == "dagc":  # a fault of ours: no extra would help
            raise
        raise MissingExtra(
            f"{part} needs {error.name}, which is not installed: install dagc with its extra {extra!r}, "
            f"e.g. pip install 'dagc-fl[{extra}]', or '.[{extra}]' in a copy of it"
        ) from error
