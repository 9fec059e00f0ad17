"""The coder's inner loops: the walk over all coordinates that estimates how likely each is. `dagc.wire.coder` explains.

Integers only, so every machine computes the same. Compiled, or run as they are by plain Python (`dagc._numba`).
"""

from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from dagc._numba import kernel
from dagc.wire._kernels import READ, WRITE, begin, code, finish, plain_number

__all__ = ["LEARN", "READ", "STARTS", "WRITE", "Frame", "Past", "Tables", "begin", "walk"]

LEARN = 2  # neither read nor write, but count a frame
STARTS = PHASE, NEAR, COLUMN, GAP, GAP_TWO, ROW = 0, 18, 27, 36, 44, 52
"""Where the contexts of each table begin; the last has one for each row."""
FAR = 65  # longer distances count as this one
STEP = 94548  # the largest move of a weight: 1 / ln 2 octaves
LIMIT = 12 << 16  # no weight is farther from 0
WIDEST = 3072


def _root(fraction: int) -> int:
    """2^(30 + fraction / 256), rounded down, by taking the square root eight times."""
    power = 1 << (256 * 30 + fraction)
    for _ in range(8):
        power = isqrt(power)
    return power


ROOTS = np.array([_root(fraction) for fraction in range(256)], dtype=np.int64)
PHASES = 7 + np.searchsorted((4, 6, 7, 8, 9, 10, 12, 16, 24), np.arange(48), side="right")  # by eighths of an interval
OCTAVES = np.array([min((distance - 1).bit_length(), 7) for distance in range(FAR + 1)], dtype=np.int64)
"""By distance: log₂, rounded up."""
FLOORS = np.array([max(age.bit_length() - 1, 0) for age in range(129)], dtype=np.int64)  # by age: log₂, rounded down


class Past(NamedTuple):
    """What happened before this frame."""

    rows: Any  # start, length and first column of each row of each tensor, in turn
    last: Any  # the frame in which each coordinate was last sent; 0 if never; empty if there are no clocks
    interval: Any  # twice the frames between the last two times it was sent, plus 1 if its value was negative
    columns: Any  # how long ago each column was last in a frame, in octaves
    now: int  # the number of this frame
    size: int  # how many coordinates there are


class Tables(NamedTuple):
    """What was learned: the weight of each context and what was seen of it; and the statistics of signs."""

    weights: Any
    seen: Any
    chances: Any
    trials: Any
    leans: Any


class Frame(NamedTuple):
    """The entries, filled in when reading: one place more than there can be."""

    indices: Any
    negative: Any
    signs: bool  # whether they and the mean magnitude are coded
    most: int  # entries there can be, which is also the usual number; -1 if the reader does not know it


@kernel
def _head(mode, data, coder, frame, count, mean, mean_before):
    """Code the number of entries, and the mean magnitude; the number is -1 if the bytes are invalid."""
    if frame.most < 0:
        count, coder = plain_number(mode, data, coder, count, 5)
    else:
        full, coder = code(mode, data, coder, 1 if count == frame.most else 0, 65280)
        less = -1
        if not full:
            less, coder = plain_number(mode, data, coder, frame.most - 1 - count, 0)
        count = frame.most - 1 - less
    if count < 0 or count >= len(frame.indices):
        return -1, mean, coder
    if frame.signs and count:
        moved = mean - mean_before
        folded, coder = plain_number(mode, data, coder, 2 * moved if moved >= 0 else -2 * moved - 1, 4)
        mean = mean_before + (-(folded >> 1) - 1 if folded & 1 else folded >> 1)
        if mean < 0 or mean >= 0x7F80:
            return -1, mean, coder
    return count, mean, coder


@kernel
def _phase(now, last, interval):
    """Where a coordinate is in its cycle, 0 to 17: never sent, sent once and how long ago, or age / interval."""
    if not last:
        return 0
    age = now - last
    if not interval:
        return 1 + min(FLOORS[min(age, 128)], 5)
    eighths = 8 * age // interval
    return PHASES[eighths] if eighths < len(PHASES) else 17


@kernel
def _exponential(log):
    """2^(16 + log / 256), rounded down, for logarithms that are not too large or small."""
    log = min(max(log, -WIDEST), WIDEST)
    return ROOTS[log & 255] >> (14 - (log >> 8))


