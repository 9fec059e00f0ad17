"""Reports: tables, curves and one page from the folders of runs. Nothing here trains."""

from collections.abc import Sequence
from pathlib import Path

from dagc.report.figures import write_figures
from dagc.report.page import page
from dagc.report.panels import Panel, Series, panels_of
from dagc.report.runs import Run, find_runs, read_run
from dagc.report.tables import csv_table, curves_csv, latex_table, markdown_table
from dagc.report.words import sentence

__all__ = ["Panel", "Run", "Series", "find_runs", "panels_of", "read_run", "sentence", "write_report"]


def write_report(panels: Sequence[Panel], folder: Path, title: str, command: str, figures: bool = True) -> Path:
    """Write `report.html`, `table.csv`, `.tex` and `.md`, `curves.csv` and, with matplotlib, SVG and PNG curves.

    Args:
        panels: What to show.
        folder: Where to write.
        title: Its heading.
        command: The command that does it all again.
        figures: Whether to draw the SVG and PNG files.

    Returns:
        The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.html": page(panels, title, command),
        "table.csv": csv_table(panels),
        "table.tex": latex_table(panels, title),
        "table.md": markdown_table(panels),
        "curves.csv": curves_csv(panels),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if figures:
        write_figures(panels, folder)
    return folder / "report.html"
