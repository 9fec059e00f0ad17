"""The 1,797 handwritten digits that come with scikit-learn: always available, the default for a first run."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from dagc.data.dataset import Dataset, hold_out, statistics

__all__ = ["load_digits"]


def load_digits(root: Path) -> Dataset:
    """Load the set, 8 × 8 pixels of 0 … 16; a fifth of each digit is held out as test set.

    Args:
        root: The data folder, which is not needed: the file is part of scikit-learn.
    """
    package = find_spec("sklearn")  # importing it would take a second
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    x = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 8, 8))
    y = rows[:, -1].astype(np.int64)
    train, test = (torch.from_numpy(part) for part in hold_out(y))
    mean, std = statistics(x[train])
    labels = torch.from_numpy(y)
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", x[train], labels[train], x[test], labels[test], names, mean=mean, std=std)
