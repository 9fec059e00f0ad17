"""One round of a training, as callbacks, logs and results have it."""

from dataclasses import dataclass

__all__ = ["Round"]


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        round: How many rounds are done, this one included.
        loss: The training loss of the clients that answered, weighted by their data; None if none did.
        present: How many clients answered.
        entries: How many entries were uploaded.
        up: Bytes uploaded in this round, including late uploads.
        down: Bytes downloaded in this round.
        bytes_up: Bytes uploaded so far.
        bytes_down: Bytes downloaded so far.
        seconds: The time on the network's simulated clock.
        score: On the test set, if this round was evaluated: accuracy, R² for numbers, or the metric given.
        test_loss: On the test set, if this round was evaluated.
    """

    round: int
    loss: float | None
    present: int
    entries: int
    up: int
    down: int
    bytes_up: int
    bytes_down: int
    seconds: float
    score: float | None = None
    test_loss: float | None = None
