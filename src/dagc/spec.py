"""Functions and their arguments as short texts, for flags and files: `skewed:clients=10,skew_ratio=100`."""

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dagc.errors import InvalidInput, shown, unknown

__all__ = ["read_spec"]

Result = TypeVar("Result")
SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_spec(
    spec: str, kind: str, registry: Mapping[str, Callable[..., Result]], reserved: Collection[str] = ()
) -> tuple[Callable[..., Result], dict[str, Any]]:
    """The function that a text names, and its arguments, converted to their annotated types.

    Args:
        spec: `name` or `name:option=value,option=value`.
        kind: What the functions make, for messages.
        registry: The functions by name.
        reserved: Arguments that a text cannot have.

    Example:
        >>> read_spec("round:ndigits=2", "rounding", {"round": lambda *, ndigits=0: ndigits})[1]
        {'ndigits': 2.0}
    """
    name, _, text = spec.strip().partition(":")
    function = registry.get(name.replace("_", "-"))
    if function is None:
        raise unknown(kind, name, registry)
    parameters = inspect.signature(function).parameters.values()
    known = {each.name: each for each in parameters if each.kind is each.KEYWORD_ONLY and each.name not in reserved}
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            raise InvalidInput(
                f"{shown(spec, 200)}: {shown(item)} is not an option; write option=value with {', '.join(known)}"
            )
        if key in options:
            raise InvalidInput(f"{shown(spec, 200)}: {key} is given twice")
        options[key] = _value(spec, key, value, str(known[key].annotation))
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise InvalidInput(f"{shown(spec, 200)} has no {key}; write {name}:{key}=…")
    return function, options


def _value(spec: str, key: str, value: str, kind: str) -> Any:
    wanted = "a number"
    try:
        if "Sequence" in kind:
            wanted = "whole numbers separated by /, or a file of them"
            return [int(part) for part in _content(value).replace("/", " ").replace(",", " ").split()]
        if "bool" in kind:
            wanted = "true or false"
            return SWITCH[value.lower()]
        if "str" in kind:
            return value
        if "int" in kind:
            wanted = "a whole number"
            return int(value)
        return float(value)
    except (ValueError, KeyError, OverflowError, OSError) as error:
        why = f" ({error})" if isinstance(error, OSError) else ""
        raise InvalidInput(f"{shown(spec, 200)}: {key} is {shown(value)}; it must be {wanted}{why}") from None


def _content(value: str) -> str:
    """The value itself or, if it is no list of numbers, what is in the file of that name."""
    is_list = value.replace("/", "").strip().isdigit()
    return value if is_list else Path(value).expanduser().read_text(encoding="utf-8")
