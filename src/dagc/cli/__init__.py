"""The `dagc` command. One file per group of commands; all of them only call the library."""

import os
import re
import sys
from typing import Annotated, Any

import typer

import dagc
from dagc.cli.compare import compare, report
from dagc.cli.plan import plan
from dagc.cli.plugins import plugins
from dagc.cli.run import resume, run
from dagc.cli.terminal import say, show_log, show_warnings
from dagc.errors import DagcError
from dagc.files import failure
from dagc.plugins import load_plugins

__all__ = ["app", "main"]

TRACEBACK = "DAGC_TRACEBACK"  # the environment variable that shows the traceback of an unexpected error
USAGE: Any = typer.BadParameter.__bases__[0]  # click's `UsageError`, wherever typer has it from

app = typer.Typer(
    name="dagc",
    help="Train one model over many devices with slow, metered links, for a small fraction of the bytes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (run, compare, resume, report, plan, plugins):
    app.command()(command)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what the library logs.")] = False,
) -> None:
    """Options of the command itself."""
    show_log(verbose)
    if show:
        print(f"dagc {dagc.__version__}")
        raise typer.Exit


def main(commands: typer.Typer = app) -> None:
    """Run the command line. An error is one line on stderr and exit code 2; a traceback only for a bug, on request."""
    show_warnings()
    for plugin in load_plugins():
        if plugin.problem:
            say(f"warning: the plugin {plugin.name} ({plugin.where}) cannot be loaded: {plugin.problem}", "yellow")
    try:
        sys.exit(commands(standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # e.g. `dagc run --help | head`: the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard what Python still buffers
        sys.exit(141)
    except USAGE as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # then the help has been printed
            say(f"error: {_once(error.format_message())}", "red")
    except DagcError as error:
        say(f"error: {error}", "red")
    except OSError as error:
        say(f"error: {failure(error)}", "red")
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        words = str(error).partition("\n")[0]
        say(f"error: {type(error).__name__}: {words}; this is a bug in dagc: {TRACEBACK}=1 shows where", "red")
    sys.exit(2)


def _once(message: str) -> str:
    """A message as one line with one suggestion: click and typer may both make one."""
    said, *suggestions = re.split(r" \(?(?=Did you mean)", " ".join(message.split()))
    return " ".join([said, *(each.rstrip(")") for each in suggestions[:1])])
