"""Vectors that are hard to select from, and how to compare them."""

import numpy as np
import torch


def same_bits(one, other):
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


def normal(size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))


def heavy_tailed(size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_t(1.5, size).astype(np.float32))


def layers(size, seed=0):
    """Layers of very different scale, as in a model."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-4, 1, 8).repeat(-(-size // 8))[:size]
    return torch.from_numpy((rng.normal(size=size) * scale).astype(np.float32))


def few(size, seed=0):
    """Almost all zero, of either sign."""
    vector = normal(size, seed)
    vector[torch.from_numpy(np.random.default_rng(seed + 1).random(size) > 0.003)] = 0.0
    vector[::2] *= -1
    return vector


def ties(size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(-3, 4, size).astype(np.float32))


def denormal(size, seed=0):
    return normal(size, seed) * 2.0**-140


def constant(size, seed=0):
    return torch.full((size,), -0.5)


def zeros(size, seed=0):
    return torch.zeros(size) * torch.where(torch.arange(size) % 3 == 0, -1.0, 1.0)


def spikes(size, seed=0):
    """All the weight where a sample of the vector is unlikely to look."""
    vector = normal(size, seed) * 1e-6
    vector[size // 2 : size // 2 + size // 50] += 5.0
    return vector
