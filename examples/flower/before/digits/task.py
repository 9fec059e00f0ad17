"""The model and the data: scikit-learn's digits, split so that each node has twice as much as the next."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TEST = 397


def build(config: Mapping[str, Any]) -> nn.Module:
    """A perceptron with one hidden layer, the same on the server and on all nodes."""
    torch.manual_seed(int(config["seed"]))
    hidden = int(config["hidden-units"])
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def load() -> tuple[Tensor, Tensor]:
    """All samples, in an order that is always the same."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return torch.from_numpy(digits.data[order] / 16).float(), torch.from_numpy(digits.target[order])


def load_train(partition: int, partitions: int) -> tuple[Tensor, Tensor]:
    """A node's samples: of what the test leaves over, half for the first, a quarter for the second, and so on."""
    x, y = (samples[TEST:] for samples in load())
    shares = np.cumsum([0.5 ** (number + 1) for number in range(partitions - 1)])
    ends = [0, *(np.round(shares * len(y)).astype(int)), len(y)]
    return x[ends[partition] : ends[partition + 1]], y[ends[partition] : ends[partition + 1]]


def load_test() -> tuple[Tensor, Tensor]:
    """The server's samples."""
    x, y = load()
    return x[:TEST], y[:TEST]


def train(
    model: nn.Module, x: Tensor, y: Tensor, steps: int, batch_size: int, rate: float, seed: int, kind: str = "SGD"
) -> float:
    """Some steps of this class of torch.optim; returns the mean loss."""
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    for _ in range(steps):
        batch = torch.randint(len(y), (batch_size,), generator=generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def test(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy and loss."""
    with torch.no_grad():
        scores = model(x)
    return (scores.argmax(1) == y).float().mean().item(), cross_entropy(scores, y).item()
