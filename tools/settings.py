"""Every flag in `docs/reference/flags.md`, and what the command knows before torch: `python -m tools.settings`.

It writes both. The latter is the help of every command, in `dagc/cli/help`, and the names that a task may have, in
`dagc_command`.
"""

import json
import re
from pathlib import Path
from textwrap import fill
from typing import Any

from typer.main import get_command

from dagc.cli import app
from dagc.cli.options import GROUPS
from dagc.comparison import OBJECTS
from dagc.data import CATALOGUE
from dagc.models import MODELS
from dagc.policies import METHODS
from dagc.training import Config
from dagc_command import HELP

__all__ = ["COMMAND", "PAGE", "named", "rewritten", "stale"]

ROOT = Path(__file__).parents[1]
PAGE, COMMAND = ROOT / "docs" / "reference" / "flags.md", ROOT / "src" / "dagc_command.py"
NAMES = re.compile(r"^(MODELS|DATA) = .*$", re.MULTILINE)
MARKED = re.compile(r"(<!-- begin: settings -->\n).*?(<!-- end: settings -->)", re.DOTALL)


def table() -> str:
    """Every setting with its flag, what it accepts, its default and its meaning, by group."""
    lines = ["| flag | accepts | default | meaning |", "| --- | --- | --- | --- |"]
    for group in GROUPS:
        lines.append(f"| **{group}** | | | |")
        for name, each in Config.schema().items():
            if each.group == group:
                spelled = [f"`--{flag}`".replace("_", "-") for flag in (name, each.alias) if flag]
                flags = "`TASK`" if name == "task" else ", ".join(spelled)
                lines.append(f"| {flags} | {_accepted(name)} | {_default(name)} | {each.help} |")
    return "\n".join(lines) + "\n"


def _accepted(name: str) -> str:
    setting = Config.schema()[name]
    if setting.registry is not None:
        return "a name"
    if name in OBJECTS:
        return f"`{setting.example}`"
    kinds = {"number": "a number", "integer": "an integer", "text": "text", "switch": ""}
    words = [f"`{word}`" for word in setting.words]
    limits = setting.limits if setting.kind in ("number", "integer") else kinds[setting.kind]
    return ", ".join([*words, *([limits] if limits and not (words and setting.kind == "text") else [])])


def _default(name: str) -> str:
    value = Config.default(name)
    own = " *" if any(name in spec.defaults for spec in METHODS.values()) else ""
    return ("–" if value in (None, {}) else "off" if value is False else f"`{value}`") + own


def rewritten(text: str) -> str:
    """The page with the table as the schema has it."""
    return MARKED.sub(lambda marked: marked[1] + table() + marked[2], text)


def named(text: str) -> str:
    """The module with the names of models and data sets, which it must know before it imports any."""
    known = {"MODELS": MODELS, "DATA": CATALOGUE}
    return NAMES.sub(lambda found: f"{found[1]} = {json.dumps(list(known[found[1]]))}", text)


def helped(name: str, command: Any) -> str:
    """The help of a command as plain text: its usage, what it does, and its options by group."""
    words: list[str] = []
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for each in command.params:
        if each.param_type_name == "argument":
            term = each.name.upper() + "..." * (each.nargs < 0)
            words.append(term if each.required else f"[{term}]")
            sections["Arguments"].append((term, each.help))
        else:
            shown = each.show_default and each.default not in (None, False)
            text = f"{each.help.rstrip('.')} (default: {each.default})." if shown else each.help
            sections.setdefault(each.rich_help_panel or "Options", []).append((", ".join(each.opts), text))
    sections["Options"].append(("--help", "Show this message."))
    parts = [" ".join([f"Usage: dagc {name} [OPTIONS]", *words])]
    parts += [part[2:] if part.startswith("\b\n") else fill(part, 78) for part in command.help.split("\n\n")]
    for title, lines in sections.items():
        width = max((len(term) for term, _ in lines), default=0) + 4
        rows = [fill(f"  {term:{width - 2}}{text}", 78, subsequent_indent=" " * width) for term, text in lines]
        parts += ["\n".join([f"{title}:", *rows])] if rows else []
    return "\n\n".join(parts) + "\n"


def files() -> dict[Path, str]:
    """Every file that follows from the schema, the commands and the registries, and what it should hold."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    texts = {HELP / f"{name}.txt": helped(name, command) for name, command in commands.items()}
    for path, change in ((PAGE, rewritten), (COMMAND, named)):
        texts[path] = change(path.read_text(encoding="utf-8"))
    return texts


def stale() -> list[str]:
    """The files that do not hold what they should."""
    return [path.name for path, text in files().items() if not path.exists() or path.read_text("utf-8") != text]


if __name__ == "__main__":
    HELP.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
