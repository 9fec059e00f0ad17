"""Numbers as people read them, and text of strangers made safe for a terminal and HTML."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Units = Sequence[tuple[float, str]]
BYTE_UNITS: Units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
TIME_UNITS: Units = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
"""Units from the largest to the smallest; the page's script uses the same tables."""
SMALL_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, NaN if a number is, and the standard deviation between them, if there are two or more."""

    mean: float
    sd: float | None = None


def in_bytes(amount: float) -> str:
    """A number of bytes with a unit and three significant digits: 999 B, 314 kB, 1.00 MB."""
    return _in_units(amount, BYTE_UNITS)


def in_seconds(amount: float) -> str:
    """A time with a unit: 0.0123 s, 1.00 min, 1.39 h."""
    return f"{amount:.3g} s" if amount < 0.9995 else _in_units(amount, TIME_UNITS)


def percent(value: Spread, digits: int = 2) -> str:
    """A fraction as a percentage, with its spread: 83.12 ± 0.20 %."""
    if math.isnan(value.mean):
        return "–"
    spread = "" if value.sd is None else f" ± {100 * value.sd:.{digits}f}"
    return f"{100 * value.mean:.{digits}f}{spread} %"


def brief(number: float) -> str:
    """A factor or a number of seconds, with few digits: 0.012, 1.0, 1,234."""
    if 0 < number < 0.1:
        return f"{number:.2g}"
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def count(number: float, noun: str, words: bool = False) -> str:
    """A number of things: 1 round, 1,234 rounds; on request, small numbers as words: ten clients."""
    figures = f"{number:,.0f}"
    plural = "" if figures == "1" else "s"
    return f"{SMALL_COUNTS[int(figures)] if words and number < len(SMALL_COUNTS) - 0.5 else figures} {noun}{plural}"


def capital(text: str) -> str:
    """The text with a capital first letter; the others stay as they are: `R² of a test`."""
    return text[:1].upper() + text[1:]


def printable(text: object) -> str:
    r"""The text with every character that a terminal could obey or that nobody can see as its escape.

    Example:
        >>> print(printable("a\x1b[2J cat\u202e"))
        a\x1b[2J cat\u202e
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(text))


def to_html(text: object) -> str:
    """The text for an HTML page."""
    return escape(printable(text))


def _in_units(amount: float, units: Units) -> str:
    amount = float(f"{amount:.3g}")  # before the unit is chosen: 999.7 kB are 1.00 MB
    size, unit = next((each for each in units if amount >= each[0]), units[-1])
    scaled = amount / size
    digits = 0 if unit == "B" or not scaled else max(0, 2 - int(math.log10(scaled)))
    return f"{scaled:,.{digits}f} {unit}"
