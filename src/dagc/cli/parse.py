"""Sizes of clients and quantities, as people write them on the command line."""

import csv
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

import dagc
from dagc.errors import InvalidInput

__all__ = ["client_sizes", "quantity"]


def client_sizes(text: str) -> tuple[list[str], np.ndarray[Any, np.dtype[np.float64]]]:
    """Names and sizes of the clients, from numbers with commas between them or from a CSV file."""
    if text.lower().endswith(".csv") or os.path.isfile(text):  # pathlib's own fails on a text longer than a name
        try:
            with Path(text).open(newline="", encoding="utf-8-sig") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidInput(f"--sizes: {text} cannot be read: {error}") from error
        if not rows or "size" not in rows[0]:
            raise InvalidInput(f"--sizes: {text} needs a header with a column 'size' (and perhaps 'client'), and rows")
        pairs = [(row.get("client") or str(i), row["size"]) for i, row in enumerate(rows)]
    else:
        pairs = [(str(i), part) for i, part in enumerate(text.split(","))]
    numbers = []
    for name, part in pairs:
        try:
            numbers.append(float(part))
        except (TypeError, ValueError):
            raise InvalidInput(f"--sizes: client {name} has size {part!r}, which is not a number") from None
    weights = np.array(numbers)
    dagc.allocate(weights, ratio=0.5, method="uniform")  # refuses NaN, negative and empty ones with the reason
    return [name for name, _ in pairs], weights


def quantity(text: str, option: str) -> float:
    """11.2M, 8.4Mb/s, 500k: a number with k, M or G."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKMG]?)(?:b/s|bit/s|bps)?\s*", text)
    try:
        number = (
            float(match.group(1)) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[match.group(2)]
            if match
            else math.nan
        )
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"{option} is {text!r}: write a number with k, M or G, e.g. 11.2M or 8.4Mb/s")
    return number
