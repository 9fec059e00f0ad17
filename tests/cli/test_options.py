"""Flags follow from the schema of settings, and so does their table in the docs."""

from dagc.cli.options import GROUPS
from dagc.training import Config
from tools import settings


def test_every_setting_has_a_group():
    assert {each.group for each in Config.schema().values()} == set(GROUPS)


def test_the_documents_table_of_settings_is_the_schema():
    text = settings.PAGE.read_text(encoding="utf-8")
    assert "<!-- begin: settings -->" in text
    assert settings.rewritten(text) == text, "python -m tools.settings"


def test_the_flags_that_are_known_before_torch_is_loaded_follow_from_the_schema():
    text = settings.COMMAND.read_text(encoding="utf-8")
    assert settings.listed(text) == text, "make results"
    assert settings.listed(text.replace('"--ratio",', "")) == text
