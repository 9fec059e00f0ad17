"""The flags that several commands share: one for every setting, with its description as help."""

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

from dagc.errors import InvalidInput
from dagc.folder import read_settings
from dagc.policies import BUDGETS, POLICIES
from dagc.training import Config

__all__ = ["AsJson", "ConfigFile", "Jobs", "passed", "settings_of", "with_flags"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings; flags override it.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: the number of cores).")]
GROUPS = ("Budget", "Method", "Data", "Training", "Network", "Bounds", "Run")
"""The order in which `--help` shows the groups of settings."""
OBJECTS = {name: each.example for name, each in Config.schema().items() if each.kind in ("numbers", "options")}
"""Settings that hold names and values are JSON on the command line; an example of each."""


def with_flags(*left_out: str, lists: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes `**flags` a flag for every setting, except those left out, in groups.

    Settings in `lists` accept several values, separated by commas.
    """
    schema = Config.schema()
    groups = [*GROUPS, *{each.group for each in schema.values()} - {*GROUPS}]
    names = [name for name in schema if name not in ("task", *left_out)]

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        parameters = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters += [_flag(name) for name in sorted(names, key=lambda name: groups.index(schema[name].group))]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        lines = [fill(f"  {name:15} {spec.about}", 78, subsequent_indent=" " * 18) for name, spec in POLICIES.items()]
        methods = "\n".join(["\b", "Methods (--method):", *lines])  # the backspace keeps Typer from joining them
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{methods}"
        return command

    return extend


def _flag(name: str) -> inspect.Parameter:
    setting, default = Config.schema()[name], Config.default(name)
    kind = bool if setting.kind == "switch" else str  # the setting parses its own text: 0.1 %, 16 kB
    suffix = "" if default is None or default == {} else f" (default: {default})"
    if any(name in spec.defaults for spec in POLICIES.values()):
        suffix = f" (default: {default}, or the method's own)" if suffix else " (some methods have their own)"
    words = setting.help + (f": {setting.example}" if setting.example else "")
    help_text = f"{words[0].upper()}{words[1:]}{suffix}."
    spelled = [f"--{each}".replace("_", "-") for each in (name, setting.alias) if each]
    option = typer.Option(*spelled, help=help_text, show_default=False, rich_help_panel=setting.group)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def passed(flags: Mapping[str, Any], lists: Collection[str] = ()) -> dict[str, Any]:
    """The flags that were passed, as `Config` takes them; several values of a setting in `lists` as a list."""
    values = {name: value for name, value in flags.items() if value is not None}
    for name in values.keys() & set(lists):
        if "," in values[name]:
            values[name] = _several(values[name], f"--{name.replace('_', '-')}")
    return {name: _from_json(value, name) if name in OBJECTS else value for name, value in values.items()}


def settings_of(values: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """The settings of a file, overridden by the command line. A budget there replaces any in the file."""
    settings = {} if config is None else read_settings(config)
    if values.keys() & set(BUDGETS):
        settings = {name: value for name, value in settings.items() if name not in BUDGETS}
    return {**settings, **values}


def _several(text: str, what: str) -> list[str]:
    """Split values separated by commas; each may occur once."""
    values = [part.strip() for part in text.split(",")]
    if not all(values) or len(set(values)) < len(values):
        raise InvalidInput(f"{what} is {text!r:.100}: write different values, separated by commas")
    return values


def _from_json(text: str, name: str) -> Any:
    """Parse names and values from the command line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{name} is {text!r:.100}: write JSON, e.g. '{OBJECTS[name]}'") from None
