"""The style check of `make lint`: short pages, and none of the phrases that make a text read as translated or hedged.

It reads the documents in the project's folder and in docs/, and every docstring in src/. Code, tables and what is
generated are not prose.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_PAGE = 1500
"""Words, code and tables included; measurements and specifications may have any number."""
INSTEAD = {
    r"anew": "again",
    r"in vain": "without effect",
    r"(?:is|are|was) (?:told|said)": "who says it, or what it is: reports, is sent, knows",
    r"passed over": "ignored",
    r"gone on with": "resumed, continued",
    r"with words": "with a message",
    r"mended": "fixed",
    r"whilst|amongst|thereof|therein|hitherto": "while, among, of it, in it, so far",
    r"utili[sz]e": "use",
    r"in order to": "to",
}
"""What to write nowhere, as a regular expression, and what to write in its place."""
TICS = {
    r"(?:is|are) refused": "who refuses it, or what happens: raises an error, counts as lost",
    r"beside": "compared with, next to",
    r"nothing is lost": "what is kept, and what is not",
    r"no clear difference": "level; verdicts belong into tables",
    r"perhaps": "may; verdicts belong into tables",
    r"somebody else's": "unrelated",
    r"git show": "a record, or nothing",
    r"two thirds|two fifths|three quarters|nine tenths of (?:the|all) bytes": "a figure",
    r"optimis\w+|normalis\w+|recognis\w+|minimis\w+|behaviour|neighbour\w*|licence|learnt": "the American spelling",
}
"""What to write in no document; docstrings are held to `INSTEAD` alone."""
SHAPES = {
    r"(?:^|(?<=[.:!?] ))So (?!that\b|far\b|many\b|much\b)": "join it to the sentence before, or begin with the subject",
    r", too(?=[.;:)])": "also, as well, or nothing",
}
"""Ways of beginning and ending a sentence."""


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
        specification = name.startswith("docs/reference/wire-")
        study = name.startswith(("docs/studies/", "CHANGELOG"))
        words = len(text.split())
        if words > LONGEST_PAGE and not study and not specification:
            yield f"{name}: {words:,} words are more than {LONGEST_PAGE:,}: split the page"
        if specification:  # it repeats its few terms on purpose
            yield from unwanted(name, 1, prose(text), INSTEAD)
        else:
            yield from unwanted(name, 1, prose(text), INSTEAD | TICS, SHAPES)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line, text in docstrings(path):
            yield from unwanted(path.relative_to(ROOT).as_posix(), line, prose(text), INSTEAD)


def unwanted(
    name: str, line: int, text: str, words: Mapping[str, str], shapes: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the phrases that have a better one."""
    patterns = {rf"\b(?:{pattern})\b": better for pattern, better in words.items()} | dict(shapes or {})
    for pattern, better in patterns.items():
        for found in re.finditer(pattern, text, re.M if pattern in (shapes or {}) else re.M | re.I):
            yield f"{name}:{line + text.count(chr(10), 0, found.start())}: not {found[0]!r}, but {better}"


if __name__ == "__main__":
    every = list(problems())
    print(*every, sep="\n")
    sys.exit(bool(every))
