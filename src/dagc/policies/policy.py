"""The interface of a policy, which decides each round with which parameter each client compresses."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dagc.errors import InvalidInput, unknown
from dagc.state import Stateful

if TYPE_CHECKING:
    from dagc.policies.plan import Plan


class Report(NamedTuple):
    """What the server knows about a client's last upload, besides its entries."""

    client: str
    norm: float | None  # of its gradient, if the policy asks for it
    entries: int
    bytes: int


class Situation(NamedTuple):
    """What a policy bases its decision on."""

    round: int  # from 0
    present: Sequence[str]  # the names of the clients that take part, in the order of the roster
    examples: Mapping[str, float]  # of every client that ever joined, by name
    reports: Sequence[Report] = ()  # one for each client whose upload was accepted in the last round
    allowance: int | None = None  # bytes that all clients together may send; None if the budget is not in bytes


class Policy(Protocol):
    """Maps a situation to one parameter per client. What it remembers about clients, it remembers by name."""

    compressor: str  # how clients select: a name in `dagc.COMPRESSORS`
    wants_norms: bool  # whether clients report the norms of their gradients

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
    """A training method."""

    budgets: tuple[str, ...]  # which of `ratio`, `bytes`, `rate` and `threshold` it accepts
    make: Callable[["Plan", int], Policy]  # its policy, from a plan and the number of entries in the model
    options: tuple[str, ...] = ()  # the names in `Plan.options` that it knows
    waits: bool = False  # whether clients can wait until a frame is worth sending (`Plan.overhead`)
    about: str = ""  # one line that describes it, for `--help`
    defaults: Mapping[str, Any] = MappingProxyType({})  # its own default settings
    fixed: bool = False  # whether they define it: settings shared by a whole comparison do not change them
    exponent: bool = False  # whether it takes `Plan.exponent`
    encodes: bool = False  # whether the encoder chooses what a frame holds: entries and their codecs are not set


METHODS: dict[str, Method] = {}
"""Every training method by name. Add yours, and every engine knows it."""
ELSEWHERE = {
    "topk": "top-k",
    "randomk": "random-k",
    "dgc": "top-k",
}
"""What others call methods, in small letters without hyphens."""
AVERAGING = {
    "fedavg": "",
    "fedsgd": "; leave local steps at 1",
    "fedadam": "; add the optimizer Adam",
    "fedavgm": "; add momentum 0.9",
}
"""How others call training, whether compressed or not, and what to set for it."""


def unknown_method(name: object) -> InvalidInput:
    """Make the error for a method that does not exist. Names from the literature get ours.

    Example:
        >>> print(unknown_method("FedAdam"))
        there is no method 'FedAdam': it is called none without compression, and dagc with it; add the optimizer Adam
    """
    plain = name.lower().replace("-", "").replace("_", "") if isinstance(name, str) else ""
    called = ELSEWHERE.get(plain)
    if plain in AVERAGING:
        called = f"none without compression, and dagc with it{AVERAGING[plain]}"
    if called is None:
        return unknown("method", name, METHODS)
    return InvalidInput(f"there is no method {name!r}: it is called {called}")


class Everything(Stateful):
    """No compression, and so no parameter and nothing to remember."""

    wants_norms = False
    compressor = "none"

    def __init__(self, plan: "Plan", size: int) -> None:
        """Take the arguments of every policy; there is no budget to keep."""

    def decide(self, now: Situation) -> list[Any]:
        return [None] * len(now.present)
