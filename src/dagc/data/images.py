"""Read one image file as small RGB bytes."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagc.data.limits import refuse_bomb
from dagc.errors import DataError

__all__ = ["SUFFIXES", "read_image"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""What a file may be, whatever its suffix says: Pillow would start Ghostscript for PostScript."""


def read_image(path: Path, side: int = 32) -> NDArray[np.uint8]:
    """The middle square of an image, shrunk to (3, side, side).

    Raises:
        DataError: If it is no readable image, or has too many pixels for its size; the file is named.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings about odd metadata do not matter here
            with Image.open(path, formats=FORMATS) as image:
                refuse_bomb(path, 3 * image.width * image.height)
                small = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} is not a readable image ({error})") from None
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))
