"""What a policy is: it says, each round, with which parameter each client compresses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dagc.compressors import Compressor

__all__ = ["Exchanging", "Policy", "Report", "Setting"]


@dataclass(frozen=True, eq=False)
class Setting:
    """What a policy is made for.

    Attributes:
        weights: How much data each client of the federation holds.
        size: The number of entries in the model.
        ratio: The budget as the mean ratio of entries sent, or
        threshold: as the mean threshold, in the units of what is compressed, or
        bytes: as bytes per round for all clients together. At most one of the three is given.
        values: The value codec in use.
        exponent: For the power rule.
        options: What else the method takes, by name.
        compact: Whether small frames are compact.
        caps: The largest ratio of each client; 1 for all if not given.
    """

    weights: NDArray[np.float64]
    size: int
    ratio: float | None = None
    threshold: float | None = None
    bytes: int | None = None
    values: str = "fp32"
    exponent: float | None = None
    options: Mapping[str, float] = field(default_factory=dict)
    compact: bool = False
    caps: Sequence[float] | NDArray[np.float64] | None = None


class Report(NamedTuple):
    """What a client tells the server after a round, beside its payload."""

    client: int
    norm: float | None  # of its gradient, where the policy asks for it
    entries: int
    bytes: int


class Policy(Protocol):
    """Maps a round and the last reports to one parameter per client."""

    compressor: Compressor
    wants_norms: bool
    needs_exchange: bool  # whether parameters follow from what clients tell between gradient and selection

    def parameters(self, round: int, present: Sequence[int], reports: Sequence[Report]) -> list[Any]:
        """One parameter for each client that is present, in that order.

        Args:
            round: From 0.
            present: The clients that take part in this round.
            reports: Of the clients that took part in the last one.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything to go on from, as JSON can hold it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        ...


class Exchanging(Policy, Protocol):
    """A policy with `needs_exchange`: clients tell something between gradient and selection, and parameters follow.

    In a round: `ask` for everybody, `tell` for each client, `answer` for everybody. An engine without a way to do that
    refuses such a policy.
    """

    bins: int

    def ask(self, present: Sequence[int]) -> list[int]:
        """What each client is asked: the lowest bin of its histogram that matters."""
        ...

    def tell(self, counts: NDArray[np.int64], floor: int) -> bytes:
        """A client's message, for its histogram with `bins` to a doubling (`ErrorFeedback.histogram`)."""
        ...

    def answer(self, present: Sequence[int], floors: Sequence[int], messages: Sequence[bytes]) -> list[Any]:
        """One parameter for each client that is present; 0 for one that is to send nothing."""
        ...
