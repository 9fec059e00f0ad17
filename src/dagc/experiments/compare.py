"""Methods side by side: the same data, seeds, model and budget for all."""

from collections.abc import Mapping, Sequence
from typing import Any

from dagc.errors import InvalidInput, unknown
from dagc.experiments.allocators import register
from dagc.policies import POLICIES
from dagc.training import Config

__all__ = ["comparison_configs"]

COUNTED = ("ratio", "bytes", "rate")
"""Budgets of methods that count entries; they go before a threshold."""


def comparison_configs(settings: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int]) -> list[Config]:
    """A configuration for every method and seed; each method gets the budget and the settings that it takes.

    Several budgets may be given, e.g. a ratio for methods that count entries and a threshold for the others. Settings
    that only some methods take (`overhead`, `down`, `caps`, `exponent`, `options`) go to those.

    Args:
        settings: Fields of `Config`.
        methods: Names of methods.
        seeds: The seeds, the same for all methods.

    Raises:
        InvalidInput: A method gets no budget, or a setting fits none of the methods.

    Example:
        >>> settings = {"task": "mlp@digits", "ratio": 0.01, "threshold": 0.05, "overhead": 0.125}
        >>> for config in comparison_configs(settings, ["dagc-r", "dagc-a", "none"], [0]):
        ...     print(config.method, config.ratio, config.threshold, config.overhead)
        dagc-r 0.01 None 0.125
        dagc-a None 0.05 None
        none None None None
    """
    for method in methods:
        register(method)
        if method not in POLICIES:
            raise unknown("method", method, POLICIES)
        if list(methods).count(method) > 1:
            raise InvalidInput(f"method {method!r} is named twice: name each once")
    own = {method: _own(settings, method) for method in methods}
    for name in ("overhead", "down", "caps", "exponent", "options"):
        for part in _parts(settings, name):
            if not any(part in _parts(each, name) for each in own.values()):
                raise InvalidInput(f"none of the methods {', '.join(methods)} takes {name} {part}: leave it out")
    return [Config(**{**own[method], "method": method, "seed": seed}) for method in methods for seed in seeds]


def _own(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The settings that a method takes."""
    kind = POLICIES[method]
    given = {name: value for name, value in settings.items() if value is not None}
    counted = [name for name in COUNTED if name in given and name in kind.budgets]
    budgets = counted or [name for name in ("threshold",) if name in kind.budgets]
    own = {name: value for name, value in given.items() if name not in (*COUNTED, "threshold") or name in budgets}
    takes = {
        "overhead": kind.waits and bool(counted),
        "down": given.get("down") != "same" or bool(counted),
        "caps": bool(counted),
        "exponent": method == "power",
    }
    own = {name: value for name, value in own.items() if takes.get(name, True)}
    if "options" in own:
        own["options"] = {name: value for name, value in own["options"].items() if name in kind.options}
    return own


def _parts(settings: Mapping[str, Any], name: str) -> list[Any]:
    """The names of options; the value itself of any other setting that is given."""
    value = settings.get(name)
    if name == "options":
        return list(value or ())
    return [] if value in (None, {}) else [value]
