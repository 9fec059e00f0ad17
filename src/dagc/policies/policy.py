"""The interface of a policy, which decides each round with which parameter each client compresses."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dagc.errors import InvalidInput, unknown
from dagc.state import Check, Stateful

if TYPE_CHECKING:
    from dagc.policies.plan import Plan


class Report(NamedTuple):
    """What the server knows about a client's last upload, besides its entries."""

    client: str
    norm: float | None  # of its gradient, if the policy asks for it
    entries: int
    bytes: int


class Situation(NamedTuple):
    """What a policy bases its decision on.

    Attributes:
        round: From 0.
        present: The names of the clients that take part, in the order of the roster.
        examples: How much data each client holds, by name, for every client that ever joined.
        reports: One for each client whose upload was accepted in the last round.
        allowance: The bytes that all clients together may send this round; None if the budget is not in bytes.
    """

    round: int
    present: Sequence[str]
    examples: Mapping[str, float]
    reports: Sequence[Report] = ()
    allowance: int | None = None


class Policy(Protocol):
    """Maps a situation to one parameter per client.

    Clients come and go: whatever a policy remembers about a client, it remembers by name.

    Attributes:
        compressor: How clients select: a name in `dagc.COMPRESSORS`.
        wants_norms: Whether clients report the norms of their gradients.
    """

    compressor: str
    wants_norms: bool

    def decide(self, now: Situation) -> list[Any]:
        """One parameter for each client present, in that order; 0 entries for a client that is to send nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The whole state, ready for JSON; `dagc.state.Stateful` makes it and loads it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken."""
        ...


class Method(NamedTuple):
    """A training method.

    Attributes:
        budgets: Which of `ratio`, `bytes`, `rate` and `threshold` it accepts.
        make: Makes its policy from a plan and the number of entries in the model.
        options: The names in `Plan.options` that it knows.
        waits: Whether clients can wait until a frame is worth sending (`Plan.overhead`).
        about: One line that describes it, for `--help`.
        defaults: The method's own default settings.
        fixed: Whether these defaults define the method: settings shared by a whole comparison do not change them.
        encodes: Whether the encoder chooses what a frame holds, within bytes; entries and their codecs are not set.
    """

    budgets: tuple[str, ...]
    make: Callable[["Plan", int], Policy]
    options: tuple[str, ...] = ()
    waits: bool = False
    about: str = ""
    defaults: Mapping[str, Any] = MappingProxyType({})
    fixed: bool = False
    encodes: bool = False


POLICIES: dict[str, Method] = {}
"""Every training method by name. Add yours, and every engine knows it."""
ELSEWHERE = {
    "fedavg": "none",
    "fedsgd": "none with one local step",
    "fedadam": "none with the optimizer Adam",
    "fedavgm": "none with momentum 0.9",
    "topk": "top-k",
    "randomk": "random-k",
    "dgc": "top-k",
}
"""What others call methods, in small letters without hyphens."""


def unknown_method(name: object) -> InvalidInput:
    """Make the error for a method that does not exist. Names from the literature get ours.

    Example:
        >>> print(unknown_method("FedAdam"))
        there is no method 'FedAdam': it is called none with the optimizer Adam
    """
    called = ELSEWHERE.get(name.lower().replace("-", "").replace("_", "")) if isinstance(name, str) else None
    if called is None:
        return unknown("method", name, POLICIES)
    return InvalidInput(f"there is no method {name!r}: it is called {called}")


class Everything(Stateful):
    """No compression, and so no parameter and nothing to remember."""

    wants_norms = False
    compressor = "none"

    def __init__(self, plan: "Plan", size: int) -> None:
        """Take the arguments of every policy; there is no budget to keep."""

    def decide(self, now: Situation) -> list[Any]:
        return [None] * len(now.present)

    def fields(self) -> Mapping[str, Check]:
        return {}
