"""Natural federations: UCI Adult by country, and Shakespeare by role."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from dagc.data.dataset import Dataset
from dagc.data.files import read_csv, samples_of_texts
from dagc.data.samples import Named, assemble
from dagc.errors import DataError
from research.data.download import Source
from research.data.entry import Entry

__all__ = ["ADULT", "SHAKESPEARE"]

COLUMNS = "age work weight education years marital occupation relation race sex gain loss hours country income"


def _first(*places: str) -> Callable[[Path], Path | None]:
    """Finds the first of these files that is there."""
    return lambda root: next((root / place for place in places if (root / place).is_file()), None)


def _read_adult(path: Path, root: Path) -> Dataset:
    """Who earns more than 50,000 dollars; the clients are the native countries."""
    return assemble("adult", read_csv(path, Named("income", "country"), COLUMNS.split()))


def _read_shakespeare(path: Path, root: Path) -> Dataset:
    """The next character; the clients are the roles."""
    try:
        text = path.read_text(encoding="utf-8")
        speeches = json.loads(text) if path.suffix == ".json" else _speeches(text)
        roles = {str(role): "\n".join(lines) for role, lines in speeches.items()}
    except (UnicodeDecodeError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not Shakespeare by role ({error})") from None
    return assemble("shakespeare", samples_of_texts("shakespeare", roles))


def _speeches(text: str) -> dict[str, list[str]]:
    """What every role says: a speech is a line with the role and a colon, and the lines up to the next empty one."""
    speeches: dict[str, list[str]] = {}
    for speech in re.split(r"\n\n+", text.strip()):
        role, colon, lines = speech.partition(":\n")
        if colon and "\n" not in role:
            speeches.setdefault(role, []).append(lines)
    return speeches


ADULT = Entry(
    "adult",
    "32,561 incomes by country, a table",
    "4 MB",
    "CC BY 4.0",
    (Source("https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data", None, "adult"),),
    _first("adult/adult.data", "natural/adult.data"),
    _read_adult,
)
SHAKESPEARE = Entry(
    "shakespeare",
    "plays by role, next character",
    "1 MB",
    "public domain",
    (
        Source(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            None,
            "shakespeare",
        ),
    ),
    _first("shakespeare/input.txt", "natural/tinyshakespeare_by_role.json"),
    _read_shakespeare,
)
