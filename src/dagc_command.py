"""The `dagc` command before anything heavy is imported: its version, its help and its typos cost no second.

Ctrl-C ends it without a word, even while torch is loaded.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
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
MODELS = ["logistic", "mlp", "cnn", "token-lstm"]
DATA = ["digits"]
"""The names in a task. `make results` writes them again, and the help of every command."""
HELP = Path(__file__).parent / "dagc" / "cli" / "help"
FLAG = re.compile(r"^  (--[^\s,]+)(?:, (--[^\s,]+))?", re.MULTILINE)  # where a help describes it


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
        try:
            done = answered(sys.argv[1:])
        except BrokenPipeError:  # e.g. `dagc run --help | head`: the reader is gone
            os._exit(141)
        if done is None:
            from dagc.__main__ import main as run
    sys.exit(done) if done is not None else run()


def answered(words: Sequence[str]) -> int | None:
    """The exit code of a command line that needs no more than its words; None if dagc must be loaded."""
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    options, command, rest = set(words[:place]), "".join(words[place : place + 1]), words[place + 1 :]
    said = None
    if "--version" in options:
        from importlib.metadata import version

        said = f"dagc {version('dagc-fl')}"
    elif not command and not options - {"--help", "-v", "--verbose"}:
        said = _help()
    elif command in COMMANDS and "--help" in rest and not _plugins():  # whose methods are in the help, too
        said = (HELP / f"{command}.txt").read_text(encoding="utf-8").rstrip("\n")
    if said is not None:
        print(said, flush=True)
        return 0
    wrong = _mistake(command, rest) if command else None
    if wrong is None:
        return None
    print(f"error: {wrong}", file=sys.stderr)
    return 2


def flags(command: str) -> list[str]:
    """The options that the help of a command describes."""
    return [
        name for names in FLAG.findall((HELP / f"{command}.txt").read_text(encoding="utf-8")) for name in names if name
    ]


def _mistake(command: str, words: Sequence[str]) -> str | None:
    """What is wrong with a command line, as far as its words alone show it."""
    if command not in COMMANDS:
        near = ["run"] if command == "train" else get_close_matches(command, COMMANDS, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else f" Choose one of {', '.join(COMMANDS)}."
        return f"No such command {command!r}.{guess}"
    known = [*flags(command), "--verbose", "--version"]
    for name in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--"):
        if name in known:
            continue
        if command == "resume" and name in flags("run"):
            return f"No such option {name!r}: the settings of a run cannot change. Start a new one with dagc run."
        if name in ELSEWHERE:
            return f"No such option {name!r}: {ELSEWHERE[name]}."
        near = get_close_matches(name, known, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else " Its command lists all with --help."
        return f"No such option {name!r}.{guess}"
    if command in ("run", "compare") and words and not words[0].startswith("-"):
        if "@" in words[0]:
            return _wrong_task(words[0])
        if len(words) > 1 and not words[1].startswith("-"):
            return f"The task is one word: write {words[0]}@{words[1]}."
    if command == "plan" and any("@" in word for word in words[:1]):
        return "plan takes no task, only the model's size, e.g. --parameters 1.5M."
    return None


def _wrong_task(task: str) -> str | None:
    """What `Config` would say of a task whose model or data do not exist; None where only it can know."""
    model, _, data = task.partition("@")
    if len(task) > 100 or _plugins():  # plugins add models and data
        return None
    if model not in MODELS and not model.startswith("own"):
        return f"task is {task!r}: {_unknown('model', model, MODELS)}"
    if data in DATA or data.startswith("own") or os.path.exists(data):
        return None
    if os.path.splitext(data)[1] or os.sep in data:
        return f"task: there is no file or folder {data!r}: give the path of your data"
    return f"task is {task!r}: {_unknown('data set or path', data, DATA)}"


def _unknown(kind: str, name: str, names: Sequence[str]) -> str:
    """As `dagc.errors.unknown` says it."""
    near = get_close_matches(name, names, n=1)
    guess = f"did you mean {near[0]!r}? Choose" if near else "choose"
    return f"there is no {kind} {name!r}: {guess} one of {', '.join(names)}"


def _plugins() -> bool:
    """Whether other packages add parts to dagc."""
    from importlib.metadata import entry_points

    return bool(entry_points(group="dagc.plugins"))


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
