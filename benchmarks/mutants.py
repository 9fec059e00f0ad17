"""Mutation testing: small changes of the code, one at a time, each of which some test should notice.

    python -m benchmarks.mutants                                  # 60 mutants of protocol and updates
    python -m benchmarks.mutants --mutants 200 --seed 1 --files src/dagc/feedback.py
    python -m benchmarks.mutants --record                         # keeps the table

A comparison becomes its neighbor, a number one larger, `+` becomes `-`, `and` becomes `or`, a condition its opposite.
Each mutant is a copy of the package in a folder of its own; the tests of that part run until the first one fails.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.tables import arguments, kept

ROOT = Path(__file__).parents[1]
FILES = ("protocol/*.py", "updates/frame.py", "updates/dense.py", "updates/update.py", "feedback.py")
TESTS = {
    "protocol": ["tests/protocol", "tests/engines/test_both_ways.py", "tests/engines/test_long_absences.py"],
    "updates": ["tests/updates", "tests/protocol/test_update_attack.py"],
    "feedback.py": ["tests/compressors/test_feedback.py", "tests/protocol/test_settling.py"],
}
"""By the first part of a file's path, the tests that must notice."""
SECONDS = 400
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
}  # fmt: skip


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that can be changed; not those in annotations, asserts, or what is raised."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        if isinstance(node, ast.Raise | ast.Assert):
            hidden = [node]
        elif isinstance(node, ast.FunctionDef):
            hidden = [node.returns, *(each.annotation for each in node.args.args + node.args.kwonlyargs)]
        elif isinstance(node, ast.AnnAssign):
            hidden = [node.annotation]
        skipped |= {id(below) for each in hidden if each is not None for below in ast.walk(each)}
    for node in ast.walk(tree):
        if id(node) not in skipped and mutated(node) is not None:
            yield node


def mutated(node: ast.AST) -> ast.AST | None:
    """The changed node; None if there is nothing to change."""
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in COMPARED:
            return ast.Compare(left, [COMPARED[type(operator)]()], [right])
        case ast.BinOp(left, operator, right) if type(operator) in COMPUTED and not isinstance(right, ast.Constant):
            return ast.BinOp(left, COMPUTED[type(operator)](), right)
        case ast.BoolOp(operator, values):
            return ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() as value):
            return ast.Constant(value + 1)
        case ast.If(test, body, orelse):
            return ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
    return None


class Change(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, target: ast.AST) -> None:
        self.target = target

    def visit(self, node: ast.AST) -> ast.AST:
        """The node, changed if it is the one."""
        if node is self.target:
            change = mutated(node)
            assert change is not None
            return ast.copy_location(change, node)
        return self.generic_visit(node)


def mutants(files: Sequence[Path], count: int, seed: int) -> list[tuple[Path, int, str, str]]:
    """Some mutants: the file, the line, the change in words, and the file's new text."""
    drawn = random.Random(seed)
    found = [(path, number) for path in files for number, _ in enumerate(places(ast.parse(path.read_text())))]
    chosen = []
    for path, number in drawn.sample(found, min(count, len(found))):
        tree = ast.parse(path.read_text())
        node = list(places(tree))[number]
        before = ast.unparse(node).splitlines()[0]
        change = mutated(node)
        assert change is not None
        after, line = ast.unparse(ast.fix_missing_locations(change)).splitlines()[0], int(getattr(node, "lineno", 0))
        text = ast.unparse(ast.fix_missing_locations(Change(node).visit(tree)))
        chosen.append((path, line, f"{before:.60} → {after:.60}", text))
    return chosen


def noticed(path: Path, text: str, folder: Path) -> bool:
    """Whether a test fails, or hangs, with this text in place of the file."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)  # with compiled kernels
    place = path.relative_to(ROOT / "src" / "dagc")
    (source / "dagc" / place).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS[place.parts[0]]]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    """Make mutants, run tests, show which were not noticed."""
    parser = arguments(__doc__)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", nargs="+", type=Path)
    options = parser.parse_args()
    package = ROOT / "src" / "dagc"
    files = options.files or sorted(path for pattern in FILES for path in package.glob(pattern))
    counts: dict[str, Counter[bool]] = {}
    survivors = []
    for place in {path.resolve().relative_to(package).parts[0]: path.resolve() for path in files}.values():
        with TemporaryDirectory() as folder:
            if noticed(place, place.read_text(), Path(folder)):
                sys.exit(f"the tests of {place.relative_to(ROOT)} fail without any mutant")
    for path, line, words, text in mutants([path.resolve() for path in files], options.mutants, options.seed):
        with TemporaryDirectory() as folder:
            dead = noticed(path, text, Path(folder))
        room = path.relative_to(package).parts[0]
        counts.setdefault(room, Counter())[dead] += 1
        if not dead:
            survivors.append(f"{path.relative_to(ROOT)}:{line}: {words}")
        print(
            f"{'noticed ' if dead else 'SURVIVED'} {path.relative_to(ROOT)}:{line}: {words}",
            file=sys.stderr,
            flush=True,
        )
    with kept("mutants", "Mutants that tests notice", ["part", "mutants", "noticed"], options.record) as sheet:
        for room, count in sorted(counts.items()):
            sheet.add([room, str(count.total()), f"{count[True]} ({count[True] / count.total():.0%})"])
        sheet.notes += survivors
    return 0


if __name__ == "__main__":
    sys.exit(main())
