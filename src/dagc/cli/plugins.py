"""`dagc plugins`: which packages add parts to dagc, and whether these fulfil the contracts."""

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dagc import testing
from dagc.cli.options import AsJson
from dagc.plugins import GROUP, REGISTRIES, load_plugins

CHECKS: dict[str, Callable[[Any, str], None]] = {
    "method": testing.check_policy,
    "allocator": testing.check_allocator,
    "compressor": lambda part, name: testing.check_compressor(part, name=name),
    "value codec": testing.check_value_codec,
}
"""The contracts; other parts have none."""


def plugins(
    check: Annotated[bool, typer.Option("--check", help="Run the contracts of dagc.testing on what they add.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the packages that add parts to dagc; exit code 1 if something is wrong with one."""
    listed = []
    for plugin in load_plugins():
        wrong = {f"{kind} {name}": _problem(kind, name) for kind, name in plugin.added} if check else {}
        listed.append({**plugin._asdict(), "wrong": {part: why for part, why in wrong.items() if why}})
    if as_json:
        print(json.dumps(listed))
    elif listed:
        _print(listed, "right" if check else "adds ")
    else:
        print(f"no installed package has an entry point in the group {GROUP}")
    if any(plugin["problem"] or plugin["wrong"] for plugin in listed):
        raise typer.Exit(1)


def _print(listed: list[dict[str, Any]], good: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for plugin in listed:
        console.print(Text(f"{plugin['name']} ({plugin['where']})"))
        parts = {f"{kind} {name}": "" for kind, name in plugin["added"]} | plugin["wrong"]
        for part, why in ({"cannot be loaded": plugin["problem"]} if plugin["problem"] else parts).items():
            verdict = Text("  wrong  ", "red") if why else Text(f"  {good}  ", "green")
            console.print(verdict, Text(f"{part}: {why}" if why else part), sep="")


def _problem(kind: str, name: str) -> str:
    """Which contract a part breaks; empty if it fulfils them all."""
    try:
        if kind in CHECKS:
            CHECKS[kind](REGISTRIES[kind][name], name)
    except Exception as error:  # whatever somebody else's part may raise
        return str(error) or type(error).__name__
    return ""
