"""What pays at a price of a bit: how many terms of each matrix, or how many entries of each tensor."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEAD", "STEP_PER_PRICE", "Choice", "Rates", "gaussian"]

Reals = NDArray[np.float64]
DEAD = 0.58  # factors are rounded up from this fraction on
STEP_PER_PRICE = 6 / np.log(2)
"""step² per λ (energy per bit): where a finer uniform quantizer gains as much as its bits are worth."""
COST = 0.95  # what factors take of the bits that Gaussian ones would, as a first guess
DISCOUNT = 0.8  # what entries must bring of what terms bring: most of them can be sent after the terms, too
FINEST = 18  # all bits together are not bought for less than the energy over 2^18
OCTAVES = 48  # half octaves below the largest magnitude that are looked at


@cache
def gaussian() -> tuple[Reals, Reals, Reals]:
    """By log₂ of standard deviation over step: bits per integer of Gaussian factors, and the share of energy kept."""
    x = (np.arange(4001) - 2000) / 250
    weight = np.exp(-x * x / 2)
    weight /= weight.sum()
    logs = np.arange(-4, 8.01, 0.125)
    bits, kept = [], []
    for log in logs:
        scaled = np.abs(x) * 2.0**log
        levels = np.floor(scaled + 1 - DEAD)
        mass = np.bincount(levels.astype(int), weight)
        mass = mass[mass > 0]
        nonzero = weight[levels > 0].sum()
        bits.append(-(mass * np.log2(mass)).sum() + nonzero)
        product, square = (weight * scaled * levels).sum(), (weight * levels * levels).sum()
        kept.append(product**2 / square / (weight * scaled * scaled).sum() if square else 0.0)
    return logs, np.array(bits), np.array(kept)


class Choice(NamedTuple):
    """What pays at a price: the terms of each tensor, expected bits and energy of all, and the bits of entries."""

    price: float
    terms: NDArray[np.int64]
    bits: float
    energy: float
    entry_bits: float


class Rates:
    """What every tensor offers: squares of singular values; entries by half octave, and their energy."""

    def __init__(
        self, extents: Sequence[tuple[int, int, int]], count: Reals, energy: Reals, spectra: Sequence[Reals]
    ) -> None:
        self.total = float(energy.sum())
        self.cost = COST
        largest = int(np.flatnonzero(count.any(axis=0))[-1])
        bins = np.arange(largest, max(largest - OCTAVES, 0), -1)
        edges = (bins.astype(np.uint32) << np.uint32(22)).view(np.float32).astype(np.float64)
        self._edges, self._edge_squares = 0.75 * edges, edges * edges
        self._each = count[:, bins]
        self._count = np.cumsum(self._each, axis=1)
        self._energy = np.cumsum(energy[:, bins], axis=1)
        sizes = np.array([rows * columns for _, rows, columns in extents], dtype=np.float64)[:, None]
        many = np.maximum(self._count, 1)
        where = np.log2(np.maximum(sizes / many, 1)) + 1.5 * np.maximum(1 - many / sizes, 0)
        self._place_bits = many * (where + 1.7)
        self._tensors = np.arange(len(spectra))
        self._tensor = np.repeat(self._tensors, [len(each) for each in spectra])
        self._squares = np.concatenate([np.zeros(0), *spectra])
        sides = np.array([sides for _, *sides in extents], dtype=np.float64)
        self._sides = sides[self._tensor].reshape(-1, 2).T
        self._side_logs = np.log2(self._sides) / 2
        self._logs = np.log2(np.maximum(self._squares, 1e-300)) / 2

    def at(self, price: float) -> Choice:
        """What pays at this energy per bit."""
        square = price * STEP_PER_PRICE
        levels = np.cumsum(self._each * np.log2(1 + self._edges / np.sqrt(square)), axis=1)
        bits = self._place_bits + 1.1 * levels
        energy = self._energy - self._count * np.minimum(square / 12, self._edge_squares)
        net = energy - price * bits
        best, tensors = net.argmax(axis=1), self._tensors
        worth = np.maximum(net[tensors, best], 0)
        step = np.log2(square) / 2
        logs, gaussian_bits, gaussian_kept = gaussian()
        at = self._logs - step - self._side_logs
        left_bits, right_bits = self.cost * self._sides * np.interp(at, logs, gaussian_bits)
        left_kept, right_kept = np.interp(at, logs, gaussian_kept)
        cost, kept = 9.0 + left_bits + right_bits, self._squares * left_kept * right_kept
        pays = kept > price * cost
        terms_energy, terms_bits = (
            np.bincount(self._tensor, pays * each, minlength=len(best)) for each in (kept, cost)
        )
        better = terms_energy - price * terms_bits > DISCOUNT * worth
        terms = np.where(better, np.bincount(self._tensor, pays, minlength=len(best)), 0).astype(np.int64)
        sparse = (worth > 0) & ~better
        entry_bits, entry_energy = (float(each[tensors, best][sparse].sum()) for each in (bits, energy))
        all_bits, all_energy = entry_bits + terms_bits[better].sum(), entry_energy + terms_energy[better].sum()
        return Choice(price, terms, float(all_bits), float(all_energy), entry_bits)

    def choice(self, bits: float, share: float | None, near: float | None = None) -> Choice:
        """What pays at the highest price, maybe near this one, at which it takes all bits, or carries the share."""
        floor = np.log2(self.total) - FINEST - np.log2(bits)
        middle = floor + 20 if near is None else np.log2(near)
        width = 20.0 if near is None else 1.0
        highest, chosen = 2.0 ** (middle + width), None
        while width > 0.016:
            width /= 2
            trial = self.at(2.0**middle)
            enough = trial.bits > bits or (share is not None and trial.energy >= share * self.total)
            chosen = chosen if enough else trial
            middle += width if enough else -width
        return chosen or self.at(highest)
