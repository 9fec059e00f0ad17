"""The flags that several commands share, one for every setting with its description as help, and how texts are read."""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

import typer

import dagc
from dagc.comparison import from_json
from dagc.errors import InvalidInput
from dagc.folder import read_settings
from dagc.policies import BUDGETS, METHODS
from dagc.training import Config


def _score(target: float | None) -> float | None:
    if target is not None and not target <= 1:
        raise InvalidInput(f"target is {target}: give a score of at most 1, e.g. 0.8 for 80 %")
    return target


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file with settings; flags override it.")]
Target = Annotated[
    float | None, typer.Option(callback=_score, help="A score, e.g. 0.75: report what it took to reach it.")
]
GROUPS = ("Budget", "Method", "Data", "Training", "Network", "Bounds", "Run")
"""The order in which `--help` shows the groups of settings."""
PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}


def with_flags(*left_out: str, lists: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes `**flags` a flag for every setting, except those left out, in groups.

    Settings in `lists` accept several values, separated by commas.
    """
    schema = Config.schema()
    names = [name for name in schema if name not in ("task", *left_out)]

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        parameters = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters += [_flag(name) for name in sorted(names, key=lambda name: GROUPS.index(schema[name].group))]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        lines = [fill(f"  {name:15} {spec.about}", 78, subsequent_indent=" " * 18) for name, spec in METHODS.items()]
        methods = "\n".join(["\b", "Methods (--method):", *lines])  # the backspace keeps Typer from joining them
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{methods}"
        return command

    return extend


def _flag(name: str) -> inspect.Parameter:
    setting, default = Config.schema()[name], Config.default(name)
    kind = bool if setting.kind == "switch" else str  # the setting parses its own text: 0.1 %, 16 kB
    suffix = "" if default in (None, {}) else f" (default: {default})"
    if any(name in spec.defaults for spec in METHODS.values()):
        suffix = f" (default: {default}, or the method's own)" if suffix else " (some methods have their own)"
    words = setting.help + (f": {setting.example}" if setting.example else "")
    spelled = [f"--{each}".replace("_", "-") for each in (name, setting.alias) if each]
    help_text = f"{words[0].upper()}{words[1:]}{suffix}."
    option = typer.Option(*spelled, help=help_text, show_default=False, rich_help_panel=setting.group)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def passed(flags: Mapping[str, Any], lists: Collection[str] = ()) -> dict[str, Any]:
    """The flags that were passed, as `Config` takes them; several values of a setting in `lists` as a list."""
    values = {name: from_json(name, value) for name, value in flags.items() if value is not None}
    for name in values.keys() & set(lists):
        if "," in values[name]:
            parts = [part.strip() for part in values[name].split(",")]
            if not all(parts) or len(set(parts)) < len(parts):
                flag = f"--{name.replace('_', '-')} is {values[name]!r:.100}"
                raise InvalidInput(f"{flag}: write different values, separated by commas")
            values[name] = parts
    return values


def settings_of(values: Mapping[str, Any], config: Path | None) -> dict[str, Any]:
    """The settings of a file, overridden by the command line. A budget there replaces any in the file."""
    settings = {} if config is None else read_settings(config)
    if values.keys() & set(BUDGETS):
        settings = {name: value for name, value in settings.items() if name not in BUDGETS}
    return {**settings, **values}


def client_sizes(text: str) -> list[float]:
    """Examples per client, from numbers separated by commas."""
    sizes = [_number(part) for part in text.split(",")]
    for client, (part, size) in enumerate(zip(text.split(","), sizes, strict=True)):
        if math.isnan(size):
            raise InvalidInput(f"--sizes: client {client} has size {part!r:.100}, which is not a number")
    dagc.allocate(sizes, ratio=0.5, method="uniform")  # refuses negative and empty ones with the reason
    return sizes


def targets(text: str | None) -> tuple[float, ...]:
    """Accuracies, from numbers separated by commas."""
    parts = text.split(",") if text else []
    for part in parts:
        if not 0 < _number(part) <= 1:
            raise InvalidInput(f"--targets holds {part.strip()!r}: write accuracies from 0 to 1, e.g. 0.75,0.8")
    return tuple(map(_number, parts))


def amount(text: str) -> float:
    """A number, with or without k, M or G, such as 11.2M."""
    digits = text.strip()
    prefix = digits[-1:] if digits[-1:] in PREFIXES else ""
    number = _number(digits.removesuffix(prefix)) * PREFIXES.get(prefix, 1.0)
    if not math.isfinite(number):
        raise InvalidInput(f"--parameters is {text!r:.100}: write a number with k, M or G, e.g. 11.2M")
    return number


def _number(text: str) -> float:
    """The number that a text is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
