"""What the examples in the documents register is gone after each page."""

from collections.abc import Iterator

import pytest

import dagc
from dagc.models import MODELS
from dagc.policies import METHODS


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Leave every registry as it was."""
    every = (dagc.ALLOCATORS, dagc.COMPRESSORS, dagc.VALUE_CODECS, METHODS, MODELS)
    before = [dict(registry) for registry in every]
    yield
    for registry, held in zip(every, before, strict=True):
        registry.clear()
        registry.update(held)
