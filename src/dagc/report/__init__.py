"""Reports: one page, and the numbers on it as JSON, from the folders of runs."""

import json
from collections.abc import Sequence
from pathlib import Path

from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.report.notebook import history_html
from dagc.report.numbers import comparison
from dagc.report.page import page
from dagc.report.panels import Panel, Series, panels_of
from dagc.report.runs import Run, find_runs, read_run, read_runs
from dagc.report.words import notes, sentence

__all__ = [
    "Panel",
    "Run",
    "Series",
    "comparison",
    "find_runs",
    "history_html",
    "notes",
    "panels_of",
    "read_run",
    "read_runs",
    "sentence",
    "write_report",
]


def write_report(panels: Sequence[Panel], folder: Path, title: str, command: str) -> Path:
    """Write the page `report.html` and, for programs, `report.json` with the `comparison` of each panel.

    The page has the title as its heading, and the command that reproduces it. `InvalidInput` says that the folder
    cannot be written to.
    """
    texts = {
        "report.json": json.dumps([*map(comparison, panels)], indent=1),
        "report.html": page(panels, title, command),
    }
    try:
        for name, text in texts.items():
            with write_atomically(folder / name) as file:
                file.write(text.encode())
    except OSError as error:
        raise InvalidInput(f"the report cannot be written to {folder}: {failure(error)}") from error
    return folder / "report.html"
