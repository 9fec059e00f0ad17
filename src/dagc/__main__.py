"""`python -m dagc` is the `dagc` command."""

import sys

from dagc.errors import MissingExtra, needs_extra
from dagc_command import quiet


def main() -> None:
    """Run the `dagc` command. Without the extra `lab`, print that it is needed."""
    try:
        with quiet(), needs_extra("the dagc command", "lab"):
            from dagc.plugins import load_plugins

            load_plugins()  # first: the commands' help lists every method
            from dagc.cli import main as run
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
