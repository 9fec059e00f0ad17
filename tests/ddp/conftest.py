"""Processes for the tests of `dagc.ddp`, one group per file."""

import pytest

from tests.helpers.ranks import Ranks


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.kill()


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("four"))
    yield ranks
    ranks.kill()
