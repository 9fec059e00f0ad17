"""The budgets of methods that are given none."""

import math

__all__ = ["level_bytes", "local_steps_bytes", "usual_bytes"]


def usual_bytes(size: int) -> float:
    """The default budget of methods that count entries: half the square root of the model's size, at least 8.

    Example:
        >>> usual_bytes(7850), usual_bytes(236_000)
        (44.0, 243.0)
    """
    return max(8.0, float(round(0.5 * math.sqrt(size))))


def level_bytes(size: int) -> float:
    """The default budget of `dagc`: as accurate as training without compression, at its number of rounds.

    That is 20 times the square root of the model's size, but never more than a tenth of a byte per entry, and at least
    64 bytes. `docs/studies/results.md` has what was measured.

    Example:
        >>> level_bytes(7850), level_bytes(236_000)
        (785.0, 9716.0)
    """
    return max(64.0, float(round(min(20 * math.sqrt(size), size / 10))))


def local_steps_bytes(size: int) -> float:
    """The default budget of an exchange after many local steps: four times that of a round of `dagc`.

    Exchanges are rare, and the steps of AdamW change all parameters about equally, which takes more bytes to say.

    Example:
        >>> local_steps_bytes(7850), local_steps_bytes(236_000)
        (3140.0, 38864.0)
    """
    return 4 * level_bytes(size)
