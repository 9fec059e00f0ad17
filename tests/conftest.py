"""What all tests share."""

from hypothesis import settings

# The first call of a kernel compiles it, which takes seconds: no example is late because of that.
settings.register_profile("dagc", deadline=None)
settings.load_profile("dagc")


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write the golden files again")
