"""What all tests and doctests share."""

import pytest

from dagc import plugins


@pytest.fixture(autouse=True, scope="module")
def registries():
    """Undo what a module has registered, such as the parts of the experiments."""
    before = {kind: dict(registry) for kind, registry in plugins.REGISTRIES.items()}
    loaded = plugins._loaded
    yield
    for kind, registry in plugins.REGISTRIES.items():
        registry.clear()
        registry.update(before[kind])
    plugins._loaded = loaded
