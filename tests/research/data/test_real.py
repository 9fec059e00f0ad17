"""The real data sets, where they are in the data folder; skipped, saying so, elsewhere."""

import time

import pytest
import torch

from dagc.data import Dataset, load
from dagc.errors import MissingData


def real(name: str) -> Dataset:
    try:
        return load(name)
    except MissingData as error:
        pytest.skip(f"real data is not here: {error}")


def test_fashion_mnist_is_all_there() -> None:
    data = real("fashion-mnist")
    assert data.train_x.shape == (60_000, 1, 28, 28)
    assert data.test_x.shape == (10_000, 1, 28, 28)
    assert torch.bincount(data.train_y).tolist() == [6000] * 10
    assert torch.bincount(data.test_y).tolist() == [1000] * 10
    assert data.train_y[:5].tolist() == [9, 0, 0, 3, 0]


def test_cifar10_is_all_there_and_loads_in_three_seconds() -> None:
    start = time.process_time()  # not the clock on the wall, which also counts what else the machine does
    data = real("cifar-10")
    assert time.process_time() - start < 3
    assert data.train_x.shape == (50_000, 3, 32, 32)
    assert torch.bincount(data.train_y).tolist() == [5000] * 10
    assert torch.bincount(data.test_y).tolist() == [1000] * 10
    assert data.classes[0] == "airplane"
    assert data.train_y[:5].tolist() == [6, 9, 9, 4, 1]
    assert data.mean is not None
    assert data.std is not None
    torch.testing.assert_close(data.mean.flatten() / 255, torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0)
    torch.testing.assert_close(data.std.flatten() / 255, torch.tensor([0.2470, 0.2435, 0.2616]), atol=1e-4, rtol=0)


def test_cifar100_is_all_there() -> None:
    data = real("cifar-100")
    assert torch.bincount(data.train_y).tolist() == [500] * 100
    assert torch.bincount(data.test_y).tolist() == [100] * 100
