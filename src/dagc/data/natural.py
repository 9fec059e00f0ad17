"""Natural federations: UCI Adult by country, and Shakespeare by role."""

import json
import re
from dataclasses import replace
from pathlib import Path

from dagc.data.dataset import Dataset
from dagc.data.own import read_csv
from dagc.data.texts import from_texts
from dagc.errors import DataError

__all__ = ["locate_adult", "locate_shakespeare", "read_adult", "read_shakespeare"]

COLUMNS = "age work weight education years marital occupation relation race sex gain loss hours country income"


def locate_adult(root: Path) -> Path | None:
    """The census file as UCI has it."""
    return _first(root / "adult/adult.data", root / "natural/adult.data")


def read_adult(path: Path, root: Path) -> Dataset:
    """Who earns more than 50,000 dollars; the clients are the native countries."""
    return replace(read_csv(path, "income", "country", names=COLUMNS.split()), name="adult")


def locate_shakespeare(root: Path) -> Path | None:
    """The plays in one text, or as JSON by role."""
    return _first(root / "shakespeare/input.txt", root / "natural/tinyshakespeare_by_role.json")


def read_shakespeare(path: Path, root: Path) -> Dataset:
    """The next character; the clients are the roles."""
    try:
        text = path.read_text(encoding="utf-8")
        said = json.loads(text) if path.suffix == ".json" else _speeches(text)
        roles = {str(role): "\n".join(lines) for role, lines in said.items()}
    except (UnicodeDecodeError, ValueError, AttributeError, TypeError) as error:
        raise DataError(f"{path} is not Shakespeare by role ({error})") from None
    return from_texts("shakespeare", roles)


def _speeches(text: str) -> dict[str, list[str]]:
    """What every role says: a speech is a line with the role and a colon, and the lines up to the next empty one."""
    found: dict[str, list[str]] = {}
    for speech in re.split(r"\n\n+", text.strip()):
        role, colon, lines = speech.partition(":\n")
        if colon and "\n" not in role:
            found.setdefault(role, []).append(lines)
    return found


def _first(*places: Path) -> Path | None:
    return next((place for place in places if place.is_file()), None)
