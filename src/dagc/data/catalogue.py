"""The data sets by name: what they are, where they come from, whether they are present, and how to load them."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dagc.data import cifar, digits, fashion_mnist, natural, own
from dagc.data.dataset import Dataset
from dagc.data.download import Report, Source, fetch_all
from dagc.data.folder import data_folder
from dagc.errors import DataError, InvalidInput, MissingData, unknown

__all__ = ["CATALOGUE", "Entry", "get", "load"]


@dataclass(frozen=True)
class Entry:
    """A data set that dagc knows.

    Attributes:
        name: Its name in tasks.
        about: One line about it.
        classes: The number of labels.
        size: The size of the download.
        licence: Its licence.
        sources: The official files; none if there is nothing to download.
        locate: Finds it below a data folder; None if it is not there.
        read: Loads it from there.
    """

    name: str
    about: str
    classes: int
    size: str
    licence: str
    sources: tuple[Source, ...]
    locate: Callable[[Path], Path | None]
    read: Callable[[Path, Path], Dataset]


_FASHION = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"
_FASHION_MD5 = {  # published in the README of that repository
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz"  # its page publishes the md5 sums of the archives
_ADULT = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/adult.data"
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "digits",
            "1,797 handwritten digits, 8×8",
            10,
            "bundled",
            "CC BY 4.0",
            (),
            digits.locate,
            digits.read,
        ),
        Entry(
            "fashion-mnist",
            "70,000 clothes, 28×28",
            10,
            "30 MB",
            "MIT",
            tuple(Source(f"{_FASHION}/{name}", f"md5:{md5}", "FashionMNIST/raw") for name, md5 in _FASHION_MD5.items()),
            fashion_mnist.locate,
            fashion_mnist.read,
        ),
        Entry(
            "cifar-10",
            "60,000 photos, 32×32×3",
            10,
            "162 MB",
            "cite Krizhevsky 2009",
            (
                Source(
                    f"{_KRIZHEVSKY}/cifar-10-binary.tar.gz",
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                    "cifar-10-batches-bin",
                    "cifar-10-batches-bin",
                ),
            ),
            cifar.locate["cifar-10"],
            cifar.read["cifar-10"],
        ),
        Entry(
            "cifar-100",
            "60,000 photos, 32×32×3",
            100,
            "161 MB",
            "cite Krizhevsky 2009",
            (
                Source(
                    f"{_KRIZHEVSKY}/cifar-100-binary.tar.gz",
                    "md5:03b5dce01913d631647c71ecec9e9cb8",
                    "cifar-100-binary",
                    "cifar-100-binary",
                ),
            ),
            cifar.locate["cifar-100"],
            cifar.read["cifar-100"],
        ),
        Entry(
            "adult",
            "32,561 incomes by country, a table",
            2,
            "4 MB",
            "CC BY 4.0",
            (Source(_ADULT, None, "adult"),),
            natural.locate_adult,
            natural.read_adult,
        ),
        Entry(
            "shakespeare",
            "plays by role, next character",
            65,
            "1 MB",
            "public domain",
            (Source(_SHAKESPEARE, None, "shakespeare"),),
            natural.locate_shakespeare,
            natural.read_shakespeare,
        ),
    )
}


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    augment: bool = False,
    objective: str = "auto",
) -> Dataset:
    """Load a data set by its name, or your own by its path.

    Args:
        name: A name of `dagc data list`, or the path of an `.npz` file, a `.csv` file or a folder per client.
        data_dir: The data folder; by default `DAGC_DATA`, or the user's cache.
        augment: Crop and flip training images at random (the paper does not say whether it did).
        objective: `regression` if your own labels are numbers to predict; with `auto`, if they have fractions.

    Raises:
        MissingData: If the set is not in the data folder; the message says how to get it.
        DataError: If a file is truncated, corrupt or of the wrong shape; the message names it.

    Example:
        >>> digits = load("digits")
        >>> len(digits), digits.shape, len(digits.classes)
        (1442, (1, 8, 8), 10)
    """
    root = data_folder(data_dir)
    entry = CATALOGUE.get(os.fspath(name))
    try:
        data = _known(entry, root) if entry else own.read_path(_as_path(os.fspath(name)), objective)
    except OSError as error:
        raise DataError(f"{name} cannot be read ({error})") from None
    if augment and len(data.shape) != 3:
        raise InvalidInput(f"{name}: only images can be cropped and flipped, not samples of shape {data.shape}")
    if objective not in ("auto", data.objective):
        raise InvalidInput(f"{name} is for {data.objective}, not for {objective}: leave the objective out")
    return replace(data, augment=True) if augment else data


def get(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    mirror: str | None = None,
    force: bool = False,
    report: Report | None = None,
) -> bool:
    """Download a data set from its official address, unless it is here.

    Args:
        name: A name of `dagc data list`.
        data_dir: The data folder.
        mirror: The address of a mirror with the same files.
        force: Download even if it is here, and replace it.
        report: Called with the file's name, the bytes so far and the bytes in all, if known.

    Returns:
        Whether anything was downloaded.
    """
    entry = CATALOGUE.get(name)
    if entry is None:
        raise unknown("data set", name, CATALOGUE)
    root = data_folder(data_dir)
    if not entry.sources or (entry.locate(root) is not None and not force):
        return False
    fetch_all(entry.sources, root, mirror, report)
    return True


def _known(entry: Entry, root: Path) -> Dataset:
    found = entry.locate(root)
    if found is None:
        raise MissingData(
            f"{entry.name} is not in {root}; get it: dagc data get {entry.name} --data-dir {shlex.quote(str(root))} "
            f"({entry.size}), or give its place with --data-dir or DAGC_DATA"
        )
    return entry.read(found, root)


def _as_path(name: str) -> Path:
    path = Path(name).expanduser()
    if not name or (not path.exists() and not path.suffix and len(path.parts) < 2):
        raise unknown("data set", name, (*CATALOGUE, "the path of your own data"))
    return path
