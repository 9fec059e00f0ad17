"""CIFAR-10 and CIFAR-100 from the official binary version: records of label bytes and 3,072 bytes of pixels."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.dataset import Dataset, statistics
from dagc.errors import DataError
from research.data.download import Source
from research.data.entry import Entry

__all__ = ["ENTRIES"]

_PIXELS = 3 * 32 * 32


def _read(name: str, train: list[Path], test: Path, names: Path, classes: int, label_bytes: int) -> Dataset:
    record = label_bytes + _PIXELS
    bytes_ = sum(path.stat().st_size for path in train if path.is_file())  # `_records` reports a missing one
    train_x = np.empty((bytes_ // record, 3, 32, 32), dtype=np.uint8)
    labels: list[NDArray[np.int64]] = []
    for path in train:  # file by file into its place, so that the set is in memory only once
        images, own = _records(path, classes, label_bytes)
        start = sum(map(len, labels))
        train_x[start : start + len(own)] = images
        labels.append(own)
    test_x, test_y = _records(test, classes, label_bytes)
    train_y = np.concatenate(labels)
    mean, std = statistics(torch.from_numpy(train_x))
    return Dataset(
        name,
        torch.from_numpy(train_x),
        torch.from_numpy(train_y),
        torch.from_numpy(test_x),
        torch.from_numpy(test_y),
        _class_names(names, classes),
        mean=mean,
        std=std,
    )


def _records(path: Path, classes: int, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images and labels of one file; for CIFAR-100, the second of its two labels, the fine one."""
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); get the data set again with --force") from None
    record = label_bytes + _PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise DataError(
            f"{path} has {len(raw):,} bytes, which is not a number of {record}-byte records; "
            "it is truncated or not the binary version: get the data set again with --force"
        )
    rows = raw.reshape(-1, record)
    labels = rows[:, label_bytes - 1].astype(np.int64)
    if labels.max() >= classes:
        row = int(np.flatnonzero(labels >= classes)[0])
        raise DataError(f"{path}: record {row} has the label {labels[row]}, above {classes - 1}; the file is corrupt")
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def _class_names(path: Path, classes: int) -> tuple[str, ...]:
    """The names from the file next to the data; numbers if it is missing or does not fit."""
    try:
        names = tuple(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        names = ()
    return names if len(names) == classes else tuple(str(label) for label in range(classes))


def _entry(name: str, size: str, md5: str, folder: str, files: tuple[list[str], str, str], label_bytes: int) -> Entry:
    train, test, names = files
    classes = int(name.removeprefix("cifar-"))
    url = f"https://www.cs.toronto.edu/~kriz/{name}-binary.tar.gz"  # its page publishes the checksums

    def locate(root: Path) -> Path | None:
        return root / folder if (root / folder / test).is_file() else None

    def read(place: Path, root: Path) -> Dataset:
        return _read(name, [place / part for part in train], place / test, place / names, classes, label_bytes)

    about, license = "60,000 photos, 32×32×3", "cite Krizhevsky 2009"
    return Entry(name, about, size, license, (Source(url, f"md5:{md5}", folder, folder),), locate, read)


_PARTS_10 = ([f"data_batch_{part}.bin" for part in range(1, 6)], "test_batch.bin", "batches.meta.txt")
_PARTS_100 = (["train.bin"], "test.bin", "fine_label_names.txt")
ENTRIES = (
    _entry("cifar-10", "162 MB", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin", _PARTS_10, 1),
    _entry("cifar-100", "161 MB", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary", _PARTS_100, 2),
)
