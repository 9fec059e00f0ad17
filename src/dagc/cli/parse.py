"""Parsing of client sizes, quantities, rates and prices on the command line."""

import csv
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

import dagc
from dagc.errors import InvalidInput

__all__ = ["client_sizes", "link_rate", "price", "quantity"]


def client_sizes(text: str) -> tuple[list[str], np.ndarray[Any, np.dtype[np.float64]]]:
    """Names and sizes of the clients, from numbers separated by commas or from a CSV file."""
    if text.lower().endswith(".csv") or os.path.isfile(text):  # Path.is_file fails on texts too long for a name
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
    names, weights = [name for name, _ in pairs], np.array(numbers)
    dagc.allocate(weights, ratio=0.5, method="uniform")  # refuses NaN, negative and empty ones with the reason
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"--sizes: two clients are called {twice!r:.100}: give each its own name")
    return names, weights


def quantity(text: str, option: str) -> float:
    """Parse a number with k, M or G: 11.2M, 500k."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKMG]?)\s*", text)
    number = math.nan if found is None else _number(found[1]) * _PREFIXES[found[2]]
    if not math.isfinite(number):
        raise InvalidInput(f"{option} is {text!r:.100}: write a number with k, M or G, e.g. 11.2M")
    return number


def link_rate(text: str, option: str) -> float:
    """Parse a link rate in bits per second: 8.4Mb/s, 500 kbit/s, 1MB/s. Without a unit it is refused."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKMG]?)(bit/s|b/s|bps|B/s|)\s*", text)
    number = math.nan if found is None else _number(found[1]) * _PREFIXES[found[2]]
    if found is None or not math.isfinite(number):
        raise InvalidInput(f"{option} is {text!r:.100}: write a rate with its unit, e.g. 8.4Mb/s, 200kb/s or 1MB/s")
    if not found[3]:
        bare = f"{found[1]}{found[2]}"
        full = f"{found[1]}{found[2] or 'M'}"
        raise InvalidInput(f"{option} is {text!r:.100}: {bare} of what? Write {full}b/s for bits, {full}B/s for bytes")
    if not number > 0:
        raise InvalidInput(f"{option} is {text}: it must be above 0")
    return number * (8 if found[3] == "B/s" else 1)


def price(text: str, option: str) -> tuple[float, str]:
    """Parse the price of a byte, and the currency if there is one: 10/GB, $0.10/MB, 5 EUR/GB."""
    found = re.fullmatch(r"\s*([^\d\s./+\-−]{0,4})\s*([0-9.]+)\s*([^\d\s./+\-−]{0,4})\s*(?:/\s*([kMG])B)?\s*", text)
    number = math.nan if found is None else _number(found[2])
    if found is None or not math.isfinite(number):
        raise InvalidInput(f"{option} is {text!r:.100}: write a price and what it is for, e.g. 10/GB or 0.1/MB")
    if not found[4]:
        amount = text.strip()
        raise InvalidInput(f"{option} is {text!r:.100}: {amount} for what? Write {amount}/GB or {amount}/MB")
    return number / _PREFIXES[found[4]], found[1] or found[3]


_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
