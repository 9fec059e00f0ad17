"""All errors that dagc raises on purpose. They share one base class, `DagcError`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

__all__ = [  # all that `dagc` itself offers, too
    "BudgetTooSmall",
    "BudgetWarning",
    "CheckpointError",
    "DagcError",
    "Damaged",
    "DataError",
    "Diverged",
    "InvalidInput",
    "MalformedPayload",
    "MissingData",
    "MissingExtra",
    "NewerVersion",
    "NonFiniteGradient",
    "OutOfSync",
    "OutsideBound",
    "TooFewNodes",
]


class DagcError(Exception):
    """The base class of every error that dagc raises on purpose."""


class InvalidInput(DagcError, ValueError):
    """A value given by the caller cannot be used. The message names it and says what to do."""


class BudgetTooSmall(InvalidInput):
    """The budget is too small for one entry from every client. Raise it, or let clients take turns."""


class NonFiniteGradient(InvalidInput):
    """A gradient contains NaN or infinity. It was refused, and nothing changed."""


class MalformedPayload(DagcError, ValueError):
    """The bytes are not a valid frame. The message says what is wrong with them."""


class OutsideBound(MalformedPayload):
    """An upload is well formed but larger than the plan's `clip` or `norm_bound` allows. It is rejected."""


class Diverged(DagcError):
    """The model became NaN or infinite during training."""


class DataError(DagcError):
    """A data file cannot be downloaded, read or trusted. The message names the file."""


class MissingData(DataError):
    """A data set is not in the data folder. The message gives the command that fetches it."""


class MissingExtra(DagcError, ImportError):
    """A part of dagc needs a package that is not installed. The message names the extra that installs it."""


class BudgetWarning(UserWarning):
    """The budget does not fit: caps keep it from being spent, or it is too small for training to get far."""


class CheckpointError(DagcError):
    """A run cannot be saved or resumed. The message says what is left and what to do."""


class Damaged(CheckpointError):
    """A file that could be read, but does not hold what was written to it."""


class NewerVersion(CheckpointError):
    """A file that is intact, but was written by a newer version of dagc."""


class OutOfSync(DagcError):
    """A client's model is not the one the server builds on. The client needs the full model."""


class TooFewNodes(DagcError):
    """Fewer nodes than required contributed to a round. The message says why, and what to do."""


def shown(value: object, most: int = 100) -> str:
    """Format a value for an error message. This never fails, and the text is never long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of 5,000 digits, a table nested 5,000 deep
        name = type(value).__name__
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name} that is too large to show"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unknown(kind: str, name: object, names: Iterable[str]) -> InvalidInput:
    """Make the error for a name that does not exist, suggesting the closest one that does."""
    known = list(names)
    near = get_close_matches(name[:100], known, n=1) if isinstance(name, str) else []
    guess = f"did you mean {near[0]!r}? Choose" if near else "choose"
    return InvalidInput(f"there is no {kind} {shown(name)}: {guess} one of {', '.join(known)}")


@contextmanager
def needs_extra(part: str, extra: str) -> Iterator[None]:
    """Import optional packages inside this block. If one is missing, the error names the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "dagc").partition(".")[0] == "dagc":  # our own bug: no extra would help
            raise
        raise MissingExtra(
            f"{part} needs {error.name}, which is not installed: install dagc with its extra {extra!r}, "
            f"e.g. pip install 'dagc-fl[{extra}]', or '.[{extra}]' in a clone of the repository"
        ) from error
