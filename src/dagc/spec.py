"""Functions and their arguments as short texts, for flags and files: `skewed:clients=10,skew_ratio=100`."""

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dagc.errors import InvalidInput, shown, unknown

Result = TypeVar("Result")
SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_spec(
    spec: str, kind: str, registry: Mapping[str, Callable[..., Result]], reserved: Collection[str] = ()
) -> tuple[Callable[..., Result], dict[str, Any]]:
    """The function that a text, `name` or `name:option=value,option=value`, names, and its arguments.

    Arguments are converted to their annotated types; those that are reserved cannot be in a text.

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
        wanted, convert = next(each for kind, each in KINDS.items() if kind in str(known[key].annotation))
        try:
            options[key] = convert(value)
        except (ValueError, KeyError, OverflowError, OSError) as error:
            why = f" ({error})" if isinstance(error, OSError) else ""
            raise InvalidInput(f"{shown(spec, 200)}: {key} is {shown(value)}; it must be {wanted}{why}") from None
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise InvalidInput(f"{shown(spec, 200)} has no {key}; write {name}:{key}=…")
    return function, options


def _whole_numbers(value: str) -> list[int]:
    """The numbers in a text or, if it is no list of numbers, in the file of that name."""
    if not value.replace("/", "").strip().isdigit():
        value = Path(value).expanduser().read_text(encoding="utf-8")
    return [int(part) for part in value.replace("/", " ").replace(",", " ").split()]


KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "Sequence": ("whole numbers separated by /, or a file of them", _whole_numbers),
    "bool": ("true or false", lambda value: SWITCH[value.lower()]),
    "str": ("a text", str),
    "int": ("a whole number", int),
    "": ("a number", float),
}
"""What an argument must be, and how it is read, by what its annotation contains."""
