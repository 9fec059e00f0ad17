"""What each client uses this round. Register a policy of your own in `POLICIES` and every engine knows it."""

from collections.abc import Callable
from functools import partial

from dagc.compressors import Compressor, hard_threshold, random_k, top_k
from dagc.errors import InvalidInput
from dagc.policies.accordion import Accordion
from dagc.policies.fixed import Fixed, Nothing
from dagc.policies.policy import Policy, Report, Setting

__all__ = ["POLICIES", "Accordion", "Fixed", "Nothing", "Policy", "Report", "Setting", "make_policy"]


def _relative(setting: Setting, method: str, allocator: str, compressor: Compressor) -> Policy:
    setting.need(method, "ratio", "bytes")
    return Fixed(setting, allocator, compressor)


def _absolute(setting: Setting, method: str, allocator: str) -> Policy:
    setting.need(method, "threshold")
    return Fixed(setting, allocator, hard_threshold)


def _power(setting: Setting) -> Policy:
    setting.need("power", "ratio", "bytes", "threshold")
    return Fixed(setting, "power", top_k if setting.threshold is None else hard_threshold)


POLICIES: dict[str, Callable[[Setting], Policy]] = {
    "none": Nothing,
    "top-k": partial(_relative, method="top-k", allocator="uniform", compressor=top_k),
    "random-k": partial(_relative, method="random-k", allocator="uniform", compressor=random_k),
    "hard-threshold": partial(_absolute, method="hard-threshold", allocator="uniform"),
    "dagc-r": partial(_relative, method="dagc-r", allocator="dagc-r", compressor=top_k),
    "dagc-a": partial(_absolute, method="dagc-a", allocator="dagc-a"),
    "power": _power,
    "phi-optimal": partial(_relative, method="phi-optimal", allocator="phi-optimal", compressor=top_k),
    "scheme-i": partial(_relative, method="scheme-i", allocator="scheme-i", compressor=top_k),
    "scheme-ii": partial(_relative, method="scheme-ii", allocator="scheme-ii", compressor=top_k),
    "accordion": Accordion,
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
    return POLICIES[method](setting)
