"""The table of every flag in `docs/reference/flags.md`: `python -m tools.settings` makes it of the schema."""

import re
from pathlib import Path

from dagc.cli.options import GROUPS
from dagc.comparison import OBJECTS
from dagc.policies import POLICIES
from dagc.training import Config

__all__ = ["PAGE", "rewritten"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "flags.md"
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
    own = " *" if any(name in spec.defaults for spec in POLICIES.values()) else ""
    return ("–" if value in (None, {}) else "off" if value is False else f"`{value}`") + own


def rewritten(text: str) -> str:
    """The page with the table as the schema has it."""
    return MARKED.sub(lambda marked: marked[1] + table() + marked[2], text)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
