"""The coder's inner loops: a binary range coder, and the walk over all coordinates that estimates how likely each is.

Integers only, so every machine computes the same. Compiled if numba is installed; without it the same functions run
as plain Python, on lists. `dagc.wire.coder` explains the model.
"""

from typing import Any

from dagc._numba import compiled, kernel

__all__ = ["LEARN", "READ", "WRITE", "walk"]

LEARN, WRITE, READ = 0, 1, 2
"""What to do with each decision: nothing, write it, or read it."""
TOP, BYTE, WORD = 0xFF000000, 0xFF, 0xFFFFFFFF
FAR = 65
"""Longer distances count as this one."""

build: Any = kernel if compiled() else lambda function: function


@build
def _split(low, high, probability):
    """The end of the interval that stands for a one; `probability` is in 65,536ths, from 1 to 65,535."""
    span = high - low
    return low + (span >> 16) * probability + (((span & 0xFFFF) * probability) >> 16)


@build
def _decide(mode, data, end, coder, bit, probability):
    """Write or read one decision, and return its bit.

    Invariant: what was coded so far may continue with any number from coder[0] to coder[1]; coder[2] bytes of `data`
    are done. A reader has the next four bytes in coder[3]; zeros follow `end`.
    """
    middle = _split(coder[0], coder[1], probability)
    if mode == READ:
        bit = 1 if coder[3] <= middle else 0
    if bit:
        coder[1] = middle
    else:
        coder[0] = middle + 1
    while (coder[0] ^ coder[1]) & TOP == 0:
        if mode == WRITE:
            if coder[2] < end:
                data[coder[2]] = coder[1] >> 24
        else:
            following = data[coder[2] + 4] if coder[2] + 4 < end else 0
            coder[3] = (coder[3] << 8 & WORD) | following
        coder[2] += 1
        coder[0] = coder[0] << 8 & WORD
        coder[1] = (coder[1] << 8 & WORD) | BYTE
    return bit


@build
def _finish(mode, data, end, coder):
    """Write or read the fewest bytes after which anything may follow. False if they are wrong or do not fit."""
    for count in range(5):
        rest = (1 << 8 * (4 - count)) - 1
        first = (coder[0] + rest) & ~rest
        if first + rest <= coder[1]:
            for place in range(count):
                byte = first >> (24 - 8 * place) & BYTE
                if coder[2] < end:
                    if mode == WRITE:
                        data[coder[2]] = byte
                    elif data[coder[2]] != byte:
                        return False
                coder[2] += 1
            return coder[2] <= end
    return False


@build
def _number(mode, data, end, coder, number, low_bits):
    """Write or read a number of at least 0: how many bits it has beyond `low_bits`, then its bits."""
    width = 0
    if mode == WRITE:
        while (number >> low_bits) + 1 >> (width + 1):
            width += 1
    bit = 1
    count = 0
    while bit and count < 32:
        bit = _decide(mode, data, end, coder, 1 if count < width else 0, 32768)
        count += bit
    shifted = number + (1 << low_bits)
    read = 1
    for place in range(count + low_bits - 1, -1, -1):
        read = 2 * read + _decide(mode, data, end, coder, shifted >> place & 1, 32768)
    return read - (1 << low_bits)


@build
def _octave(age):
    """⌊log₂ age⌋, at most 7."""
    found = 0
    while age > 1 and found < 7:
        age >>= 1
        found += 1
    return found


@build
def _recency(now, last):
    """How long ago the last time was, in octaves; 8 if never."""
    return _octave(now - last) if last else 8


@build
def _phase(now, last, interval, phases):
    """Where a coordinate is in its cycle, 0 to 17: never sent, sent once and how long ago, or age / interval."""
    if not last:
        return 0
    age = now - last
    if not interval:
        return 1 + min(_octave(age), 5)
    eighths = 8 * age // interval
    return phases[eighths] if eighths < len(phases) else 17


