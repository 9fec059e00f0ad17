"""The flags that several commands share: one for every field of `Config`, with its description as help."""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from textwrap import fill
from typing import Annotated, Any

import typer

from dagc.errors import InvalidInput
from dagc.policies import POLICIES
from dagc.training import Config
from dagc.wire import VALUE_CODECS

__all__ = ["from_json", "given_fields", "several", "with_config_flags"]

OBJECTS = {name: each.example for name, each in Config.schema().items() if each.kind in ("numbers", "options")}
"""Settings that hold names and values are JSON on the command line; an example of each."""

CODECS = {
    "fp32": "exact, 4 bytes each",
    "int8": "1 byte each, and one scale per 256 values",
    "sign": "1 bit each, and one magnitude for all",
}
"""A line about each built-in value codec."""
FRAME_KINDS = {
    "compact": "without a memory of earlier ones",
    "coded": "both sides remember earlier frames: about a third smaller",
    "auto": "coded up to 262,144 entries if numba is installed, else compact",
}
"""A line about each kind of frames."""


def with_config_flags(
    *left_out: str, lists: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes `**fields` a flag for every field of `Config`, except those left out.

    Fields in `lists` accept several values, separated by commas.
    """

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        flags = [_flag(name, name in lists) for name in Config.schema() if name not in ("task", *left_out)]
        command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in (*own, *flags)}
        command.__doc__ = "\n\n".join([inspect.cleandoc(command.__doc__ or ""), *_names()])
        return command

    return extend


def _names() -> list[str]:
    """A line for every method, value codec and kind of frames."""
    methods = {name: kind.about for name, kind in POLICIES.items()}
    codecs = {name: CODECS.get(name, "from a plugin") for name in VALUE_CODECS} | {
        "auto": "sign, int8 or fp32, depending on the budget"
    }
    return [
        _lines("Methods (--method):", methods),
        _lines("Value codecs (--values):", codecs),
        _lines("Frames (--frames):", FRAME_KINDS),
    ]


def _lines(title: str, names: Mapping[str, str]) -> str:
    """A line for every name. The backspace keeps Typer from joining the lines."""
    lines = [fill(f"  {name:15} {about}", 78, subsequent_indent=" " * 18) for name, about in names.items()]
    return "\n".join(["\b", title, *lines])


def given_fields(fields: dict[str, Any], lists: Collection[str] = ()) -> dict[str, Any]:
    """The flags that were given, as `Config` takes them; several values of a field in `lists` as a list."""
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & set(lists):
        if "," in given[name]:
            given[name] = several(given[name], f"--{name.replace('_', '-')}")
    for name in OBJECTS.keys() & given.keys():
        given[name] = from_json(given[name], name)
    return given


def several(text: str, what: str) -> list[str]:
    """Split values separated by commas; each may occur once."""
    values = [part.strip() for part in text.split(",")]
    if not all(values) or len(set(values)) < len(values):
        raise InvalidInput(f"{what} is {text!r:.100}: write different values, separated by commas")
    return values


def from_json(text: str, name: str) -> Any:
    """Parse names and values from the command line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{name} is {text!r:.100}: write JSON, e.g. '{OBJECTS[name]}'") from None


def _flag(name: str, several: bool = False) -> inspect.Parameter:
    setting, default = Config.schema()[name], Config.default(name)
    kind = bool if setting.kind == "switch" else str  # texts are parsed by the setting itself: 0.1 %, 16 kB
    suffix = "" if default is None or default == {} else f" (default: {default})"
    if any(name in spec.defaults for spec in POLICIES.values()):
        suffix = f" (default: {default}, or the method's own)" if suffix else " (some methods have their own)"
    words = setting.help + (f": {setting.example}" if setting.example else "")
    help_text = f"{words[0].upper()}{words[1:]}{suffix}."
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )
