"""The inner loops of an update's frame: adaptive binary decisions, factors, and entries with levels.

Integers only, so every machine computes the same. Each function writes or reads, by its mode, so that both are one
description. `docs/reference/wire-updates.md` has every step.
"""

import numpy as np

from dagc._numba import inlined, kernel
from dagc.wire._kernels import READ, WRITE, code, plain_number, raw

__all__ = ["MOST_FACTOR", "MOST_LEVEL", "ODDS", "SURE", "entries", "histogram", "matrix", "number"]

NUMBER = 0  # where the contexts of small numbers start: four kinds, 16 each
RANK, STEP, COUNT, OTHER = NUMBER, NUMBER + 16, NUMBER + 32, NUMBER + 48
"""How many terms, how scales differ, how many entries, anything else."""
SIGN = NUMBER + 64
FACTOR_SIGN = SIGN + 9
FACTOR = FACTOR_SIGN + 3  # eighteen spreads, three kinds of neighbors before, three beside, twelve magnitudes
MAGNITUDES = 12
SPREADS = 18
PLAIN = 10  # from this spread on, every second one has one more low bit that is sent as it is
GAP_UP = FACTOR + SPREADS * 9 * MAGNITUDES  # four densities, eight octaves above the mean gap; then as many below it
GAP_DOWN = GAP_UP + 32
GAP_TOP = GAP_DOWN + 32
LEVEL = GAP_TOP + 16  # four magnitudes before, 14 magnitudes
LEVELS = 14
ODDS = LEVEL + 4 * LEVELS  # the number of contexts
QUARTERS = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4])
"""Four times log₂ of a mantissa of 16 to 31 over 16, rounded."""
USUAL = np.array([0, 1, 1, 1, 2, 2, 3, 5, 6, 9, 13, 18, 26, 36, 51, 72, 102, 145])
"""Four times the expected magnitude of factors, by spread: their standard deviation is 2^((spread − 6) / 2)."""
SMALLEST_SCALE, LARGEST_SCALE = -126, 100  # exponents of scales
SLOWEST = 60  # how many decisions a context remembers
PACE = np.array([131072 // (2 * seen + 3) for seen in range(SLOWEST + 1)], dtype=np.int64)
"""How far a probability moves, in 65,536ths of the difference: 2 / (2 · decisions seen + 3)."""
MOST_LEVEL, MOST_FACTOR = 32767, 127
SURE = 2048  # no decision is surer than this, in 65,536ths: so that a byte stands for at most 175 decisions


@inlined
def decide(mode, data, coder, odds, context, bit):
    """Code one decision with an adaptive context: its probability, and how many decisions it has seen."""
    chance, seen = odds[2 * context], odds[2 * context + 1]
    bit, coder = code(mode, data, coder, bit, min(max(chance, SURE), 65536 - SURE))
    target = 65535 if bit else 0
    odds[2 * context] = chance + ((target - chance) * PACE[seen] >> 16)
    odds[2 * context + 1] = min(seen + 1, SLOWEST)
    return bit, coder


@kernel
def width_of(number):
    """How many bits a number has."""
    width = 0
    while number >> width:
        width += 1
    return width


@kernel
def number(mode, data, coder, odds, base, value):
    """Code a number of at least 0: how many bits it has plus one, with contexts; then its bits below the first."""
    shifted = value + 1
    width = width_of(shifted) - 1
    count, bit = 0, 1
    while bit and count < 40:
        bit, coder = decide(mode, data, coder, odds, base + min(count, 15), 1 if count < width else 0)
        count += bit
    low, coder = raw(mode, data, coder, count, shifted & ((1 << count) - 1))
    return (1 << count) + low - 1, coder


@kernel
def matrix(mode, data, coder, odds, step, scales, left, right):
    """Code the terms of a matrix: whether the bytes are valid, and the coder afterwards.

    The scales are an array, and `left` and `right` have a row of small integers for each; they are filled in when
    reading. `step` is that of the frame, as a scale.
    """
    last = step
    for term in range(len(scales)):
        moved = scales[term] - last
        folded, coder = number(mode, data, coder, odds, STEP, 2 * moved if moved >= 0 else -2 * moved - 1)
        last += -(folded >> 1) - 1 if folded & 1 else folded >> 1
        if last < 16 * SMALLEST_SCALE or last >= 16 * (LARGEST_SCALE + 1):
            return False, coder
        scales[term] = last
        for side in (left, right):
            valid, coder = factor(mode, data, coder, odds, side, term, spread_of(step, last, side.shape[1]))
            if not valid:
                return False, coder
    return True, coder


@kernel
def spread_of(step, scale, length):
    """The spread of a column of factors: twice log₂ of their expected standard deviation, plus 6, from 0 to 17.

    A term of size σ is coded with the scale step²/σ, so that its unit vectors have steps of step/σ.
    """
    quarters = QUARTERS[step % 16] - QUARTERS[scale % 16] + 4 * (step // 16 - scale // 16)
    halves = (quarters - (width_of(length * length) - 1) + 13) // 2
    return min(max(halves, 0), SPREADS - 1)


@kernel
def factor(mode, data, coder, odds, whole, term, spread):
    """Code row `term` of `whole`, of this spread: whether the bytes are valid, and the coder afterwards."""
    usual = USUAL[spread]
    last, earlier, sign, largest = 0, 0, 0, 0
    low = max(0, (spread - PLAIN) // 2)
    values = whole[term]
    previous, second = whole[max(term - 1, 0)], whole[max(term - 2, 0)]
    for i in range(len(values)):
        before = 0
        if term > 0:
            before = abs(int(previous[i]))
        if term > 1:
            before += abs(int(second[i]))
        recent = 4 * last + 2 * earlier
        beside = 0 if 4 * recent < 3 * usual else (1 if recent < 2 * usual else 2)
        base = FACTOR + ((spread * 3 + min(before, 2)) * 3 + beside) * MAGNITUDES
        value = int(values[i]) if mode == WRITE else 0
        size = abs(value) >> low
        count, bit = 0, 1
        while bit and count < MAGNITUDES:
            bit, coder = decide(mode, data, coder, odds, base + count, 1 if count < size else 0)
            count += bit
        if count == MAGNITUDES:
            more, coder = plain_number(mode, data, coder, size - MAGNITUDES, 2)
            count += more
        if low:
            plain, coder = raw(mode, data, coder, low, abs(value) & ((1 << low) - 1))
            count = (count << low) + plain
        if count:
            if count > MOST_FACTOR:
                return False, coder
            negative, coder = decide(mode, data, coder, odds, FACTOR_SIGN + sign, 1 if value < 0 else 0)
            sign = 1 + negative
            value = -count if negative else count
        if mode == READ:
            values[i] = value
        largest = max(largest, count)
        earlier, last = last, count
        if mode == READ and coder[2] > len(data):
            return False, coder
    return largest > 0, coder


@kernel
def gap_code(mode, data, coder, odds, gap, room, usual, density):
    """Code the distance to the entry before: it, its octave, and the coder afterwards."""
    octave = width_of(gap) - 1
    above, below = GAP_UP + 8 * density, GAP_DOWN + 8 * density
    width, bit = usual, 1
    if usual:
        bit, coder = decide(mode, data, coder, odds, above, 1 if octave >= usual else 0)
    if bit:
        while bit and room >> (width + 1):
            place = above + min(width - usual + 1, 7)
            bit, coder = decide(mode, data, coder, odds, place, 1 if octave > width else 0)
            width += bit
    else:
        width -= 1
        while not bit and width:
            place = below + min(usual - width, 7)
            bit, coder = decide(mode, data, coder, odds, place, 1 if octave == width else 0)
            width -= 1 - bit
    read = 1
    if width:
        place = GAP_TOP + min(max(width - usual, -8), 7) + 8
        bit, coder = decide(mode, data, coder, odds, place, gap >> (width - 1) & 1)
        plain, coder = raw(mode, data, coder, width - 1, gap & ((1 << (width - 1)) - 1))
        read = ((2 + bit) << (width - 1)) + plain
    return read, width, coder


@kernel
def level_code(mode, data, coder, odds, size, before):
    """Code the magnitude of a level, given that of the one before: it, and the coder afterwards."""
    base = LEVEL + LEVELS * (min(before, 4) - 1)
    magnitude, bit = 1, 1
    while bit and magnitude <= LEVELS:
        bit, coder = decide(mode, data, coder, odds, base + magnitude - 1, 1 if magnitude < size else 0)
        magnitude += bit
    if magnitude > LEVELS:
        more, coder = plain_number(mode, data, coder, size - LEVELS - 1, 2)
        magnitude += more
    return magnitude, coder


@kernel
def entries(mode, data, coder, odds, starts, lengths, size, indices, levels):
    """Code the indices and levels of entries: whether the bytes are valid, and the coder afterwards.

    Indices ascend, and no level is 0; they are filled in when reading. `starts` says where each tensor starts, with the
    size of the vector at its end; `lengths` are those of the tensors' rows.
    """
    count = len(indices)
    position, tensor, row = -1, 0, -1
    nearness, sooner, magnitude, sign, earlier = 0, 0, 1, 0, 0
    for j in range(count):
        room, left = size - 1 - position, count - j
        usual = width_of(room // left) - 1
        near = nearness + sooner
        density = 0 if near < -6 else (1 if near < -3 else (2 if near < 0 else 3))
        gap = indices[j] - position if mode == WRITE else 1
        gap, width, coder = gap_code(mode, data, coder, odds, gap, room, usual, density)
        if gap > room - left + 1 or (mode == READ and coder[2] > len(data)):
            return False, coder
        position += gap
        indices[j] = position
        sooner, nearness = nearness, width - usual
        while position >= starts[tensor + 1]:
            tensor += 1
        first = starts[tensor] + (position - starts[tensor]) // lengths[tensor] * lengths[tensor]
        if first != row:
            row, sign, earlier = first, 0, 0
        level = levels[j] if mode == WRITE else 1
        magnitude, coder = level_code(mode, data, coder, odds, abs(level), magnitude)
        if magnitude > MOST_LEVEL:
            return False, coder
        negative, coder = decide(mode, data, coder, odds, SIGN + 3 * sign + earlier, 1 if level < 0 else 0)
        earlier, sign = sign, 1 + negative
        levels[j] = -magnitude if negative else magnitude
    return True, coder


@kernel
def histogram(values, bits, stride, count, energy):
    """Count every `stride`-th entry, and add up its square, by half octaves of the magnitude."""
    for i in range(0, len(bits), stride):
        place = (bits[i] & np.uint32(0x7FFFFFFF)) >> np.uint32(22)
        count[place] += 1
        energy[place] += np.float64(values[i]) * np.float64(values[i])
