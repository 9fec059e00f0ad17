"""What a run was made with: the commit and the version, written down in its folder."""

import json
import subprocess
from pathlib import Path
from typing import Any

import dagc
from dagc.files import write_atomically

__all__ = ["origin", "source_commit", "stamp"]

ORIGIN = "origin.json"
"""In a run's folder: the commits and versions that have worked on it."""


def source_commit(*more: Path) -> str | None:
    """The commit of the source that runs here, with a + if it was changed since; None if it is not in a repository.

    Args:
        more: Folders of the same repository that run here, too: a change in one of them counts.
    """
    here = Path(dagc.__file__)
    folders = [str(folder.resolve()) for folder in (here.parent, *more)]
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        head = _git(here.parent, "rev-parse", "--short=7", "HEAD")
        changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no", "--", *folders)
        return head + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def stamp(path: Path, commit: str | None) -> None:
    """Write down in a run's folder what works on it now; what did before stays."""
    unknown = [{"commit": None, "version": None}] if (path / "config.toml").exists() else []  # who began it
    known = _origins(path) or unknown
    now = {"commit": commit, "version": dagc.__version__}
    if now not in known:
        with write_atomically(path / ORIGIN) as file:
            file.write(json.dumps([*known, now]).encode())


def origin(path: Path) -> dict[str, str | None]:
    """The commits and the versions that worked on a run, as text; None if that is not known of all of them."""
    known = _origins(path)
    return {
        name: None if not known or None in values else ", ".join(dict.fromkeys(values))
        for name in ("commit", "version")
        for values in [[each[name] for each in known]]
    }


def _origins(path: Path) -> list[dict[str, Any]]:
    try:
        return [
            {"commit": each["commit"], "version": each["version"]} for each in json.loads((path / ORIGIN).read_bytes())
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []
