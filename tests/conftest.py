"""What all tests share."""

import pytest
from hypothesis import settings

from dagc.plugins import REGISTRIES
from research.parts import register

# The first call of a kernel compiles it, which takes seconds: no example is late because of that.
settings.register_profile("dagc", deadline=None)
settings.load_profile("dagc")


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write the golden files again")


@pytest.fixture
def parts():
    """What the experiments add to the registries, for one test."""
    before = {kind: dict(registry) for kind, registry in REGISTRIES.items()}
    register()
    yield
    for kind, registry in REGISTRIES.items():
        registry.clear()
        registry.update(before[kind])
