"""Read one image file as small RGB bytes."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagc.errors import DataError

__all__ = ["SUFFIXES", "read_image"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


def read_image(path: Path, side: int = 32) -> NDArray[np.uint8]:
    """The middle square of an image, shrunk to (3, side, side).

    Raises:
        DataError: If it is no readable image; the file is named.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about odd metadata do not matter here
            with Image.open(path) as image:
                small = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a readable image ({error})") from None
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))
