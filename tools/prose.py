"""The style check of `make lint`: short sentences, short pages, and no word that has a plainer one.

It reads the documents beside this folder and in docs/, and every docstring in src/. Code, tables and what is generated
are not prose.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_SENTENCE = 25
"""Words, in documents; measurements (docs/studies) and docstrings may have longer ones."""
LONGEST_PAGE = 1500
"""Words, code and tables included; of measurements any number."""
INSTEAD = {
    r"anew": "again",
    r"in vain": "without effect",
    r"is told|are told|was told": "what it is: is reported, is sent, knows",
    r"passed over": "ignored",
    r"gone on with": "resumed, continued",
    r"with words": "with a message",
    r"mended": "fixed",
    r"whilst|amongst|thereof|therein|hitherto": "while, among, of it, in it, so far",
    r"utili[sz]e": "use",
    r"in order to": "to",
}
"""What not to write, as a regular expression, and what to write in its place."""


def documents() -> list[Path]:
    """Return every document, without those that are generated."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def prose(text: str) -> str:
    """Return a document without code, tables, comments and what is generated; line breaks stay where they were."""
    blank = r"<!-- begin: .*?<!-- end: [^>]*-->", r"^```.*?^```$", r"<!--.*?-->", r"^(?:\||    ).*?$"
    for pattern in blank:
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`", "code", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield every sentence and the line that it begins in. A paragraph, a heading and an item end one."""
    for part in re.finditer(r"(?:^(?!\s*$|#).+\n?)+", text, re.M):
        for item in re.finditer(r".+?(?:(?=^\s*(?:[-*>] |\d+\. ))|\Z)", part[0], re.M | re.S):
            for found in re.finditer(r"\S.*?(?:[.!?](?=[\s*)\"]|$)|\Z)", item[0], re.S):
                start = part.start() + item.start() + found.start()
                yield text.count("\n", 0, start) + 1, found[0]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every docstring of a module and the line that it begins in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def problems() -> Iterator[str]:
    """Yield everything that is wrong, with its place."""
    for path in documents():
        text = path.read_text()
        name = path.relative_to(ROOT).as_posix()
        study = name.startswith(("docs/studies/", "CHANGELOG"))
        words = len(text.split())
        if words > LONGEST_PAGE and not study:
            yield f"{name}: {words:,} words are more than {LONGEST_PAGE:,}: split the page"
        for line, sentence in sentences(prose(text)):
            length = len(re.findall(r"[^\W\d_]{2,}", sentence))  # without signs and single letters of formulas
            if not study and length > LONGEST_SENTENCE:
                yield f"{name}:{line}: a sentence of {length} words: {sentence[:60]!r}…"
        yield from unwanted(name, 1, prose(text))
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line, text in docstrings(path):
            yield from unwanted(path.relative_to(ROOT).as_posix(), line, prose(text))


def unwanted(name: str, line: int, text: str) -> Iterator[str]:
    """Yield the words that have a plainer one."""
    for pattern, better in INSTEAD.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", text, re.I):
            yield f"{name}:{line + text.count(chr(10), 0, found.start())}: not {found[0]!r}, but {better}"


if __name__ == "__main__":
    every = list(problems())
    print(*every, sep="\n")
    sys.exit(bool(every))
