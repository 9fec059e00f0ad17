"""What a policy is: it decides, each round, with which parameter each client compresses."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from dagc.policies.plan import Plan

__all__ = ["POLICIES", "Method", "Policy", "Report", "Situation"]


class Report(NamedTuple):
    """What the server knows about a client's last upload, beside its entries."""

    client: str
    norm: float | None  # of its gradient, where the policy asks for it
    entries: int
    bytes: int


class Situation(NamedTuple):
    """What a policy decides by.

    Attributes:
        round: From 0.
        present: The names of the clients that take part, in the order of the roster.
        examples: How much data each client holds, by name: everybody who was ever there.
        reports: Of the clients whose uploads were taken in the last round.
        allowance: The bytes that this round may take, all clients together; None if the budget is not in bytes.
    """

    round: int
    present: Sequence[str]
    examples: Mapping[str, float]
    reports: Sequence[Report] = ()
    allowance: int | None = None


class Policy(Protocol):
    """Maps a situation to one parameter per client.

    Clients come and go: whatever a policy remembers about one, it remembers by name.

    Attributes:
        compressor: How clients select: a name in `dagc.COMPRESSORS`.
        wants_norms: Whether clients report the norms of their gradients.
    """

    compressor: str
    wants_norms: bool

    def decide(self, now: Situation) -> list[Any]:
        """One parameter for each client that is present, in that order; 0 entries for one that is to send nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything to continue from, as JSON can hold it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken."""
        ...


class Method(NamedTuple):
    """A training method.

    Attributes:
        budgets: Which of `ratio`, `bytes`, `rate` and `threshold` it can be given.
        make: Makes its policy, for a plan and the number of entries in the model.
        options: The names in `Plan.options` that it knows.
        waits: Whether clients can wait until a frame is worth it (`Plan.overhead`).
        about: One line for people who choose.
        defaults: Settings of a plan that are the method's own, unless they are given.
        fixed: Whether those are what the method is: settings for all methods of a comparison do not change them.
    """

    budgets: tuple[str, ...]
    make: Callable[["Plan", int], Policy]
    options: tuple[str, ...] = ()
    waits: bool = False
    about: str = ""
    defaults: Mapping[str, Any] = MappingProxyType({})
    fixed: bool = False


POLICIES: dict[str, Method] = {}
"""Every training method by name; add yours and every engine knows it."""
