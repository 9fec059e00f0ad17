"""All of these tests know the parts of the experiments."""

import pytest


@pytest.fixture(autouse=True)
def of_the_experiments(parts):
    """In every test here."""
