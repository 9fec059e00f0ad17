"""What the experiments add to dagc, as plugins do: methods, allocators, codecs, models, partitions and data sets."""

from dagc.allocation import ALLOCATORS, Allocator
from dagc.data import CATALOGUE, PARTITIONS
from dagc.errors import DagcError
from dagc.models import MODELS
from dagc.plugins import load_plugins
from dagc.policies import METHODS, relative
from dagc.wire import VALUE_CODECS
from research import accordion, models
from research.allocators import RULES
from research.codecs import CODECS
from research.data import ENTRIES
from research.partitions import one_large

__all__ = ["load", "register"]

PLUGIN = "research.parts:register"
"""As an entry point would name it; processes that dagc starts load it again."""


def register() -> None:
    """Add everything to dagc's registries."""
    for name, (rule, about) in RULES.items():
        ALLOCATORS[name] = Allocator(ratios=rule)
        METHODS[name] = relative(name, about)
    METHODS["accordion"] = accordion.METHOD
    VALUE_CODECS.update(CODECS)
    MODELS.update(models.MODELS)
    PARTITIONS["one-large"] = one_large
    CATALOGUE.update({name: entry.load for name, entry in ENTRIES.items()})


def load() -> None:
    """Load this as a plugin, here and in every process that a comparison starts."""
    for plugin in load_plugins(PLUGIN):
        if plugin.where == PLUGIN and plugin.problem:
            raise DagcError(f"{PLUGIN} cannot be loaded: {plugin.problem}")
