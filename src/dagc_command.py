"""The `dagc` command before anything heavy is imported: its version, its help and its typos cost no second.

Ctrl-C ends it without a word, even while torch is loaded.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from textwrap import fill

__all__ = ["COMMANDS", "main", "quiet"]

ABOUT = "Train one model over many devices with slow, metered links, for a small fraction of the bytes."
COMMANDS = {
    "run": "Train one model over many clients, with one method.",
    "compare": "Compare methods on the same data, seeds and model; each gets the budget and the options that it takes.",
    "resume": "Continue a run from its last checkpoint. The result is the same, bit for bit.",
    "report": "Write one page about runs, and their numbers as JSON.",
    "plan": "Before training: bytes and time by method. Nothing is trained: random entries are sent.",
    "plugins": "List the packages that add parts to dagc; exit code 1 if something is wrong with one.",
}
"""Every command, and what it does."""
OPTIONS = {
    "--version": "Print the version and exit.",
    "--verbose, -v": "Show what the library logs.",
    "--help": "Show this message, or that of a command: dagc run --help.",
}

TASK = "the task names both: dagc run mlp@digits"
ELSEWHERE = {
    **dict.fromkeys(("--model", "--data", "--dataset"), TASK),
    **dict.fromkeys(("--workers", "--num-clients", "--n-clients", "--num-workers"), "write --clients"),
    **dict.fromkeys(("--num-rounds", "--n-rounds", "--num-server-rounds"), "write --rounds"),
    "--local-epochs": "write --epochs",
    "--algorithm": "write --method",
    "--strategy": "write --method",
}
"""What others call options."""
# fmt: off
FLAGS = (
    "--augment", "--batch-size", "--bytes", "--caps", "--check", "--checkpoint-every", "--client",
    "--client-momentum", "--client-optimizer", "--client-weight-decay", "--clients", "--clip", "--compute-seconds",
    "--config", "--data-dir", "--device", "--down", "--epochs", "--evaluate-every", "--exponent", "--failures",
    "--first-bits", "--first-model", "--frames", "--help", "--jobs", "--json", "--label", "--label-alpha", "--late",
    "--learning-rate", "--local-steps", "--lr", "--method", "--methods", "--momentum", "--most-examples", "--network",
    "--norm-bound", "--objective", "--optimizer", "--optimizer-options", "--options", "--output", "--overhead",
    "--parameters", "--participation", "--partition", "--per-tensor", "--rate", "--ratio", "--rounds", "--schedule",
    "--schedule-options", "--seed", "--seeds", "--server-rate", "--server-schedule", "--sizes", "--skew-ratio",
    "--step-ahead", "--target", "--targets", "--tensorboard", "--threads", "--threshold", "--threshold-units",
    "--title", "--values", "--verbose", "--version",
)
# fmt: on
"""The options of all commands; `make results` writes them again."""


@contextmanager
def quiet() -> Iterator[None]:
    """In this block, Ctrl-C ends the process at once, with the usual exit code."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set what signals do
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    """Run the command line, and load dagc only if it has work to do."""
    sys.argv[1:] = [_hyphens(word) for word in sys.argv[1:]]
    with quiet():
        done = answered(sys.argv[1:])
        if done is None:
            from dagc.__main__ import main as run
    sys.exit(done) if done is not None else run()


def answered(words: Sequence[str]) -> int | None:
    """The exit code of a command line that needs no more than its words; None if dagc must be loaded."""
    command = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    options = set(words[:command])
    if "--version" in options:
        from importlib.metadata import version

        print(f"dagc {version('dagc-fl')}")
        return 0
    if command == len(words) and not options - {"--help", "-v", "--verbose"}:
        print(_help())
        return 0
    if command < len(words) and words[command] not in COMMANDS:
        near = ["run"] if words[command] == "train" else get_close_matches(words[command], COMMANDS, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else f" Choose one of {', '.join(COMMANDS)}."
        print(f"error: No such command {words[command]!r}.{guess}", file=sys.stderr)
        return 2
    for word in words[command + 1 :]:
        if (name := word.partition("=")[0]) in ELSEWHERE:
            print(f"error: No such option {name!r}: {ELSEWHERE[name]}.", file=sys.stderr)
            return 2
        if name.startswith("--") and name != "--" and name not in FLAGS:
            near = get_close_matches(name, FLAGS, n=1)
            guess = f" Did you mean {near[0]!r}?" if near else " Its command lists all with --help."
            print(f"error: No such option {name!r}.{guess}", file=sys.stderr)
            return 2
    if words[command : command + 1] in (["run"], ["compare"]) and len(words) > command + 2:
        model, data = words[command + 1 : command + 3]
        if "@" not in model and not model.startswith("-") and not data.startswith("-"):
            print(f"error: The task is one word: write {model}@{data}.", file=sys.stderr)
            return 2
    if words[command : command + 1] == ["plan"] and any("@" in word for word in words[command + 1 : command + 2]):
        print("error: plan takes no task, only the model's size, e.g. --parameters 1.5M.", file=sys.stderr)
        return 2
    return None


def _hyphens(word: str) -> str:
    """An option with hyphens where it has underscores: `--local_steps` is `--local-steps`."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def _help() -> str:
    """The help of the command itself."""
    sections = [f"Usage: dagc [OPTIONS] COMMAND [ARGS]...\n\n{fill(ABOUT, 78)}"]
    for title, lines in (("Commands", COMMANDS), ("Options", OPTIONS)):
        width = max(map(len, lines)) + 4
        entries = [
            fill(f"  {name:{width - 2}}{text}", 78, subsequent_indent=" " * width) for name, text in lines.items()
        ]
        sections.append("\n".join([f"{title}:", *entries]))
    return "\n\n".join(sections)
