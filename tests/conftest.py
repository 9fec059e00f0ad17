"""What all tests share."""

import pytest
from hypothesis import settings

from dagc._numba import compiled
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


@pytest.fixture
def plainly(monkeypatch):
    """`plainly(function, ...)` calls it without kernels."""

    def call(function, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setenv("DAGC_KERNELS", "torch")
            compiled.cache_clear()
            try:
                return function(*arguments, **options)
            finally:
                compiled.cache_clear()

    return call
