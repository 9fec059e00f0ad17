"""From a vector to a frame: what to send as terms and what as entries, at one price of a bit for everything.

    1. For each tensor: a histogram of its magnitudes; for each matrix: its leading singular terms.
    2. Find the price (energy per bit) at which what pays takes the bytes, or carries the share of the energy.
    3. Round the factors of the matrices where terms pay more than entries.
    4. Send the largest entries of what is left, as many as fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.errors import InvalidInput
from dagc.sparse import Sparse
from dagc.updates import frame as frames
from dagc.updates.frame import MIXED, MOST_TERMS, Shapes, code_entries, code_head, code_terms, matrices, size_of
from dagc.updates.low_rank import energy_of, one_thread, quantized, subspace
from dagc.updates.rates import STEP_PER_PRICE, Histogram, entries_worth, factor_rates
from dagc.updates.stream import Scale, Stream
from dagc.updates.update import Terms, Update, extents
from dagc.updates.vectors import checked, normalized

__all__ = ["State", "encode_update"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
LOWEST, HIGHEST = -64, 90
"""A vector whose largest entry is below 2^-64 is not worth a frame; of a larger one than 2^90, only a part is sent."""
DEAD = 0.64
"""Levels are rounded up from this fraction on."""
COST = 0.87
"""What factors take of the bits that Gaussian ones would."""
DISCOUNT = 0.5
"""What entries must bring of what terms bring: most of them can be sent after the terms, too."""
REPEATED = 1 << 22
"""In larger models, factors are rounded only once."""
LEAST_BITS = 1.2
"""Per integer of a factor, for the bound of how many terms a frame could hold."""


@dataclass
class State:
    """What helps with the next, similar vector: the right singular vectors of each matrix, by its start."""

    right: dict[int, torch.Tensor] = field(default_factory=dict)


class Spectrum(NamedTuple):
    """A matrix and its leading terms."""

    start: int
    matrix: torch.Tensor
    right: torch.Tensor
    sigmas: torch.Tensor
    energies: NDArray[np.float64]


class Choice(NamedTuple):
    """What pays at a price: terms by matrix, expected bits and energy, and those of entries."""

    terms: dict[int, int]
    bits: float
    energy: float
    entry_bits: float


def encode_update(
    vector: Any,
    shapes: Shapes,
    max_bytes: int | None = None,
    *,
    share: float | None = None,
    state: State | None = None,
    round: int = 0,
) -> tuple[bytes, Update]:
    """Encode as much of the vector's energy as possible within a number of bytes, or a share of it in few bytes.

    Args:
        vector: The values of all tensors, one after the other.
        shapes: The shapes of these tensors.
        max_bytes: The longest frame. If it is too short for anything, the frame is empty.
        share: The share of the energy that the frame must carry, above 0 and up to 1, unless `max_bytes` forbids it.
        state: What is kept from vector to vector, to be faster.
        round: Both sides must know it: the checksum covers it.

    Returns:
        The frame, and the update that it decodes to.

    Raises:
        NonFiniteGradient: If the vector has NaN or infinite entries.

    Example:
        >>> vector = torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 5)).reshape(-1)
        >>> frame, update = encode_update(vector, [(8, 4)], 40)
        >>> len(frame) <= 40, update.energy > 0.9 * float(vector.square().sum())
        (True, True)
    """
    values, shift = normalized(checked(vector, size_of(shapes)))
    if max_bytes is None and share is None:
        raise InvalidInput("give max_bytes, the longest frame, or share, the part of the energy to carry")
    if share is not None and not 0 < share <= 1:
        raise InvalidInput(f"share must be above 0 and at most 1, not {share}")
    limit = 8 * len(values) + 64 if max_bytes is None else max_bytes
    with one_thread():
        return _Job(values, shift, shapes, frames.most_body(limit), share, state).run(round)


class _Job:
    """One vector on its way into a frame."""

    def __init__(
        self, values: Floats, shift: int, shapes: Shapes, room: int, share: float | None, state: State | None
    ) -> None:
        self.shift = min(shift, HIGHEST)
        self.values, self.shapes, self.room, self.share = values, shapes, room, share
        self.state = State() if state is None else state
        self.parts = extents(shapes)
        self.histograms = [Histogram.of(values[start : start + r * c]) for start, r, c in self.parts]
        self.cost = COST
        self.total = float(sum(histogram.energy[-1] for histogram in self.histograms))

    def run(self, round: int) -> tuple[bytes, Update]:
        size = len(self.values)
        if self.room < 6 or self.total == 0 or self.shift < LOWEST:
            return b"", Update.empty(size)
        spectra = self.spectra()
        stream, terms, step = self.begin(spectra)
        left = self.values.copy()
        rest = Update(size, Sparse(size, [], []), tuple(terms))
        rest.subtract_from(torch.from_numpy(left))
        return self.fill(stream, left, terms, step, round)

    def begin(self, spectra: Sequence[Spectrum]) -> tuple[Stream, list[Terms], Scale]:
        """The stream with the terms that pay. What they really take corrects the expectation."""
        for attempt in range(8):
            price = self.price(spectra)
            choice = self.choose(spectra, price)
            terms, step = self.terms(spectra, choice, price)
            stream = self.start(terms, step)
            if not terms:
                break
            real = 8 * stream.used / (choice.bits - choice.entry_bits) * self.cost
            if stream.used + 5 > self.room:
                self.cost = max(real, self.cost) * 1.02
                continue
            short = 8 * stream.used + choice.entry_bits < 0.96 * 8 * self.room
            if not short or attempt > 1 or self.share is not None or len(self.values) > REPEATED:
                break
            self.cost = real
        else:
            terms, stream = [], self.start([], step)
        return stream, terms, step

    def spectra(self) -> list[Spectrum]:
        """The leading terms of each matrix that could hold some of the frame's energy."""
        found = []
        whole = torch.from_numpy(self.values)
        for (start, rows, columns), histogram in zip(self.parts, self.histograms, strict=True):
            energy = float(histogram.energy[-1])
            if min(rows, columns) < 2 or energy == 0:
                continue
            afford = int(self.room * 8 / (LEAST_BITS * (rows + columns)))
            rank = min(rows, columns, MOST_TERMS, afford, 64)
            if rank < 1:
                continue
            matrix = whole[start : start + rows * columns].view(rows, columns)
            right, sigmas = subspace(matrix, rank, self.state.right.get(start))
            self.state.right[start] = right
            found.append(Spectrum(start, matrix, right, sigmas, sigmas.square().numpy()))
        return found

    def choose(self, spectra: Sequence[Spectrum], price: float) -> Choice:
        """What pays at this price."""
        step = np.sqrt(price * STEP_PER_PRICE)
        terms: dict[int, int] = {}
        bits = energy = entry_bits = 0.0
        by_start = {spectrum.start: spectrum for spectrum in spectra}
        for (start, rows, columns), histogram in zip(self.parts, self.histograms, strict=True):
            _, some_bits, some_energy = entries_worth(histogram, price)
            worth = DISCOUNT * (some_energy - price * some_bits)
            spectrum = by_start.get(start)
            if spectrum is not None:
                sigma = np.sqrt(spectrum.energies)
                (left_bits, left_kept), (right_bits, right_kept) = (
                    factor_rates(sigma / step / np.sqrt(length)) for length in (rows, columns)
                )
                cost = self.cost * (rows * left_bits + columns * right_bits) + 9
                kept = spectrum.energies * left_kept * right_kept
                pays = kept > price * cost
                count = int(np.argmin(pays)) if not pays.all() else len(pays)
                if count and (kept - price * cost)[:count].sum() > worth:
                    terms[start] = count
                    bits += float(cost[:count].sum())
                    energy += float(kept[:count].sum())
                    continue
            bits += some_bits
            entry_bits += some_bits
            energy += some_energy
        return Choice(terms, bits, energy, entry_bits)

    def price(self, spectra: Sequence[Spectrum]) -> float:
        """The highest price at which what pays takes at least the room, or carries the share."""
        high = np.log2(self.total)
        low = high - 60
        for _ in range(24):
            middle = (low + high) / 2
            choice = self.choose(spectra, 2.0**middle)
            enough = choice.bits > 8 * (self.room - 8)
            if self.share is not None:
                enough = enough or choice.energy >= self.share * self.total
            low, high = (middle, high) if enough else (low, middle)
        return float(2.0**high)

    def terms(self, spectra: Sequence[Spectrum], choice: Choice, price: float) -> tuple[list[Terms], Scale]:
        """The factors of the chosen terms as integers."""
        step = Scale.near(float(np.sqrt(price * STEP_PER_PRICE)))
        done = []
        for start, matrix, right, sigmas, _ in spectra:
            count = choice.terms.get(start, 0)
            if count:
                got = quantized(matrix, start, right[:, :count], sigmas[:count], step)
                if got is not None:
                    done.append(got[0])
        return done, step

    def start(self, terms: Sequence[Terms], step: Scale) -> Stream:
        """A stream with the head and the terms."""
        stream = Stream(np.zeros(self.room - 1, dtype=np.uint8), writing=True)
        step = Scale(step + 16 * self.shift)
        code_head(stream, step, bool(terms))
        if terms:
            code_terms(stream, step, self.shapes, [self.shifted(part) for part in terms])
        return stream

    def shifted(self, terms: Terms) -> Terms:
        """The terms of the vector as it was before it was normalized."""
        return replace(terms, exponent=terms.exponent + self.shift)

    def fill(
        self, stream: Stream, left: Floats, terms: list[Terms], step: Scale, round: int
    ) -> tuple[bytes, Update]:
        """Add as many of the largest entries as fit."""
        size = len(left)
        sizes = np.abs(left)
        spare = 8 * (self.room - stream.used)
        most = min(int(spare / 2.5) + 8, int(np.count_nonzero(sizes)))
        order = np.argpartition(sizes, size - most)[size - most :] if 0 < most < size else np.arange(size)
        order = order[np.lexsort((order, -sizes[order]))][:most]
        squares = np.cumsum(np.square(left[order], dtype=np.float64))
        wanted = most
        if self.share is not None:
            carried = self.total - float(np.square(left, dtype=np.float64).sum())
            wanted = min(most, 1 + int(np.searchsorted(squares * 0.93, self.share * self.total - carried)))
        best: tuple[bytes, Sparse] | None = None
        low, high = 0, wanted + 1
        guess = min(wanted, max(1, int(spare / (np.log2(size / max(spare / 10, 1)) + 4.5))))
        for _ in range(12):
            body, sparse, used = self.attempt(stream, left, order[:guess], step, bool(terms))
            if body is not None:
                low, best = guess, (body, sparse)
            else:
                high = guess
            if high - low <= max(1, low // 200):
                break
            ratio = 8 * (used - stream.used) / guess
            guess = min(max(int(spare / ratio), low + 1), high - 1)
            if best is not None and guess - low <= max(1, low // 300) and body is not None:
                break
        if best is None:
            body, sparse, used = self.attempt(stream, left, order[:0], step, bool(terms))
            best = (body or b"", sparse)
        frame = frames.seal(best[0], self.shapes, round) if best[0] else b""
        if not frame:
            return b"", Update.empty(size)
        return frame, Update(size, best[1], tuple(self.shifted(part) for part in terms))

    def attempt(
        self, stream: Stream, left: Floats, chosen: Ints, step: Scale, has_terms: bool
    ) -> tuple[bytes | None, Sparse, int]:
        """The frame's body with these entries, None if it is too long; and how many bytes it takes."""
        indices = np.sort(chosen)
        own, levels, moved = leveled(left[indices], len(left)) if len(indices) else (step, indices, [0, 0, 0])
        stream = stream.copy() if has_terms else self.start([], own)
        step = step if has_terms else own
        shift = 16 * self.shift
        sparse = code_entries(stream, Scale(step + shift), self.shapes, indices, levels, (own + shift, *moved))
        done = stream.finish()
        used = stream.used
        return (None if done is None else bytes((MIXED,)) + done), sparse, used


def leveled(values: Floats, size: int) -> tuple[Scale, Ints, list[int]]:
    """The step, the levels, and what moves them: for these entries of a vector of this size."""
    sizes = np.abs(values.astype(np.float64))
    bits = np.log2(size / len(values)) + 4
    step = Scale.near(float(sizes.min()) * np.sqrt(STEP_PER_PRICE / bits))
    few = len(values) < frames.OFFSETS_FROM
    for _ in range(3 if few else 1):
        whole = np.clip(np.floor(sizes / step.value + (1 - DEAD)), 1, 65535).astype(np.int64)
        if few:  # without offsets, the step itself is what fits best
            step = Scale.near(float((sizes * whole).sum() / (whole * whole).sum()))
    moved = [0, 0, 0]
    for level in (1, 2, 3) if not few else ():
        here = whole == level if level < 3 else whole >= 3
        error = float((sizes[here] / step.value - whole[here]).mean()) if here.any() else 0.0
        moved[level - 1] = int(np.clip(np.rint(16 * error), -8, 7))
    return step, np.where(values < 0, -whole, whole), moved
