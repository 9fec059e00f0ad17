"""Comparisons: the same data, seeds and model for all methods, each with the settings that it takes, or its own."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

from dagc.comparison.runner import run_all, stopping
from dagc.errors import InvalidInput, unknown
from dagc.policies import BUDGETS, METHODS
from dagc.policies.plan import OF_ENTRIES
from dagc.policies.policy import unknown_method
from dagc.training import SOLUTION, Config
from dagc.training.config import OWN_STEPS

__all__ = ["OBJECTS", "SWEPT", "comparison_fields", "from_json", "run_all", "split_methods", "stopping"]

OBJECTS = {name: each.example for name, each in Config.schema().items() if each.kind in ("numbers", "options")}
"""Settings that hold names and values are JSON when written as text; an example of each."""
VARIED = tuple(name for name in SOLUTION if name != "method")  # settings that a variant of a method can have
SWEPT = tuple(name for name in VARIED if name not in ("per_tensor", *OBJECTS))
"""Settings that can have several values in a comparison."""
SHARED = ("overhead", "down", "caps", "exponent", "options", "values", "frames")
"""Shared settings that only some methods take."""
STEPS = ("local_steps", "epochs")
BETWEEN = r",(?![^{]*})"  # a comma that is not within JSON

_Variant = tuple[str, dict[str, Any]]


def comparison_fields(settings: Mapping[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of every line of a comparison.

    Every method gets the budget and the settings that it takes. Several budgets may be given, e.g. a ratio for methods
    that count entries and a threshold for the others. Settings that only some methods take (`overhead`, `down`, `caps`,
    `exponent`, `options`) go to those. A method's own defaults (`Method.defaults`: the value codec of `none` and `stc`)
    can be changed only by a variant, `NAME:key=value,key=value`. A list of values is a sweep: every method with each.

    Example:
        >>> settings = {"task": "mlp@digits", "ratio": 0.01, "threshold": 0.05, "overhead": 0.125}
        >>> for fields in comparison_fields(settings, ["dagc-r", "top-k:values=int8", "dagc-a", "none"]):
        ...     print(fields["method"], {name: fields[name] for name in fields if name not in ("task", "method")})
        dagc-r {'ratio': 0.01, 'overhead': 0.125}
        top-k {'ratio': 0.01, 'overhead': 0.125, 'values': 'int8'}
        dagc-a {'threshold': 0.05}
        none {}
    """
    variants = {text: _read(text) for text in methods}
    for text in methods:
        if list(methods).count(text) > 1:
            raise InvalidInput(f"method {text!r} is named twice: name each once")
    points = _points({name: value for name, value in settings.items() if value is not None})
    _check_taken(SHARED, points[0], variants)
    lines: dict[str, tuple[str, dict[str, Any]]] = {}
    for text, variant in variants.items():
        for point in points:
            fields = _fields(point, *variant)
            other, _ = lines.setdefault(Config(**fields).key(), (text, fields))
            if other != text:
                raise InvalidInput(f"{text!r} is the same as {other!r}: leave one of them out")
    _check_taken(BUDGETS, points[0], variants)
    budgets = [name for name in BUDGETS if name in points[0]]
    for text, (method, overrides) in variants.items():
        takes = METHODS[method].budgets
        if budgets and takes and not set(BUDGETS) & _fields(points[0], method, overrides).keys():
            raise InvalidInput(
                f"{text!r} does not take {' or '.join(budgets)}: leave it out, or give it a budget of its own, "
                f"such as {method}:{takes[0]}=…"
            )
    return [fields for _, fields in lines.values()]


def split_methods(text: str) -> list[str]:
    """Split methods separated by commas; a variant's settings are separated by commas, too."""
    methods: list[str] = []
    for part in re.split(BETWEEN, text):
        if "=" in part and ":" not in part.partition("=")[0] and methods and ":" in methods[-1]:
            methods[-1] += f",{part.strip()}"
        else:
            methods.append(part.strip())
    return methods


def from_json(name: str, text: str) -> Any:
    """What a text means for a setting: names and values are JSON."""
    if name not in OBJECTS:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{name} is {text!r:.100}: write JSON, e.g. '{OBJECTS[name]}'") from None


def _check_taken(names: Sequence[str], settings: Mapping[str, Any], variants: Mapping[str, _Variant]) -> None:
    """Refuse what no method takes."""
    taken = [_fields(settings, *variant) for variant in variants.values()]
    for name in names:
        for part in _parts(settings, name):
            usual = part == Config.default(name)  # as in a run's config.toml
            if not usual and not any(part in _parts(fields, name) for fields in taken):
                raise InvalidInput(f"none of the methods {', '.join(variants)} takes {name} {part}: leave it out")


def _parts(settings: Mapping[str, Any], name: str) -> Collection[Any]:
    """The names of options; the value itself of any other setting that is given."""
    value = settings.get(name)
    if name == "options":
        return list(value or ())
    return [] if value in (None, {}) else [value]


def _read(text: str) -> _Variant:
    """The method and the settings of `NAME:key=value,key=value`."""
    method, colon, rest = text.partition(":")
    if method not in METHODS:
        raise unknown_method(method)
    overrides: dict[str, Any] = {}
    for part in re.split(BETWEEN, rest) if colon else ():
        key, equals, value = part.partition("=")
        name = key.strip().replace("-", "_")
        if not equals:
            raise InvalidInput(f"{text!r}: {part!r} is not key=value: write e.g. {method}:values=int8")
        if name not in VARIED:
            raise unknown("setting of a variant", name, VARIED)
        overrides[name] = from_json(name, value.strip())
    return method, overrides


def _fields(settings: Mapping[str, Any], method: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A method's fields: those of the shared settings that it takes, overridden by its own."""
    replaced = [name for alike in (BUDGETS, STEPS) if overrides.keys() & set(alike) for name in alike]
    if str(overrides.get("local_steps")) == "1":
        replaced += OWN_STEPS
    left = {name: value for name, value in settings.items() if name not in replaced}
    return {**_taken_by({**left, **overrides}, method), **overrides, "method": method}


def _taken_by(settings: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The settings that a method takes. Budgets that count entries take precedence over a threshold."""
    kind = METHODS[method]
    counted = [name for name in BUDGETS if name != "threshold" and name in settings and name in kind.budgets]
    budgets = counted or [name for name in ("threshold",) if name in kind.budgets]
    takes = {
        **{name: name in budgets for name in BUDGETS},
        "overhead": kind.waits and bool(counted),
        "down": bool(kind.budgets) and (settings.get("down") != "same" or bool(counted)),
        "caps": bool(counted),
        "exponent": kind.exponent,
        **dict.fromkeys(OF_ENTRIES, not kind.encodes),
    }
    if kind.fixed:
        takes |= {name: settings.get(name) == value for name, value in kind.defaults.items()}
    taken = {name: value for name, value in settings.items() if takes.get(name, True)}
    if "options" in taken:
        taken["options"] = {name: value for name, value in taken["options"].items() if name in kind.options}
    return taken


def _points(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings with one value each, for every combination of those with several values."""
    several = {name: value for name, value in settings.items() if isinstance(value, list | tuple)}
    for name in several:
        if name not in SWEPT:
            raise unknown("setting with several values", name, SWEPT)
    return [{**settings, **dict(zip(several, values, strict=True))} for values in product(*several.values())]
