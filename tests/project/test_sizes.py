"""No file and no function is longer than a reader can hold in mind."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_IN_A_FUNCTION = 400, 60


def test_files_and_functions_are_short():
    long = []
    for path in (path for tree in ("src", "research", "tools") for path in (ROOT / tree).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MOST_LINES:
            long.append(str(path.relative_to(ROOT)))
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        lengths = {each.name: (each.end_lineno or each.lineno) - each.lineno + 1 for each in functions}
        long += [f"{path.relative_to(ROOT)}: {name}" for name, lines in lengths.items() if lines > MOST_IN_A_FUNCTION]
    assert not long
