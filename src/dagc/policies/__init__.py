"""What each client uses this round. Register a policy of your own in `POLICIES` and every engine knows it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dagc.compressors import Compressor, hard_threshold, random_k, top_k
from dagc.errors import InvalidInput
from dagc.policies.accordion import Accordion
from dagc.policies.fixed import Fixed, Nothing
from dagc.policies.one_threshold import OneThreshold
from dagc.policies.policy import Exchanging, Policy, Report, Setting
from dagc.policies.turns import Turns
from dagc.policies.values import chosen_values

__all__ = [
    "POLICIES",
    "Accordion",
    "Exchanging",
    "Fixed",
    "Method",
    "Nothing",
    "OneThreshold",
    "Policy",
    "Report",
    "Setting",
    "Turns",
    "chosen_values",
    "make_policy",
]


class Method(NamedTuple):
    """A training method.

    Attributes:
        budgets: Which of `ratio`, `bytes` and `threshold` it can be given; the first is the usual one.
        make: Makes its policy.
        options: The names in `Setting.options` that it knows.
    """

    budgets: tuple[str, ...]
    make: Callable[[Setting], Policy]
    options: tuple[str, ...] = ()


def _relative(allocator: str, compressor: Compressor = top_k) -> Method:
    def make(setting: Setting) -> Policy:
        return (Turns if setting.options else Fixed)(setting, allocator, compressor)

    return Method(("ratio", "bytes"), make, ("turns", "overhead"))


def _absolute(allocator: str) -> Method:
    return Method(("threshold",), partial(Fixed, allocator=allocator, compressor=hard_threshold))


def _power(setting: Setting) -> Policy:
    return Fixed(setting, "power", top_k if setting.threshold is None else hard_threshold)


POLICIES: dict[str, Method] = {
    "none": Method((), Nothing),
    "top-k": _relative("uniform"),
    "random-k": _relative("uniform", random_k),
    "hard-threshold": _absolute("uniform"),
    "dagc-r": _relative("dagc-r"),
    "dagc-a": _absolute("dagc-a"),
    "power": Method(("ratio", "bytes", "threshold"), _power),
    "phi-optimal": _relative("phi-optimal"),
    "scheme-i": _relative("scheme-i"),
    "scheme-ii": _relative("scheme-ii"),
    "dagc-global": Method(("ratio", "bytes"), OneThreshold, ("bins", "overhead")),
    "accordion": Method(("ratio", "bytes", "threshold"), Accordion, ("interval", "change", "gentle", "aggressive")),
}
"""Every training method by name."""


def make_policy(method: str, setting: Setting) -> Policy:
    """The policy of that name for a federation.

    Example:
        >>> import numpy as np
        >>> setting = Setting(np.array([900.0, 100.0]), size=10_000, ratio=0.01)
        >>> make_policy("dagc-r", setting).parameters(0, [0, 1], [])
        [100, 100]
        >>> make_policy("power", setting).parameters(0, [0, 1], [])
        [162, 38]
    """
    if method not in POLICIES:
        raise InvalidInput(f"no method is called {method!r}: choose one of {', '.join(POLICIES)}")
    budgets = POLICIES[method].budgets
    given = [name for name in ("ratio", "bytes", "threshold") if getattr(setting, name) is not None]
    if len(given) != bool(budgets) or not set(given) <= set(budgets):
        wanted = f"one budget, {' or '.join(budgets)}" if budgets else "no budget"
        raise InvalidInput(f"method {method!r} takes {wanted}; given: {', '.join(given) or 'none'}")
    unknown = set(setting.options) - set(POLICIES[method].options)
    if unknown:
        known = ", ".join(POLICIES[method].options) or "none"
        raise InvalidInput(f"method {method!r} has no option {', '.join(sorted(unknown))}; its options: {known}")
    return POLICIES[method].make(setting)