@build
def _weigh(tables, at, rows, last, interval, recent_columns, clocks, now, phases, powers, logs, contexts):
    """Fill in each coordinate's weight, in 256ths of an octave, and its contexts. Returns the sum of 2^weight.

    This part is known before the frame. Contexts are 16 · phase + recency of the more recent neighbour.
    """
    phase_at, near_at, column_at, row_at = at[0], at[1], at[2], at[5]
    total = 0
    for r in range(len(rows) // 3):
        start, length, column = rows[3 * r], rows[3 * r + 1], rows[3 * r + 2]
        for c in range(length):
            i = start + c
            weight = tables[row_at + r] + tables[column_at + recent_columns[column + c]]
            if clocks:
                phase = _phase(now, last[i], interval[i] >> 1, phases)
                before = last[i - 1] if c > 0 else 0
                after = last[i + 1] if c + 1 < length else 0
                near = _recency(now, max(before, after))
                weight += tables[phase_at + phase] + tables[near_at + near]
                contexts[i] = 16 * phase + near
            logs[i] = weight >> 8
            total += powers[min(max(logs[i], -3072), 3072) + 3072]
    return total


@build
def _learn(tables, seen_at, hits, exposure, step):
    """Move each weight by the surplus of entries over the expected number: the more was seen before, the less."""
    for j in range(len(exposure)):
        if exposure[j] > 0:
            seen = tables[seen_at + j]
            seen += exposure[j] - (seen >> 7)
            tables[seen_at + j] = seen
            move = ((hits[j] << 16) - exposure[j]) * step // seen
            weight = tables[j] + min(max(move, -step), step)
            tables[j] = min(max(weight, -12 << 16), 12 << 16)


@build
def walk(
    mode,
    data,
    end,
    coder,
    tables,
    at,
    rows,
    last,
    interval,
    recent_columns,
    clocks,
    now,
    constants,
    scratch,
    most,
    indices,
    negative,
    count,
    signs,
    mean,
):
    """Code a frame's entries, or only learn from them. Either way, the tables are updated.

    Args:
        mode: LEARN, WRITE or READ.
        data: The bytes.
        end: The number of bytes.
        coder: The state of the range coder: four numbers.
        tables: The weights of all contexts, what was seen of each, and the statistics of signs.
        at: Where each part of the tables begins.
        rows: Start, length and first column of each row of each tensor, in turn.
        last: The frame in which each coordinate was last sent; 0 if never.
        interval: Twice the number of frames between the last two times it was sent, plus 1 if its value was negative.
        recent_columns: How long ago each column was last in a frame, in octaves.
        clocks: Whether there are `last` and `interval`.
        now: The number of this frame.
        constants: Phases by eighths of the interval, powers of two, octaves by distance, and the largest step.
        scratch: Arrays for weights and contexts of all coordinates, and for hits and exposure of all contexts.
        most: The most entries there can be, which is also the usual number; -1 if the reader does not know it.
        indices: The indices of the entries; filled in when reading.
        negative: Whether each entry is negative; filled in when reading.
        count: The number of entries; -1 when reading.
        signs: Whether signs and the mean magnitude are coded.
        mean: The mean magnitude of this frame and of the one before, as the bits of bf16.

    Returns:
        The number of entries; -1 if the bytes are invalid.
    """
    phases, powers, octaves, step = constants
    logs, contexts, hits, exposure = scratch
    phase_at, near_at, column_at, gap_at, gap_two_at, row_at, seen_at, sign_at, trials_at, lean_at = at
    if mode != LEARN:
        if most < 0:
            count = _number(mode, data, end, coder, count, 5)
        elif _decide(mode, data, end, coder, 1 if count == most else 0, 65280):
            count = most
        else:
            count = most - 1 - _number(mode, data, end, coder, most - 1 - count, 0)
        if count < 0 or count >= len(indices):
            return -1
        if signs and count:
            moved = mean[0] - mean[1]
            folded = _number(mode, data, end, coder, 2 * moved if moved >= 0 else -2 * moved - 1, 4)
            moved = -(folded >> 1) - 1 if folded & 1 else folded >> 1
            mean[0] = mean[1] + moved
            if mean[0] < 0 or mean[0] >= 0x7F80:
                return -1
    total = _weigh(tables, at, rows, last, interval, recent_columns, clocks, now, phases, powers, logs, contexts)
    size = len(logs)
    found, previous, earlier = 0, -FAR, -FAR
    for r in range(len(rows) // 3):
        if found == count:
            break
        start, length, column = rows[3 * r], rows[3 * r + 1], rows[3 * r + 2]
        row_hits, row_exposure = 0, 0
        for i in range(start, start + length):
            if found == count:
                break
            gap = gap_at + octaves[min(i - previous, FAR)]
            gap_two = gap_two_at + octaves[min(i - earlier, FAR)]
            log = logs[i]
            own = powers[min(max(log, -3072), 3072) + 3072]
            if size - i <= count - found:
                probability, bit = 65536, 1
            else:
                log += (tables[gap] + tables[gap_two]) >> 8
                weight = powers[min(max(log, -3072), 3072) + 3072]
                probability = min(max(((count - found) * weight << 16) // max(total, 1), 1), 63488)
                bit = 0
                if mode != READ:
                    bit = 1 if indices[found] == i else 0
                if mode != LEARN:
                    bit = _decide(mode, data, end, coder, bit, probability)
            total -= own
            if bit:
                indices[found] = i
                if signs:
                    lean = tables[lean_at + r]
                    before = (1 + (interval[i] & 1)) if clocks and last[i] else 0
                    context = 3 * (lean + 8) + before
                    chance = tables[sign_at + context]
                    sign = negative[found] if mode != READ else 0
                    if mode != LEARN:
                        sign = _decide(mode, data, end, coder, sign, chance)
                    negative[found] = sign
                    trials = tables[trials_at + context]
                    target = 65472 if sign else 64
                    tables[sign_at + context] = chance + (target - chance) * 2 // (2 * trials + 3)
                    tables[trials_at + context] = min(trials + 1, 255)
                    tables[lean_at + r] = max(lean - 1, -8) if sign else min(lean + 1, 8)
                found += 1
                earlier, previous = previous, i
            row_hits += bit
            row_exposure += probability
            hits[gap] += bit
            exposure[gap] += probability
            hits[gap_two] += bit
            exposure[gap_two] += probability
            recent = column_at + recent_columns[column + i - start]
            hits[recent] += bit
            exposure[recent] += probability
            if clocks:
                context = contexts[i]
                phase, near = phase_at + (context >> 4), near_at + (context & 15)
                hits[phase] += bit
                exposure[phase] += probability
                hits[near] += bit
                exposure[near] += probability
        hits[row_at + r] += row_hits
        exposure[row_at + r] += row_exposure
    if mode != LEARN and not _finish(mode, data, end, coder):
        return -1
    _learn(tables, seen_at, hits, exposure, step)
    return count
