"""Compressors select which entries of a vector to send, and nothing else. Error feedback is wrapped around them."""

from typing import Any, Protocol

from dagc.compressors._vector import Gradient
from dagc.compressors.everything import everything
from dagc.compressors.hard_threshold import hard_threshold
from dagc.compressors.per_tensor import per_tensor
from dagc.compressors.random_k import random_k
from dagc.compressors.top_k import top_k
from dagc.sparse import Sparse

__all__ = ["COMPRESSORS", "Compressor", "Gradient", "everything", "hard_threshold", "per_tensor", "random_k", "top_k"]


class Compressor(Protocol):
    """A pure function from a vector and a parameter to some of the vector's entries, values unchanged."""

    def __call__(self, vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
        """Select entries.

        Args:
            vector: A tensor of any shape and float type, or the tensors of a model.
            parameter: The number of entries, or the threshold.
            seed: For compressors that draw at random; the others ignore it.
        """
        ...


COMPRESSORS: dict[str, Compressor] = {
    "none": everything,
    "top-k": top_k,
    "random-k": random_k,
    "hard-threshold": hard_threshold,
}
"""Every compressor by name."""