@kernel
def _weigh(weights, past, logs, contexts):
    """Fill in each coordinate's weight, in 256ths of an octave, and its contexts. Returns the sum of 2^weight.

    This part is known before the frame. Contexts are 16 · phase + recency of the more recent neighbor.
    """
    total = 0
    now, last = past.now, past.last
    for r in range(len(past.rows) // 3):
        start, length, column = past.rows[3 * r], past.rows[3 * r + 1], past.rows[3 * r + 2]
        for c in range(length):
            i = start + c
            weight = weights[ROW + r] + weights[COLUMN + past.columns[column + c]]
            if len(last):
                phase = _phase(now, int(last[i]), int(past.interval[i]) >> 1)
                before = last[i - 1] if c > 0 else 0
                after = last[i + 1] if c + 1 < length else 0
                recent = int(max(before, after))
                near = FLOORS[min(now - recent, 128)] if recent else 8
                weight += weights[PHASE + phase] + weights[NEAR + near]
                contexts[i] = 16 * phase + near
            logs[i] = weight >> 8
            total += _exponential(logs[i])
    return total


@kernel
def _sign(mode, data, coder, tables, r, before, sign):
    """Code the sign of an entry in row `r`; `before` is 0 if it was never sent, else 1 + whether it was negative."""
    lean = tables.leans[r]
    context = 3 * (lean + 8) + before
    chance, trials = tables.chances[context], tables.trials[context]
    if mode != LEARN:
        sign, coder = code(mode, data, coder, sign, chance)
    target = 65472 if sign else 64
    tables.chances[context] = chance + (target - chance) * 2 // (2 * trials + 3)
    tables.trials[context] = min(trials + 1, 255)
    tables.leans[r] = max(lean - 1, -8) if sign else min(lean + 1, 8)
    return sign, coder


@kernel
def _learn(tables, hits, exposure):
    """Move each weight by the surplus of entries over the expected number: the more was seen before, the less."""
    for j in range(len(exposure)):
        if exposure[j] > 0:
            seen = tables.seen[j]
            seen += exposure[j] - (seen >> 7)
            tables.seen[j] = seen
            move = ((hits[j] << 16) - exposure[j]) * STEP // seen
            tables.weights[j] = min(max(tables.weights[j] + min(max(move, -STEP), STEP), -LIMIT), LIMIT)


@kernel
def walk(mode, data, coder, tables, past, frame, count, mean, mean_before):
    """Code a frame's entries and update the tables, or only learn from the entries.

    The number of entries and their mean magnitude, in bf16, may be anything when reading. Returns both, and the number
    of bytes; the number of entries is -1 if the bytes are invalid or too few.
    """
    if mode != LEARN:
        count, mean, coder = _head(mode, data, coder, frame, count, mean, mean_before)
        if count < 0:
            return -1, mean, 0
    size, clocks = past.size, len(past.last) > 0
    logs, contexts = np.empty(size, np.int32), np.empty(size if clocks else 0, np.int16)
    hits, exposure = np.zeros(len(tables.weights), np.int64), np.zeros(len(tables.weights), np.int64)
    total = _weigh(tables.weights, past, logs, contexts)
    coded, previous, earlier = 0, -FAR, -FAR
    for r in range(len(past.rows) // 3):
        start, length, column = past.rows[3 * r], past.rows[3 * r + 1], past.rows[3 * r + 2]
        for i in range(start, start + length):
            if coded == count:
                break
            gap, gap_two = GAP + OCTAVES[min(i - previous, FAR)], GAP_TWO + OCTAVES[min(i - earlier, FAR)]
            probability, bit = 65536, 1
            if size - i > count - coded:
                weight = _exponential(logs[i] + ((tables.weights[gap] + tables.weights[gap_two]) >> 8))
                probability = min(max(((count - coded) * weight << 16) // max(total, 1), 1), 63488)
                bit = 1 if mode != READ and frame.indices[coded] == i else 0
                if mode != LEARN:
                    bit, coder = code(mode, data, coder, bit, probability)
            total -= _exponential(logs[i])
            if bit:
                if frame.signs:
                    before = 1 + (past.interval[i] & 1) if clocks and past.last[i] else 0
                    sign = frame.negative[coded] if mode != READ else 0
                    frame.negative[coded], coder = _sign(mode, data, coder, tables, r, before, sign)
                frame.indices[coded] = i
                coded += 1
                earlier, previous = previous, i
            for context in (gap, gap_two, COLUMN + past.columns[column + i - start], ROW + r):
                hits[context] += bit
                exposure[context] += probability
            if clocks:
                for context in (PHASE + (contexts[i] >> 4), NEAR + (contexts[i] & 15)):
                    hits[context] += bit
                    exposure[context] += probability
    done = finish(mode, data, coder) if mode != LEARN else 0
    if not 0 <= done <= len(data):
        return -1, mean, 0
    _learn(tables, hits, exposure)
    return count, mean, done
