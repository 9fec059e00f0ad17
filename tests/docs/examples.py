"""The fenced blocks of README and docs, and whether they run. `python -m tests.docs.examples` lists those that do not.

A block of Python or shell commands runs, unless a comment before it says why it does not:

    <!-- not run: needs Fashion-MNIST -->

The commands of studies take hours and are not run. Those of `dagc` are always parsed.

Commands that would take long run with fewer rounds if the comment says so; the flags are added at the end:

    <!-- run with: --rounds 4 --seeds 1 -->
"""

import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
CODE = ("python", "sh", "console")
DATA = ("text", "diff", "toml", "csv", "json", "coded", "coded-refused")
COMMENT = r"(?:^<!-- (?P<word>not run|run with): (?P<why>[^>]*?) -->\n+)?"
FENCE = re.compile(COMMENT + r"^```(?P<kind>.*)\n(?P<text>(?:.*\n)*?)```$", re.M)


class Block(NamedTuple):
    """A fenced block, where it is, and what the comment before it says."""

    page: str
    line: int
    kind: str
    text: str
    not_run: str | None
    flags: tuple[str, ...]

    @property
    def code(self) -> bool:
        """Whether it is for us to run: doctest has those with prompts."""
        return self.kind in CODE and not self.text.lstrip().startswith(">>>")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return every fenced block of a page, in order."""
    found = []
    text = page.read_text()
    for fence in FENCE.finditer(text):
        comment = {"not run": "a study: takes minutes to hours"} if page.parent.name == "studies" else {}
        comment |= {fence["word"]: fence["why"]} if fence["word"] else {}
        flags = tuple(shlex.split(comment.get("run with", "")))
        line = text.count("\n", 0, fence.start("kind")) + 1
        name = page.relative_to(PROJECT).as_posix()
        kind = fence["kind"].strip().partition(" ")[0]
        found.append(Block(name, line, kind, fence["text"], comment.get("not run"), flags))
    return found


def commands(block: Block) -> list[list[str]]:
    """Return the commands of a block of shell, as lists of words; of a console, those after a prompt."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.kind == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


if __name__ == "__main__":
    every = [block for page in PAGES for block in blocks(page) if block.code]
    left = [block for block in every if block.not_run]
    for block in left:
        print(f"{block}: {block.not_run}")
    print(f"{len(every) - len(left)} of {len(every)} blocks run, beside those that doctest runs", file=sys.stderr)
