"""The `dagc` command. One file per group of commands; all of them only call the library."""

import sys
from typing import Annotated

import typer

import dagc
from dagc.cli.allocate import allocate
from dagc.cli.data import app as data_app
from dagc.cli.plan import plan
from dagc.cli.plugins import plugins
from dagc.cli.report import report
from dagc.cli.reproduce import reproduce
from dagc.cli.terminal import say, show_warnings
from dagc.cli.train import compare, resume, run
from dagc.errors import DagcError
from dagc.plugins import load_plugins

__all__ = ["app", "main"]

app = typer.Typer(
    name="dagc",
    help="Train one model over many devices with slow, metered uplinks: the same accuracy, far fewer bytes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (run, compare, resume, report, reproduce, plan, allocate, plugins):
    app.command()(command)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Options of the command itself."""
    if show:
        print(f"dagc {dagc.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and exit code 2, never a traceback."""
    show_warnings()
    for plugin in load_plugins():
        if plugin.problem:
            say(f"warning: the plugin {plugin.name} ({plugin.where}) cannot be loaded: {plugin.problem}", "yellow")
    try:
        app()
    except DagcError as error:
        say(f"error: {error}", "red")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
