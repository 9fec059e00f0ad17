"""Parts of somebody else: a method with whole thresholds, drawn clients that send nothing, and numbers of numpy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dagc.compressors import COMPRESSORS, Gradient, compressor
from dagc.policies import METHODS, Method, Plan, Situation
from dagc.sparse import Sparse

__all__ = ["plugins"]


@compressor("threshold")
def at_least(vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
    """The entries whose magnitude is at least a whole number."""
    return COMPRESSORS["hard-threshold"](vector, float(parameter), seed=seed)


class Whole:
    """Every other client sends what is at least 2, the others nothing but what is huge."""

    compressor = "at-least"
    wants_norms = True

    def __init__(self, plan: Plan, size: int) -> None:
        self.turn = 0

    def decide(self, now: Situation) -> list[Any]:
        """As `Policy.decide`."""
        self.turn += 1
        return [np.int64(2 if (place + self.turn) % 2 else 1000) for place in range(len(now.present))]

    def state_dict(self) -> dict[str, Any]:
        """As `Policy.state_dict`."""
        return {"turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `Policy.load_state_dict`."""
        self.turn = int(state["turn"])


@contextmanager
def plugins() -> Iterator[None]:
    """With these parts registered."""
    COMPRESSORS["at-least"] = at_least
    METHODS["somebody's"] = Method(("ratio",), Whole, about="a plugin of the tests")
    try:
        yield
    finally:
        del COMPRESSORS["at-least"], METHODS["somebody's"]
