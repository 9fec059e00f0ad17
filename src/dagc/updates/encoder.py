"""From a vector to a frame: what to send as terms and what as entries, at one price of a bit for everything.

1. For each tensor: a histogram of its magnitudes; for each matrix: its leading singular terms.
2. Find the price (energy per bit) at which what pays takes the bytes, or carries the share of the energy.
3. Round the factors of the matrices where terms pay more than entries.
4. Send the largest entries of what is left, as many as fit.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.errors import InvalidInput
from dagc.sparse import Sparse
from dagc.updates._kernels import MOST_LEVEL
from dagc.updates.frame import (
    MIXED,
    MOST_TERMS,
    NONE,
    OFFSETS_FROM,
    Entries,
    code_entries,
    code_head,
    code_terms,
    most_body,
    seal,
    size_of,
    values_of,
)
from dagc.updates.low_rank import leading, one_thread, quantized
from dagc.updates.rates import STEP_PER_PRICE, Choice, Rates
from dagc.updates.stream import Stream, nearest, value_of
from dagc.updates.update import Terms, Update
from dagc.updates.vectors import checked, count_magnitudes, energy_of, largest_entries, normalized
from dagc.wire.shapes import Shapes, extents

__all__ = ["encode_update"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Spectrum = tuple[torch.Tensor, torch.Tensor]
LOWEST, HIGHEST = -64, 90
"""A vector whose largest entry is below 2^-64 is not worth a frame; of a larger one than 2^90, only a part is sent."""
RANGE, SMALLEST = 8192.0, -90
"""Entries smaller than the largest by this factor, or than 2^-90, stay: one step must fit all that are sent."""
DEAD = 0.64  # levels are rounded up from this fraction on
REPEATED = 1 << 22  # in larger models, factors that leave bytes free are not rounded again
SHORTEST = 6  # bytes of a body: a shorter one holds nothing
MOST_ATTEMPTS = 8  # how often factors are rounded until their bytes are right
FULL = 0.93  # terms and expected entries that fill this part of the bytes are enough: more entries fill the rest
FEWEST_BITS, USUAL_BITS, USUAL_TERMS = 1.2, 2.2, 4
"""What an integer of a factor takes: the bound of how many terms to look for; above four, the usual number."""


def encode_update(
    vector: Any,
    shapes: Shapes,
    max_bytes: int | None = None,
    *,
    share: float | None = None,
    least_bytes: int = 0,
    round: int = 0,
    most_terms: int = MOST_TERMS,
) -> tuple[bytes, Update]:
    """Encode as much of the vector's energy as possible within a number of bytes, or a share of it in few bytes.

    The vector holds the values of all tensors; `NonFiniteGradient` if one is NaN or infinite. If `max_bytes` is too
    short for anything, the frame is empty, whatever share it must carry. With both, `least_bytes` are used even if they
    carry more than the share. A matrix has at most so many terms. Returns
    the frame, and the update that it decodes to.

    Example:
        >>> vector = torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 5)).reshape(-1)
        >>> frame, update = encode_update(vector, [(8, 4)], 40)
        >>> len(frame) <= 40, update.energy > 0.9 * float(vector.square().sum())
        (True, True)
    """
    if max_bytes is None and share is None:
        raise InvalidInput("give max_bytes, the longest frame, or share, the part of the energy to carry")
    if share is not None and not 0 < share <= 1:
        raise InvalidInput(f"share must be above 0 and at most 1, not {share}")
    if not 0 <= most_terms <= MOST_TERMS:
        raise InvalidInput(f"most_terms must be from 0 to {MOST_TERMS}, not {most_terms}")
    size = size_of(shapes)
    values, shift, largest = normalized(checked(vector, size))
    longest = 8 * size + 64
    room = most_body(longest if max_bytes is None else min(max_bytes, longest))
    with one_thread(), torch.no_grad():
        least = most_body(min(least_bytes, longest)) if share is not None else 0
        least = least if least >= SHORTEST else 0
        body, update = _Job(values, min(shift, HIGHEST), largest, shapes, room, share, least, most_terms).run()
    return (seal(body, shapes, round) if body else b""), update


@dataclass
class _Job:
    """One vector on its way into a frame: all that is computed is over 2^shift."""

    values: torch.Tensor
    shift: int
    largest: float
    shapes: Shapes
    room: int
    share: float | None
    least: int
    most_terms: int

    def run(self) -> tuple[bytes | None, Update]:
        """The frame's body and the update; None if nothing is worth a frame."""
        size = len(self.values)
        if self.room < SHORTEST or self.shift < LOWEST or not self.largest:
            return None, Update.empty(size)
        self.parts = extents(self.shapes)
        pieces = torch.split(self.values, [rows * columns for _, rows, columns in self.parts])
        self.matrices = [piece.view(each[1:]) for piece, each in zip(pieces, self.parts, strict=True)]
        count, energy = count_magnitudes(pieces, self.largest)
        self.total = float(energy.sum())  # an estimate
        self.energy = energy_of(self.values) if self.share is not None else 0.0
        most, self.room = self.room, min(self.least or self.room, self.room)
        spectra, rates = self.possible(count, energy)
        if self.least and self.share is not None:
            if rates.choice(8 * max(self.room - 8, 1), None).energy < self.share * self.total:
                self.room = most
                spectra, rates = self.possible(count, energy)
            else:
                self.share = None
        stream, terms, step = self.begin(spectra, rates)
        rest = self.values
        if terms:
            rest = self.values.clone()
            Update(size, Sparse(size, [], []), tuple(terms)).subtract_from(rest)
        body, sparse = self.fill(stream, rest, step, bool(terms))
        if body is None:
            return None, Update.empty(size)
        return body, Update(size, sparse, tuple(self.shifted(each) for each in terms))

    def possible(self, count: NDArray[Any], energy: NDArray[Any]) -> tuple[list[Spectrum], Rates]:
        """What could be sent as terms, and what terms and entries take and carry."""
        spectra = list(map(self.spectrum, self.matrices, energy.sum(axis=1)))
        return spectra, Rates(self.parts, count, energy, [np.square(sigmas.numpy()) for _, sigmas in spectra])

    def spectrum(self, matrix: torch.Tensor, energy: float) -> Spectrum:
        """The leading right singular vectors of a matrix that could be worth sending, and their singular values."""
        rows, columns = matrix.shape
        afford = self.room * 8 / (rows + columns)
        usual = afford / USUAL_BITS * min(1.0, 4 * energy / self.total)
        rank = min(int(min(afford / FEWEST_BITS, max(USUAL_TERMS, usual))), rows, columns, self.most_terms)
        if rank < 1 or min(rows, columns) < 2 or energy == 0:
            return matrix.new_zeros(columns, 0), torch.zeros(0, dtype=torch.float64)
        return leading(matrix, rank)

    def begin(self, spectra: Sequence[Spectrum], rates: Rates) -> tuple[Stream, list[Terms], int]:
        """The stream with the terms that pay. What they really take corrects the expectation."""
        bits = 8 * max(self.room - 8, 1)
        near: float | None = None
        best: tuple[Stream, list[Terms], int] | None = None
        terms: list[Terms] = []
        choice: Choice | None = None
        step, fits, most = 0, True, 0.0
        for _ in range(MOST_ATTEMPTS):
            last, choice = choice, rates.choice(bits, self.share, near)
            near = choice.price if choice.bits > 0.9 * bits else None
            if best and last and choice.price > 0.98 * last.price and (choice.terms == last.terms).all():
                break
            if last is not None and not fits and (choice.terms <= last.terms).all():
                terms = self.fewer(terms, choice)
            else:
                step = int(nearest(np.sqrt(choice.price * STEP_PER_PRICE)))
                terms = self.terms(spectra, choice, step)
            if not terms:
                break
            stream = self.start(terms, step)
            rates.cost *= 8 * stream.used / (choice.bits - choice.entry_bits)
            planned = stream.used + choice.entry_bits / 8
            fits = planned <= 1.01 * self.room and stream.used + 5 <= self.room
            if fits:
                best, most = (stream, terms, step), planned
                if self.share is not None or len(self.values) > REPEATED:
                    break
            else:
                rates.cost *= 1.02
            if most > FULL * self.room or (not fits and most > 0.9 * self.room):
                break
        return best or (self.start([], step), [], step)

    def terms(self, spectra: Sequence[Spectrum], choice: Choice, step: int) -> list[Terms]:
        """The factors of the chosen terms as integers."""
        each = zip(self.matrices, self.parts, spectra, choice.terms, strict=True)
        done = (
            quantized(matrix, start, right[:, :count], sigmas[:count], step)
            for matrix, (start, _, _), (right, sigmas), count in each
            if count
        )
        return [terms for terms in done if terms is not None]

    def fewer(self, terms: Sequence[Terms], choice: Choice) -> list[Terms]:
        """The first of these terms, as many as are chosen: at nearly the same price, they are not rounded again."""
        counts = {start: int(count) for (start, _, _), count in zip(self.parts, choice.terms, strict=True)}
        return [each.first(counts[each.start]) for each in terms if counts[each.start]]

    def start(self, terms: Sequence[Terms], step: int) -> Stream:
        """A stream with the head and the terms."""
        stream = Stream(np.zeros(self.room - 1, dtype=np.uint8), writing=True)
        step += 16 * self.shift
        code_head(stream, step, bool(terms))
        if terms:
            code_terms(stream, step, self.shapes, [self.shifted(each) for each in terms])
        return stream

    def shifted(self, terms: Terms) -> Terms:
        """The terms of the vector as it was before it was normalized."""
        return replace(terms, exponent=terms.exponent + self.shift)

    def fill(self, stream: Stream, rest: torch.Tensor, step: int, has_terms: bool) -> tuple[bytes | None, Sparse]:
        """Add as many of the largest entries as fit, or as the share needs: the frame's body, None if it is empty."""
        spare = 8 * (self.room - stream.used)
        candidates, guess = self.candidates(rest, spare)
        body, sparse, least = self.attempt(stream, candidates, 0, step, has_terms)
        low, high, most = 0, len(candidates.indices) + 1, 0
        guess = min(high - 1, max(1, guess))
        for _ in range(12):
            if high - low <= max(1, low // 200):
                break
            done, entries, used = self.attempt(stream, candidates, guess, step, has_terms)
            if done is not None:
                low, least, body, sparse = guess, used, done, entries
                if (self.room - 1 - used) * 300 <= self.room:
                    break
            else:
                high, most = guess, used
            if most:  # between two lengths, but not too near to one
                margin = (high - low) // 4
                aim = low + (high - low) * (self.room - 1 - least) / (most - least)
            else:
                margin, aim = 1, guess * spare / (8 * max(used - stream.used, 1)) * 0.999
            guess = min(max(int(aim), low + margin, low + 1), high - margin, high - 1)
        return body, sparse

    def candidates(self, rest: torch.Tensor, spare: int) -> tuple["Candidates", int]:
        """All entries that may be sent; and how many of them may fit."""
        size, missing = len(rest), 0.0
        usual = spare / (np.log2(size / max(spare / 10, 1)) + 4.5) if spare < 5 * size else size
        if self.share is not None:
            missing = energy_of(rest) - (1 - self.share) * self.energy
            count, energy = (np.cumsum(part[0, ::-1]) for part in count_magnitudes([rest], self.largest))
            usual = min(usual, count[np.searchsorted(energy[:-1], missing / 0.9)])
        order, values = largest_entries(rest, min(int(3.2 * usual) + 32, size))
        if len(order):
            sizes = np.abs(values)
            floor = max(sizes[0] / RANGE, np.ldexp(1.0, SMALLEST - self.shift))
            order = order[: int(np.searchsorted(-sizes, -floor, side="right"))]
        if self.share is not None:
            order = order[: self.enough(values[: len(order)], missing)]
        ranks = np.argsort(order)
        return Candidates(order[ranks], values[ranks], ranks), int(usual)

    def enough(self, largest: Floats, missing: float) -> int:
        """How many of these entries carry the missing energy."""

        def carried(count: int) -> float:
            if not count:
                return 0.0
            errors = largest[:count] - values_of(*leveled(largest[:count], len(self.values)))
            return float(np.square(largest[:count]).sum() - np.square(errors).sum())

        return bisect_left(range(len(largest)), missing, key=carried)

    def attempt(
        self, stream: Stream, candidates: "Candidates", count: int, step: int, has_terms: bool
    ) -> tuple[bytes | None, Sparse, int]:
        """The frame's body with so many entries, None if it is too long; and how many bytes it takes."""
        chosen = candidates.ranks < count
        indices, values = candidates.indices[chosen], candidates.values[chosen]
        finer, levels, moved = leveled(values, len(self.values)) if len(indices) else (step, indices, NONE)
        stream = stream.copy() if has_terms else self.start([], finer)
        shift = 16 * self.shift
        entries = Entries(indices, levels, finer + shift, moved)
        sparse = code_entries(stream, (step if has_terms else finer) + shift, self.shapes, entries)
        done = stream.finish()
        return (None if done is None else bytes((MIXED,)) + done), sparse, stream.total


class Candidates(NamedTuple):
    """Entries that may be sent, by index."""

    indices: Ints
    values: Floats
    ranks: Ints  # 0 for the largest


def leveled(values: Floats, size: int) -> tuple[int, Ints, Sequence[int]]:
    """The step, the levels, and what moves them: for these entries of a vector of this size."""
    sizes = np.abs(values.astype(np.float64))
    bits = np.log2(size / len(values)) + 4
    step = int(nearest(sizes.min() * np.sqrt(STEP_PER_PRICE / bits)))
    few = len(values) < OFFSETS_FROM
    for _ in range(3 if few else 1):
        whole = np.clip(np.floor(sizes / value_of(step) + (1 - DEAD)), 1, MOST_LEVEL).astype(np.int64)
        if few:  # without offsets, the step itself is what fits best
            step = int(nearest((sizes * whole).sum() / (whole * whole).sum()))
    levels = np.where(values < 0, -whole, whole)
    if few:
        return step, levels, NONE
    moved = []
    for here in (whole == 1, whole == 2, whole >= 3):
        error = float((sizes[here] / value_of(step) - whole[here]).mean()) if here.any() else 0.0
        moved.append(int(np.clip(np.rint(16 * error), -8, 7)))
    return step, levels, moved
