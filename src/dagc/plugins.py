"""Plugins: what other packages register when they are loaded is known to the `dagc` command, too.

A package names a module, or a function to call, in the entry points of its `pyproject.toml`:

    [project.entry-points."dagc.plugins"]
    mine = "my_package.methods"

Loading it registers its parts: `dagc.policies.POLICIES["mine"] = Method(…)`, and likewise in `dagc.ALLOCATORS`,
`dagc.COMPRESSORS`, `dagc.VALUE_CODECS`, `dagc.models.MODELS`, `dagc.data.CATALOGUE` and `dagc.data.PARTITIONS`.
`dagc plugins --check` runs the contracts of `dagc.testing` on all of them.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from dagc.allocation import ALLOCATORS
from dagc.compressors import COMPRESSORS
from dagc.data import CATALOGUE, PARTITIONS
from dagc.models import MODELS
from dagc.policies import POLICIES
from dagc.wire import VALUE_CODECS

__all__ = ["GROUP", "Plugin", "load_plugins"]

GROUP = "dagc.plugins"
"""The group of entry points."""
REGISTRIES: Mapping[str, dict[Any, Any]] = {
    "method": POLICIES,
    "allocator": ALLOCATORS,
    "compressor": COMPRESSORS,
    "value codec": VALUE_CODECS,
    "model": MODELS,
    "data set": CATALOGUE,
    "partition": PARTITIONS,
}
"""Where parts are registered, by kind."""
_loaded: list["Plugin"] | None = None


class Plugin(NamedTuple):
    """One entry point, loaded or not."""

    name: str
    where: str  # the module, and perhaps a function in it
    added: tuple[tuple[str, str], ...] = ()  # the kind and name of every part it registered
    problem: str = ""  # why it could not be loaded; empty if it was


def load_plugins(*others: str) -> list[Plugin]:
    """Load all plugins, once per process. One that fails is left out, and its `problem` says why.

    Args:
        others: Plugins that no installed package names, as `MODULE` or `MODULE:FUNCTION`.

    Example:
        >>> isinstance(load_plugins(), list)
        True
    """
    global _loaded
    if _loaded is None:
        _loaded = []  # set before loading: a plugin may ask for the others
        _loaded += [_load(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]
    for other in others:
        if all(plugin.where != other for plugin in _loaded):
            _loaded.append(_load(EntryPoint(other, other, GROUP)))
    return _loaded


def _load(point: EntryPoint) -> Plugin:
    before = {kind: dict(registry) for kind, registry in REGISTRIES.items()}
    try:
        target = point.load()
        if callable(target):
            target()
    except Exception as error:  # whatever somebody else's code may raise
        for kind, registry in REGISTRIES.items():  # undo what it has registered so far
            registry.clear()
            registry.update(before[kind])
        return Plugin(point.name, point.value, problem=f"{type(error).__name__}: {error}")
    parts = [(kind, name, part) for kind, registry in REGISTRIES.items() for name, part in registry.items()]
    added = tuple((kind, str(name)) for kind, name, part in parts if before[kind].get(name) is not part)
    return Plugin(point.name, point.value, added)
