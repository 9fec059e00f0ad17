"""The 1,797 handwritten digits that come with scikit-learn: always available, the default for a first run."""

from pathlib import Path

import numpy as np
import torch

from dagc.data.dataset import Dataset, hold_out, statistics
from dagc.data.entry import Entry

__all__ = ["ENTRY"]


def _locate(root: Path) -> Path | None:
    """The folder of scikit-learn, whatever the data folder is."""
    import sklearn  # takes a second to import, and only this set needs it

    return Path(sklearn.__file__).parent / "datasets"


def _read(folder: Path, root: Path) -> Dataset:
    """Load the set, 8 × 8 pixels of 0 … 16; a fifth of each digit is held out as test set."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    x = torch.from_numpy(bundle.images.astype(np.uint8)).unsqueeze(1)
    y = bundle.target.astype(np.int64)
    train, test = (torch.from_numpy(part) for part in hold_out(y))
    mean, std = statistics(x[train])
    labels = torch.from_numpy(y)
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", x[train], labels[train], x[test], labels[test], names, mean=mean, std=std)


ENTRY = Entry("digits", "1,797 handwritten digits, 8×8", 10, "bundled", "CC BY 4.0", (), _locate, _read)
