"""Comparisons: the same data, seeds and model for all methods, each with the settings that it takes, or its own."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from dagc.errors import InvalidInput, unknown
from dagc.policies import BUDGETS, POLICIES
from dagc.policies.policy import unknown_method
from dagc.training import SOLUTION, Config

__all__ = ["SWEPT", "comparison_fields", "split_methods"]

COUNTED = tuple(name for name in BUDGETS if name != "threshold")
"""Budgets of methods that count entries; they take precedence over a threshold."""
VARIED = tuple(name for name in SOLUTION if name != "method")
"""Settings that a variant of a method can have."""
NAMED = tuple(name for name, each in Config.schema().items() if each.kind in ("numbers", "options"))
"""Settings that hold names and values: JSON when written as text."""
SWEPT = tuple(name for name in SOLUTION if name not in ("method", "per_tensor", *NAMED))
"""Settings that can have several values in a comparison."""
STEPS = ("local_steps", "epochs")
OWN_STEPS = ("client_optimizer", "client_momentum", "client_weight_decay", "server_rate", "server_schedule")
"""Settings that exist only with several local steps."""
SHARED = ("overhead", "down", "caps", "exponent", "options", "values", "frames")
"""Shared settings that only some methods take."""


def comparison_fields(settings: Mapping[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of every line of a comparison.

    Every method gets the budget and the settings that it takes. Several budgets may be given, e.g. a ratio for methods
    that count entries and a threshold for the others. Settings that only some methods take (`overhead`, `down`, `caps`,
    `exponent`, `options`) go to those. A method's own defaults (`Method.defaults`: the value codec of `none` and `stc`)
    can be changed only by a variant. A list of values is a sweep: every method with each of them.

    Args:
        settings: Fields of `Config`; those in `SWEPT` may be lists.
        methods: Names of methods, or variants `NAME:key=value,key=value`, whose settings override the shared ones.

    Raises:
        InvalidInput: A method gets no budget, or a setting fits none of the methods.

    Example:
        >>> settings = {"task": "mlp@digits", "ratio": 0.01, "threshold": 0.05, "overhead": 0.125}
        >>> for fields in comparison_fields(settings, ["dagc-r", "top-k:values=int8", "dagc-a", "none"]):
        ...     print(fields["method"], {name: fields[name] for name in fields if name not in ("task", "method")})
        dagc-r {'ratio': 0.01, 'overhead': 0.125}
        top-k {'ratio': 0.01, 'overhead': 0.125, 'values': 'int8'}
        dagc-a {'threshold': 0.05}
        none {}
    """
    variants = [_read(text) for text in methods]
    for text in methods:
        if list(methods).count(text) > 1:
            raise InvalidInput(f"method {text!r} is named twice: name each once")
    shared = {name: value for name, value in settings.items() if value is not None}
    first = _points(shared)[0]
    _check_taken(SHARED, first, methods, variants)
    lines: dict[str, tuple[str, dict[str, Any]]] = {}
    for text, variant in zip(methods, variants, strict=True):
        for point in _points(shared):
            fields = _with(point, *variant)
            other, _ = lines.setdefault(Config(**fields).key(), (text, fields))
            if other != text:
                raise InvalidInput(f"{text!r} is the same as {other!r}: leave one of them out")
    _check_taken(BUDGETS, first, methods, variants)
    budgets = [name for name in BUDGETS if name in first]
    for text, variant in zip(methods, variants, strict=True):
        if budgets and POLICIES[variant[0]].budgets and not set(BUDGETS) & _with(first, *variant).keys():
            raise InvalidInput(
                f"{text!r} does not take {' or '.join(budgets)}: leave it out, or give it a budget of its own, "
                f"such as {variant[0]}:{POLICIES[variant[0]].budgets[0]}=…"
            )
    return [fields for _, fields in lines.values()]


