"""The one family of errors: whatever dagc refuses, it refuses with one of these."""

__all__ = ["BudgetWarning", "DagcError", "InvalidInput", "MalformedPayload", "NonFiniteGradient"]


class DagcError(Exception):
    """Everything that this library raises on purpose."""


class InvalidInput(DagcError, ValueError):
    """A value the caller gave cannot be used; the message names it and says what to do."""


class NonFiniteGradient(InvalidInput):
    """A gradient with NaN or infinity was offered; nothing was changed."""


class MalformedPayload(DagcError, ValueError):
    """Bytes that are not a valid frame; the message says what is wrong with them."""


class BudgetWarning(UserWarning):
    """The budget could not be spent in full, because every client has reached its cap."""
