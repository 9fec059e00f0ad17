"""The one family of errors: whatever dagc refuses, it refuses with one of these."""

__all__ = [
    "BudgetWarning",
    "CheckpointError",
    "DagcError",
    "DataError",
    "InvalidInput",
    "MalformedPayload",
    "MissingData",
    "NonFiniteGradient",
]


class DagcError(Exception):
    """Everything that this library raises on purpose."""


class InvalidInput(DagcError, ValueError):
    """A value the caller gave cannot be used; the message names it and says what to do."""


class NonFiniteGradient(InvalidInput):
    """A gradient with NaN or infinity was offered; nothing was changed."""


class MalformedPayload(DagcError, ValueError):
    """Bytes that are not a valid frame; the message says what is wrong with them."""


class DataError(DagcError):
    """A data file cannot be fetched, read or trusted; the message names the file."""


class MissingData(DataError):
    """A data set is not in the data folder; the message is the command that gets it."""


class BudgetWarning(UserWarning):
    """The budget could not be spent in full, because every client has reached its cap."""


class CheckpointError(DagcError):
    """A run cannot be saved, or cannot be gone on with; the message says what is left and what to do."""
