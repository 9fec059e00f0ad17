"""Fashion-MNIST from its four official IDX files."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.dataset import Dataset
from dagc.data.idx import read_idx
from dagc.errors import DataError

__all__ = ["FILES", "locate", "read"]

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist


def locate(root: Path) -> Path | None:
    """The folder with the four files: in the data folder, or where Debian's package installs them."""
    for folder in (root / "FashionMNIST" / "raw", root / "fashion-mnist", DEBIAN):
        if any(_file(folder, name) for name in FILES):
            return folder
    return None


def read(folder: Path, root: Path) -> Dataset:
    """Load the set; `root` is not used."""
    train_x, train_y = _half(folder, *FILES[:2])
    test_x, test_y = _half(folder, *FILES[2:])
    x = torch.from_numpy(train_x).unsqueeze(1)
    return Dataset(
        "fashion-mnist",
        x,
        torch.from_numpy(train_y.astype(np.int64)),
        torch.from_numpy(test_x).unsqueeze(1),
        torch.from_numpy(test_y.astype(np.int64)),
        CLASSES,
        mean=torch.zeros(1),  # scaled to 0 … 1 only: at the paper's rates, a logistic model needs small inputs
        std=torch.full((1,), 255.0),
    )


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _half(folder: Path, images: str, labels: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    arrays = []
    for name, axes in ((images, 3), (labels, 1)):
        path = _file(folder, name)
        if path is None:
            raise DataError(f"{folder / name} is missing (also as .gz); run: dagc data get fashion-mnist --force")
        array = read_idx(path)
        if array.ndim != axes or (axes == 3 and array.shape[1:] != (28, 28)):
            raise DataError(f"{path} holds an array of shape {array.shape}; {name} has {axes} axes, images 28 × 28")
        arrays.append(array)
    x, y = arrays
    if len(x) != len(y) or len(y) == 0:
        raise DataError(f"{folder / images} has {len(x):,} images and {folder / labels} {len(y):,} labels")
    if y.max() >= len(CLASSES):
        raise DataError(f"{folder / labels} holds the label {y.max()}; there are 0 … 9")
    return x, y
