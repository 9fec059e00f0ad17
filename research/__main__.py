"""`python -m research`: the `dagc` command with the parts of the experiments, and `reproduce`."""

import typer

from dagc import cli
from research.command import reproduce
from research.data.command import app as data
from research.parts import load

app = typer.Typer(
    name="python -m research",
    help="The dagc command with the models and data sets of the experiments, and the experiments themselves.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.registered_commands += cli.app.registered_commands
app.callback(invoke_without_command=True)(cli.version)
app.command()(reproduce)
app.add_typer(data, name="data")

if __name__ == "__main__":
    load()
    cli.main(app)
