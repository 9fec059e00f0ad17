"""Reports: tables, curves and one page from the folders of runs."""

from collections.abc import Sequence
from pathlib import Path

from dagc.errors import InvalidInput
from dagc.files import failure, write_atomically
from dagc.report.charts import charts
from dagc.report.figures import write_figures
from dagc.report.notebook import history_html
from dagc.report.page import page
from dagc.report.panels import Panel, Series, panels_of
from dagc.report.runs import Run, find_runs, read_run, read_runs
from dagc.report.tables import comparison, csv_table, curves_csv, latex_table, markdown_table
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


def write_report(panels: Sequence[Panel], folder: Path, title: str, command: str, figures: bool = True) -> Path:
    """Write `report.html`, `table.csv`, `.tex` and `.md`, `curves.csv` and, with matplotlib, SVG and PNG curves.

    Args:
        panels: What to show.
        folder: Where to write.
        title: Its heading.
        command: The command that reproduces it.
        figures: Whether to draw the SVG and PNG files.

    Returns:
        The page.

    Raises:
        InvalidInput: The folder cannot be written to.
    """
    texts = {
        "report.html": page(panels, title, command),
        "table.csv": csv_table(panels),
        "table.tex": latex_table(panels, title),
        "table.md": markdown_table(panels),
        "curves.csv": curves_csv(charts(panels)),
    }
    try:
        for name, text in texts.items():
            with write_atomically(folder / name) as file:
                file.write(text.encode())
        if figures:
            write_figures(charts(panels), folder)
    except OSError as error:
        raise InvalidInput(f"the report cannot be written to {folder}: {failure(error)}") from error
    return folder / "report.html"
