"""States as trees: dicts whose leaves are tensors or plain values, as `torch.save` and `weights_only` expect them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dagc.errors import InvalidInput

__all__ = ["check_version", "to_arrays", "to_tensors"]


def to_tensors(tree: Any) -> Any:
    """A copy of a tree with tensors in CPU memory for its arrays and tensors."""
    if isinstance(tree, Mapping):
        return {name: to_tensors(leaf) for name, leaf in tree.items()}
    if isinstance(tree, list | tuple):
        return [to_tensors(leaf) for leaf in tree]
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(np.array(tree))
    return tree.detach().to("cpu", copy=True) if isinstance(tree, torch.Tensor) else tree


def to_arrays(tree: Any) -> Any:
    """The same tree with arrays for its tensors, not copied where that is possible."""
    if isinstance(tree, Mapping):
        return {name: to_arrays(leaf) for name, leaf in tree.items()}
    return tree.detach().cpu().numpy() if isinstance(tree, torch.Tensor) else tree


def check_version(state: Any, what: str, version: int, fields: set[str]) -> None:
    """Refuse what is not the state of this kind, or is of another version of it."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise InvalidInput(f"this is not the state of a dagc.ddp.{what}")
    if type(state["version"]) is not int or state["version"] != version:
        raise InvalidInput(
            f"the state has version {state['version']!r:.50}, this is {version}: use the version of dagc that wrote it"
        )
    if set(state) != fields:
        raise InvalidInput(f"this is not the state of a dagc.ddp.{what}: it holds {sorted(map(str, state))!r:.200}")
