"""Fashion-MNIST from its four official IDX files."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.dataset import Dataset
from dagc.errors import DataError
from research.data.download import Source
from research.data.entry import Entry
from research.data.idx import read_idx

__all__ = ["DEBIAN", "ENTRY"]

FILES = {  # their checksums, as published in the README of their repository
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
URL = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist


def _locate(root: Path) -> Path | None:
    """The folder with the four files: in the data folder, or where Debian's package installs them."""
    for folder in (root / "FashionMNIST" / "raw", root / "fashion-mnist", DEBIAN):
        if any(_file(folder, name) for name in FILES):
            return folder
    return None


def _read(folder: Path, root: Path) -> Dataset:
    """Load the set; `root` is not used."""
    train_x, train_y = _half(folder, *list(FILES)[:2])
    test_x, test_y = _half(folder, *list(FILES)[2:])
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
            raise DataError(f"{folder / name} is missing (also as .gz); get the data set again with --force")
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


_SOURCES = tuple(Source(f"{URL}/{name}.gz", checksum, "FashionMNIST/raw") for name, checksum in FILES.items())
ENTRY = Entry("fashion-mnist", "70,000 clothes, 28×28", "30 MB", "MIT", _SOURCES, _locate, _read)
