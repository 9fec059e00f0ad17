"""Tables that benchmarks print, kept as records: `results/benchmarks/NAME.json`."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from research.origin import source_commit

__all__ = ["Measured", "digits", "in_markdown", "machine"]


@dataclass(frozen=True)
class Measured:
    """A table as a benchmark printed it.

    Attributes:
        title: What was measured.
        command: What prints it.
        heads: Of the columns.
        rows: The cells, as text: a benchmark rounds, nobody else.
        notes: What to know of it.
        commit: What it was measured with; None if that is not known.
        machine: What it was measured on.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> table = Measured("Steps", "python -m benchmarks.steps", ["", "ms"], [["ours", "1.2"]])
        >>> with TemporaryDirectory() as folder:
        ...     table.write(Path(folder) / "steps.json")
        ...     Measured.read(Path(folder) / "steps.json") == table
        True
    """

    title: str
    command: str
    heads: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    commit: str | None = field(default_factory=source_commit)
    machine: str = field(default_factory=lambda: machine())

    @staticmethod
    def read(path: Path) -> "Measured":
        """A table that was written.

        Raises:
            InvalidInput: There is none, or it cannot be read.
        """
        try:
            found = Measured(**json.loads(path.read_bytes()))
            if any(len(row) != len(found.heads) for row in found.rows):
                raise ValueError("a row has more or fewer cells than the table has columns")
        except OSError as error:
            raise InvalidInput(f"there is no record {path}: {failure(error)}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"{path} is not a record of a benchmark: {error}") from error
        return found

    def write(self, path: Path) -> None:
        """Keep it; what was there before is gone."""
        try:
            with write_atomically(path) as file:
                file.write(json.dumps(asdict(self), ensure_ascii=False, indent=1).encode() + b"\n")
        except OSError as error:
            raise InvalidInput(f"the record cannot be written to {path}: {failure(error)}") from error


def machine() -> str:
    """This computer in a few words."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores, {name or platform.machine()}"


def digits(number: float) -> str:
    """A number with three digits, or all before the point; never more than two after it.

    Example:
        >>> digits(70923.8), digits(62.04), digits(7.81), digits(0.042)
        ('70,924', '62.0', '7.81', '0.04')
        >>> digits(9.996), digits(99.96)
        ('10.0', '100')
    """
    rounded = float(f"{number:.3g}")  # before the places are chosen: 9.996 has one place, as 10.0
    return f"{number:,.{2 - (rounded >= 10) - (rounded >= 100)}f}"


def in_markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown: columns of figures are aligned to the right, those without a head are labels.

    Example:
        >>> print(in_markdown(["", "ms"], [["ours", "1.2"]]))
        |  | ms |
        | --- | ---: |
        | ours | 1.2 |
    """
    columns = [[row[place] for row in rows] for place in range(len(heads))]
    sides = ["---:" if head and _figures(column) else "---" for head, column in zip(heads, columns, strict=True)]
    lines = [" | ".join(cell.replace("|", "/") for cell in row) for row in [heads, sides, *rows]]
    return "\n".join(f"| {line} |" for line in lines)


def _figures(cells: list[str]) -> bool:
    """Whether every cell that says something begins with a figure, and one does."""
    begun = [cell.lstrip("*−+±≤≥<>≈×( ")[:1] for cell in cells if cell not in ("", "–")]
    return bool(begun) and all(letter.isdigit() for letter in begun)
