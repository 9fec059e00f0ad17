"""Flags follow from the schema of settings, and so does their table in the docs."""

import subprocess
import sys

from dagc.cli.options import GROUPS
from dagc.training import Config
from tools import settings


def test_every_setting_has_a_group():
    assert {each.group for each in Config.schema().values()} == set(GROUPS)


def test_the_documents_table_of_settings_is_the_schema():
    text = settings.PAGE.read_text(encoding="utf-8")
    assert "<!-- begin: settings -->" in text
    assert settings.rewritten(text) == text, "python -m tools.settings"


def test_what_is_known_before_torch_is_loaded_follows_from_the_schema():
    """In a process of its own: here, other tests may have registered methods, models and data."""
    program = "from tools.settings import stale; print(stale())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=settings.ROOT)
    assert done.stdout == "[]\n", "make results"


def test_the_names_of_a_task_are_written_again():
    text = settings.COMMAND.read_text(encoding="utf-8")
    assert settings.named(text.replace('"mlp"', '"mpl"')) == text
