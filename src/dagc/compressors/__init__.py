"""Compressors select which entries of a vector to send, and nothing else. Error feedback is wrapped around them."""

from dagc.compressors._vector import Gradient
from dagc.compressors.contract import Compressor, Parameter, compressor
from dagc.compressors.everything import everything
from dagc.compressors.hard_threshold import hard_threshold
from dagc.compressors.per_tensor import per_tensor
from dagc.compressors.random_k import random_k
from dagc.compressors.top_k import top_k

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "Gradient",
    "Parameter",
    "compressor",
    "everything",
    "hard_threshold",
    "per_tensor",
    "random_k",
    "top_k",
]

COMPRESSORS: dict[str, Compressor] = {
    "none": everything,
    "top-k": top_k,
    "random-k": random_k,
    "hard-threshold": hard_threshold,
}
"""Every compressor by name."""
