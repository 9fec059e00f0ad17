"""`python -m dagc` is the `dagc` command."""

from dagc.cli import main

if __name__ == "__main__":
    main()
