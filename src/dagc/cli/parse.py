"""Parsing of client sizes, quantities and link rates on the command line."""

import math
import re

import dagc
from dagc.errors import InvalidInput

__all__ = ["client_sizes", "link_rate", "quantity"]

PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
AMOUNT = re.compile(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kKMG]?)(bit/s|b/s|bps|B/s|)\s*")


def client_sizes(text: str) -> list[float]:
    """Examples per client, from numbers separated by commas."""
    sizes = []
    for client, part in enumerate(text.split(",")):
        try:
            sizes.append(float(part))
        except ValueError:
            raise InvalidInput(f"--sizes: client {client} has size {part!r:.100}, which is not a number") from None
    dagc.allocate(sizes, ratio=0.5, method="uniform")  # refuses NaN, negative and empty ones with the reason
    return sizes


def quantity(text: str, option: str) -> float:
    """Parse a number with k, M or G: 11.2M, 500k."""
    number, _, unit = _amount(text)
    if unit or not math.isfinite(number):
        raise InvalidInput(f"{option} is {text!r:.100}: write a number with k, M or G, e.g. 11.2M")
    return number


def link_rate(text: str, option: str) -> float:
    """Parse a link rate in bits per second: 8.4Mb/s, 500 kbit/s, 1MB/s. Without a unit it is refused."""
    number, prefix, unit = _amount(text)
    if not math.isfinite(number):
        raise InvalidInput(f"{option} is {text!r:.100}: write a rate with its unit, e.g. 8.4Mb/s, 200kb/s or 1MB/s")
    if not unit:
        bare = text.strip()
        full = bare if prefix else f"{bare}M"
        raise InvalidInput(f"{option} is {text!r:.100}: {bare} of what? Write {full}b/s for bits, {full}B/s for bytes")
    if not number > 0:
        raise InvalidInput(f"{option} is {text}: it must be above 0")
    return number * (8 if unit == "B/s" else 1)


def _amount(text: str) -> tuple[float, str, str]:
    """A number, its prefix and its unit; NaN if the text is none."""
    match = AMOUNT.fullmatch(text)
    try:
        return (math.nan, "", "") if match is None else (float(match[1]) * PREFIXES[match[2]], match[2], match[3])
    except ValueError:
        return math.nan, "", ""
