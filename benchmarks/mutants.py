"""Mutation testing: small changes of the code, one at a time, each of which some test should notice.

    python -m benchmarks.mutants --outcomes outcomes.json         # 15 mutants of each part; notes what came of each
    python -m benchmarks.mutants --outcomes outcomes.json         # once more: only those that no test noticed
    python -m benchmarks.mutants --outcomes outcomes.json --record    # and keeps the table of both
    python -m benchmarks.mutants --part wire --mutants 5              # a few, of one part

A comparison becomes its neighbor, a number one larger, `+` becomes `-`, `and` becomes `or`, a condition its opposite.
Each mutant is a copy of the package in a folder of its own; the tests of that part run until the first one fails. They
run in a fork of this process, which has loaded all that is not ours, and within a bounded CPU time.
"""

import ast
import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.tables import arguments, kept

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dagc"
FILES = {
    "wire": ["wire/[!_]*.py"],
    "protocol": ["protocol/[!_]*.py"],
    "updates": ["updates/[!_]*.py"],
    "feedback": ["feedback.py"],
}
"""The parts; kernels take longer to compile than the tests take, and each has its reference."""
TESTS = {
    "wire": ["tests/wire"],
    "protocol": ["tests/protocol"],
    "updates": ["tests/updates", "tests/protocol/test_update_attack.py"],
    "feedback": ["tests/compressors/test_feedback.py", "tests/protocol/test_settling.py"],
}
"""By part, the tests that must notice."""
SLOW = "not 100_000 and not from_3_to_300"
"""Tests that are left out, since each takes as long as all others."""
SECONDS = 150
"""CPU time after which a mutant hangs."""
OURS = ("dagc", "tests", "benchmarks", "research", "conftest")
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


def noticed(part: str, path: Path, text: str) -> bool:
    """Whether a test fails, or hangs, with this text in place of the file."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)  # with compiled kernels
        (source / "dagc" / path.relative_to(PACKAGE)).write_text(text)
        process = os.fork()
        if not process:
            os._exit(_tests(part, source))
        _, status = os.waitpid(process, 0)
    return status != 0


def _tests(part: str, source: Path) -> int:
    """Run the tests of a part with this source; in a process of its own, which ends then."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(silent, stream)
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = f"{source}{os.pathsep}{ROOT}"
    os.chdir(ROOT)
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", SLOW, *TESTS[part]]))


def sample(parts: Sequence[str], count: int, seed: int) -> Iterator[tuple[str, Path, str, str]]:
    """The same number of mutants of each part: the part, the file, the change in words, and the file's new text."""
    for part in parts:
        files = sorted(path for pattern in FILES[part] for path in PACKAGE.glob(pattern))
        if not files:
            sys.exit(f"there is no file of {part} any more: {', '.join(FILES[part])}")
        for path, line, words, text in mutants(files, count, seed):
            yield part, path, f"{path.relative_to(ROOT)}:{line}: {words}", text


def main() -> int:
    """Make mutants, run tests, show which were not noticed."""
    parser = arguments(__doc__)
    parser.add_argument("--mutants", type=int, default=15, help="of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=list(FILES), action="append", help="default: all")
    parser.add_argument("--outcomes", type=Path, help="a file that remembers which mutants were noticed first")
    options = parser.parse_args()
    before: dict[str, bool] = {}
    if options.outcomes is not None and options.outcomes.exists():
        before = json.loads(options.outcomes.read_text())
    rows, survivors = [], []
    parts = options.part or list(FILES)
    chosen = list(sample(parts, options.mutants, options.seed))
    for part in parts:
        own = [each for each in chosen if each[0] == part]
        path = own[0][1]
        if noticed(part, path, path.read_text()):
            sys.exit(f"the tests of {part} fail without any mutant")
        first, now = [], []
        for _, path, words, text in own:
            dead = before.get(words, False) or noticed(part, path, text)
            first.append(before.setdefault(words, dead))
            now.append(dead)
            print(f"{'noticed ' if dead else 'SURVIVED'} {words}", file=sys.stderr, flush=True)
            if not dead:
                survivors.append(words)
            if options.outcomes is not None:
                options.outcomes.write_text(json.dumps(before, indent=1))
        rows.append([part, str(len(own)), *(f"{sum(each)} ({sum(each) / len(own):.0%})" for each in (first, now))])
    heads = ["part", "mutants", "noticed at first", "noticed now"]
    with kept("mutants", "Mutants that tests notice", heads, options.record, wanted=len(FILES)) as sheet:
        for row in rows:
            sheet.add(row)
        sheet.notes += survivors
    return 0


if __name__ == "__main__":
    sys.exit(main())
