"""`dagc plugins`: which packages add parts to dagc."""

import json

import typer
from rich.console import Console
from rich.text import Text

from dagc.cli.options import AsJson
from dagc.plugins import GROUP, Plugin, load_plugins

__all__ = ["plugins"]


def plugins(as_json: AsJson = False) -> None:
    """List the packages that add parts to dagc; exit code 1 if something is wrong with one."""
    loaded = load_plugins()
    if as_json:
        print(json.dumps([plugin._asdict() for plugin in loaded]))
    else:
        _print(loaded)
    if any(plugin.problem for plugin in loaded):
        raise typer.Exit(1)


def _print(loaded: list[Plugin]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not loaded:
        console.print(f"no installed package has an entry point in the group {GROUP}", markup=False)
    for plugin in loaded:
        console.print(Text(f"{plugin.name} ({plugin.where})"))
        if plugin.problem:
            console.print(Text("  wrong  ", "red") + Text(f"cannot be loaded: {plugin.problem}", "default"))
        for kind, name in plugin.added:
            console.print(Text("  adds   ", "green") + Text(f"{kind} {name}", "default"))
