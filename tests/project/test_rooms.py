"""A room imports only rooms above it: the core knows neither Flower, nor a data set, nor the command line."""

import ast
from pathlib import Path

import dagc

ROOMS = [
    "text", "errors", "spec", "settings", "draws", "files", "state", "checkpoint", "folder",
    "sparse", "wire", "updates", "allocation", "compressors", "feedback", "policies", "protocol", "testing",
    "ddp", "flower",
    "network", "data", "models", "plugins", "training", "report", "comparison", "estimate", "cli",
]  # fmt: skip


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dagc":
            yield from ([node.module.split(".")[1]] if "." in node.module else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dagc."))


def test_every_room_imports_only_rooms_above_it():
    source = Path(dagc.__file__).parent
    wrong = []
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room in ("__init__", "__main__") or room.startswith("_"):
            continue
        assert room in ROOMS, f"{path} is in no known room: add it to the list, below what it imports"
        for other in imports(path):
            if other in ROOMS and ROOMS.index(other) > ROOMS.index(room):
                wrong.append(f"{path.relative_to(source)} imports {other}")
    assert not wrong


def test_the_package_imports_neither_the_experiments_nor_the_tests():
    source = Path(dagc.__file__).parent
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            rooms = {name.split(".")[0] for name in names}
            assert not rooms & {"research", "tests", "benchmarks"}, f"{path.relative_to(source)} imports {rooms}"
