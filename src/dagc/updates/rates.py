"""What coding is expected to cost and to carry: for columns of factors, and for entries of a tensor."""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEAD", "STEP_PER_PRICE", "Histogram", "entries_worth", "factor_rates"]

Reals = NDArray[np.float64]
DEAD = 0.58
"""Factors are rounded up from this fraction on."""
STEP_PER_PRICE = 6 / np.log(2)
"""step² per λ (energy per bit): where a finer uniform quantizer gains as much as its bits are worth."""
BINS = 512
"""Half octaves of magnitudes: exponent and first bit of the mantissa."""


@cache
def _gaussian() -> tuple[Reals, Reals, Reals]:
    """By log₂ of standard deviation over step: bits per integer, and the share of the energy that is kept."""
    x = (np.arange(4001) - 2000) / 250
    weight = np.exp(-x * x / 2)
    weight /= weight.sum()
    logs = np.arange(-4, 6.01, 0.125)
    bits, kept = [], []
    for log in logs:
        scaled = np.abs(x) * 2.0**log
        levels = np.floor(scaled + 1 - DEAD)
        levels[scaled < DEAD] = 0
        mass = np.bincount(levels.astype(int), weight)
        mass = mass[mass > 0]
        nonzero = weight[levels > 0].sum()
        bits.append(-(mass * np.log2(mass)).sum() + nonzero)
        product, square = (weight * scaled * levels).sum(), (weight * levels * levels).sum()
        kept.append(product**2 / square / (weight * scaled * scaled).sum() if square else 0.0)
    return logs, np.array(bits), np.array(kept)


def factor_rates(ratios: Reals) -> tuple[Reals, Reals]:
    """Bits per integer and the share of energy kept, for Gaussian factors of this standard deviation over the step."""
    logs, bits, kept = _gaussian()
    at = np.log2(np.maximum(ratios, 1e-9))
    return np.interp(at, logs, bits), np.interp(at, logs, kept)


class Histogram(NamedTuple):
    """How many entries of each tensor have which magnitude, and their energy, from the largest down, summed up."""

    count: Reals
    energy: Reals
    edges: Reals

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> "Histogram":
        """Of the entries of one tensor."""
        bins = (values.view(np.uint32) & np.uint32(0x7FFFFFFF)) >> np.uint32(22)
        count = np.bincount(bins, minlength=BINS).astype(np.float64)
        energy = np.bincount(bins, np.square(values, dtype=np.float64), minlength=BINS)
        lower = (np.arange(BINS, dtype=np.uint32) << np.uint32(22)).view(np.float32).astype(np.float64)
        lower[BINS - 2 :] = 2.0**128  # infinite: nothing is there
        return cls(np.cumsum(count[::-1]), np.cumsum(energy[::-1]), lower[::-1])


def entries_worth(histogram: Histogram, price: float) -> tuple[float, float, float]:
    """Entries, bits and energy that pay at this price (energy per bit)."""
    count, energy, edges = histogram
    size = count[-1]
    many = np.maximum(count, 1)
    square = price * STEP_PER_PRICE
    own = np.diff(count, prepend=0.0)
    levels = np.cumsum(own * np.log2(1 + 0.75 * edges / np.sqrt(square)))
    bits = many * (np.log2(size / many) + 1.5 * (1 - many / size) + 1.7) + 1.1 * levels
    noise = many * np.minimum(square / 12, np.square(edges))
    gain = energy - noise - price * bits
    best = int(np.argmax(gain))
    if gain[best] <= 0:
        return 0.0, 0.0, 0.0
    return float(count[best]), float(bits[best]), float(energy[best] - noise[best])