def _check_taken(
    names: Sequence[str],
    settings: Mapping[str, Any],
    methods: Sequence[str],
    variants: Sequence[tuple[str, dict[str, Any]]],
) -> None:
    """Refuse what no method takes."""
    for name in names:
        for part in _parts(settings, name):
            usual = part == Config.default(name)  # as in a run's config.toml
            if not usual and not any(part in _parts(_with(settings, *variant), name) for variant in variants):
                raise InvalidInput(f"none of the methods {', '.join(methods)} takes {name} {part}: leave it out")


def split_methods(text: str) -> list[str]:
    """Split methods separated by commas; a variant's settings are separated by commas, too.

    Example:
        >>> split_methods("dagc-r,top-k:frames=coded,values=int8,none")
        ['dagc-r', 'top-k:frames=coded,values=int8', 'none']
    """
    methods: list[str] = []
    for part in re.split(r",(?![^{]*})", text):  # not within JSON
        if "=" in part and ":" not in part.partition("=")[0] and methods and ":" in methods[-1]:
            methods[-1] += f",{part.strip()}"
        else:
            methods.append(part.strip())
    return methods


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """The method and the settings of `NAME:key=value,key=value`."""
    method, colon, rest = text.partition(":")
    if method not in POLICIES:
        raise unknown_method(method)
    overrides: dict[str, Any] = {}
    for part in re.split(r",(?![^{]*})", rest) if colon else ():
        key, equals, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if not equals:
            raise InvalidInput(f"{text!r}: {part!r} is not key=value: write e.g. {method}:values=int8")
        if name not in VARIED:
            raise unknown("setting of a variant", name, VARIED)
        overrides[name] = value.strip()
        if name in NAMED:
            try:
                overrides[name] = json.loads(value)
            except (ValueError, RecursionError):
                raise InvalidInput(f'{text!r}: {name} is {value!r:.100}: write JSON, e.g. {{"a": 1}}') from None
    return method, overrides


def _with(settings: Mapping[str, Any], method: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A method's fields: those of the shared settings that it takes, overridden by its own."""
    replaced: set[str] = set()
    for alike in (BUDGETS, STEPS):
        replaced |= set(alike) if overrides.keys() & set(alike) else set()
    if str(overrides.get("local_steps")) == "1":
        replaced |= set(OWN_STEPS)
    left = {name: value for name, value in settings.items() if name not in replaced}
    return {**_taken_by({**left, **overrides}, method), **overrides, "method": method}


def _taken_by(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The settings that a method takes."""
    kind = POLICIES[method]
    known = {name: value for name, value in settings.items() if value is not None}
    counted = [name for name in COUNTED if name in known and name in kind.budgets]
    budgets = counted or [name for name in ("threshold",) if name in kind.budgets]
    takes = {
        **{name: name in budgets for name in BUDGETS},
        "overhead": kind.waits and bool(counted),
        "down": bool(kind.budgets) and (known.get("down") != "same" or bool(counted)),
        "caps": bool(counted),
        "exponent": method == "power",
    }
    if kind.fixed:
        takes |= {name: known.get(name) == value for name, value in kind.defaults.items()}
    taken = {name: value for name, value in known.items() if takes.get(name, True)}
    if "options" in taken:
        taken["options"] = {name: value for name, value in taken["options"].items() if name in kind.options}
    return taken


def _parts(settings: Mapping[str, Any], name: str) -> list[Any]:
    """The names of options; the value itself of any other setting that is given."""
    value = settings.get(name)
    if name == "options":
        return list(value or ())
    return [] if value in (None, {}) else [value]


def _points(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings with one value each, for every combination of those with several values."""
    several = {name: value for name, value in settings.items() if isinstance(value, list | tuple)}
    for name in several:
        if name not in SWEPT:
            raise unknown("setting with several values", name, SWEPT)
    return [{**settings, **dict(zip(several, values, strict=True))} for values in product(*several.values())]
