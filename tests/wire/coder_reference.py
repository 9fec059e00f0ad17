"""The coded frame in plain Python, written from docs/reference/wire-entries.md alone; `dagc.wire.Memory` must agree.

Lists and integers of any length, one coordinate after the other, nothing shared with the library. It is slow, and it
is meant to be read next to that page.
"""

import copy
import math
import zlib
from functools import cache
from typing import NamedTuple

FIRST_WEIGHTS = {
    "phase": [8, -39, -39, -29, -17, -9, 14, -66, -18, 5, 19, 28, 34, 36, 35, 33, 26, 13],
    "near": [19, 16, 13, 7, -1, -9, -11, -4, -24],
    "column": [13, 11, 8, 4, -2, -11, -15, -6, -21],
    "gap": [26, 12, 9, 5, 2, 8, 3, -15],
    "gap two": [0, 20, 11, 8, 3, 7, -1, -7],
}
PHASES = [4, 6, 7, 8, 9, 10, 12, 16, 24, 48]
OCTAVE = 65536
STEP = 94548  # 65536 / ln 2
SIGN = 2  # the value codec
VALUE_BYTES = {0: lambda k: 4 * k, 1: lambda k: k + 4 * -(-k // 256)}


class Refused(Exception):
    """The bytes are no frame that a writer with this memory would have made."""


class Entries(NamedTuple):
    """What a frame carries: positions, and either a mean with signs or the bytes of the values."""

    positions: list
    mean: int = 0
    negative: list | None = None  # None where values are no signs
    codec: int = SIGN
    values: bytes = b""


class Walk(NamedTuple):
    """What a walk over the coordinates leaves behind, for counting."""

    had: dict  # (kind, context): entries
    expected: dict  # (kind, context): the sum of chances
    chances: list
    trials: list
    lean: list


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def crc16(data):
    register = 0xFFFF
    for byte in data:
        register ^= byte << 8
        for _ in range(8):
            register = (register << 1 ^ 0x1021) & 0xFFFF if register & 0x8000 else register << 1
    return register


@cache
def power(z):
    """2^(z / 256), in 65,536ths."""
    z = max(-3072, min(3072, z))
    root = 1 << (7680 + z % 256)
    for _ in range(8):
        root = math.isqrt(root)
    return root >> (14 - (z >> 8))


def octave(number):
    return min(number.bit_length() - 1, 7)


class Writer:
    """The range coder, writing."""

    def __init__(self):
        self.low, self.high, self.out = 0, 2**32 - 1, bytearray()

    def bit(self, chance, one):
        self.low, self.high = narrowed(self.low, self.high, chance, one)
        while self.low >> 24 == self.high >> 24:
            self.out.append(self.low >> 24)
            self.low, self.high = widened(self.low, self.high)
        return one

    def finished(self):
        return bytes(self.out) + ending(self.low, self.high)


class Reader:
    """The range coder, reading: bytes after the last count as 0."""

    def __init__(self, data):
        self.low, self.high, self.data, self.at = 0, 2**32 - 1, data, 0

    def bit(self, chance, one):
        del one
        number = int.from_bytes((self.data[self.at : self.at + 4] + bytes(4))[:4], "big")
        one = number <= narrowed(self.low, self.high, chance, True)[1]
        self.low, self.high = narrowed(self.low, self.high, chance, one)
        while self.low >> 24 == self.high >> 24:
            self.at += 1
            self.low, self.high = widened(self.low, self.high)
        return one

    def finished(self):
        """How many bytes the coded part has."""
        end = ending(self.low, self.high)
        if self.at > len(self.data) or self.data[self.at : self.at + len(end)] != end:
            raise Refused("the end")
        return self.at + len(end)


def narrowed(low, high, chance, one):
    size = high - low
    middle = (size >> 16) * chance + ((size % 65536) * chance >> 16)
    return (low, low + middle) if one else (low + middle + 1, high)


def widened(low, high):
    return low << 8 & 0xFFFFFFFF, high << 8 & 0xFFFFFFFF | 255


def ending(low, high):
    for length in range(5):
        rest = 1 << 8 * (4 - length)
        first = -(-low // rest)  # the smallest that does not begin below `low`
        if first * rest + rest - 1 <= high:
            return first.to_bytes(length, "big")
    raise AssertionError("four bytes always do")


def coded_number(coder, low_bits, number=0):
    """Writes `number`, or reads one: a reader ignores what it is given."""
    ones = ((number >> low_bits) + 1).bit_length() - 1
    count = 0
    while count < 32 and coder.bit(32768, count < ones):
        count += 1
    result = 1
    for place in reversed(range(low_bits + count)):
        result = result << 1 | coder.bit(32768, bool(number + (1 << low_bits) >> place & 1))
    return result - (1 << low_bits)


class ReferenceMemory:
    """What both sides of a connection remember."""

    def __init__(self, shapes, clocks):
        self.shapes, self.clocks = shapes, clocks
        self.row, self.col = [], []  # of each coordinate
        rows = columns = 0
        lines = []  # of each row: its first position, its length, its first column
        for shape in shapes:
            entries = math.prod(shape)
            if not entries:
                continue
            height = shape[0] if len(shape) > 1 and entries > shape[0] else 1
            width = entries // height
            for place in range(entries):
                self.row.append(rows + place // width)
                self.col.append(columns + place % width)
            lines += [(len(self.row) - entries + width * row, width, columns) for row in range(height)]
            rows, columns = rows + height, columns + width
        self.lines = b"".join(number.to_bytes(4, "little") for line in lines for number in line)
        self.size = len(self.row)
        self.now, self.fingerprint, self.mean = 1, 0, 0
        self.weights = {
            (kind, context): first * 4096
            for kind, table in FIRST_WEIGHTS.items()
            for context, first in enumerate(table)
        } | {("row", row): 0 for row in range(rows)}
        self.seen = dict.fromkeys(self.weights, 4 * 65536)
        self.chances = [[first_chance(lean, last) for last in range(3)] for lean in range(-8, 9)]
        self.trials = [[2] * 3 for _ in range(17)]
        self.lean = [0] * rows
        self.column = [0] * columns
        self.last, self.interval, self.negative = ([0] * self.size for _ in range(3))

    # Frames

    def write(self, entries, round_number, most=None):
        """The frame that carries these entries."""
        head = bytes([(8 if self.fingerprint else 9) << 4 | entries.codec])
        body = head + self.section(entries, most) + entries.values
        return body + self._checksum(body, round_number, most, len(body) + 2 < 1024)

    def section(self, entries, most=None):
        """The coded part."""
        coder = Writer()
        self._code(coder, entries.codec, most, entries)
        return coder.finished()

    def read(self, frame, round_number, codec, most=None):
        """The entries of a frame whose values are by this codec."""
        if len(frame) < 3 or frame[0] not in (8 << 4 | codec, 9 << 4 | codec):
            raise Refused("the first byte")
        memory = self if frame[0] >> 4 == 8 else ReferenceMemory(self.shapes, self.clocks)
        short = len(frame) < 1024
        body, checksum = (frame[:-2], frame[-2:]) if short else (frame[:-4], frame[-4:])
        if memory._checksum(body, round_number, most, short) != checksum:
            raise Refused("the checksum")
        coder = Reader(body[1:])
        entries, _ = memory._code(coder, codec, most)
        values = body[1 + coder.finished() :]
        if len(values) != (0 if codec == SIGN else VALUE_BYTES[codec](len(entries.positions))):
            raise Refused("the length")
        return entries._replace(values=values)

    def count(self, entries):
        """The memory after this frame. Before one with codec 9 it is empty: take a new one."""
        _, walk = self._code(Writer(), entries.codec, None, entries)
        for key, expected in walk.expected.items():
            if expected > 0:
                self.seen[key] += expected - (self.seen[key] >> 7)
                move = (65536 * walk.had.get(key, 0) - expected) * STEP // self.seen[key]
                weight = self.weights[key] + max(-STEP, min(STEP, move))
                self.weights[key] = max(-12 * OCTAVE, min(12 * OCTAVE, weight))
        self.chances, self.trials, self.lean = walk.chances, walk.trials, walk.lean
        self.mean = entries.mean if entries.codec == SIGN and entries.positions else 0
        signs = [bool(negative) for negative in entries.negative or [0] * len(entries.positions)]
        for i, negative in zip(entries.positions, signs, strict=True):
            if self.clocks:
                self.interval[i] = min(self.now - self.last[i], 32767) if self.last[i] else 0
                self.negative[i] = int(negative)
                self.last[i] = self.now
            self.column[self.col[i]] = self.now
        bits = bytearray(-(-len(signs) // 8))
        for place, negative in enumerate(signs):
            bits[place // 8] |= negative << (7 - place % 8)
        content = self.mean.to_bytes(2, "little") + len(signs).to_bytes(4, "little")
        content += b"".join(i.to_bytes(4, "little") for i in entries.positions) + bits
        self.fingerprint = zlib.crc32(content, self.fingerprint) or 1
        if self.now == 65535:
            self.last, self.column = ([time and max(time - 32768, 1) for time in t] for t in (self.last, self.column))
            self.now -= 32768
        self.now += 1

    def _checksum(self, body, round_number, most, short):
        layout = zlib.crc32(self.lines + bytes([self.clocks, body[0] & 15 == SIGN]))
        known = [1, round_number, self.size, layout, 0 if most is None else 1 + most, self.fingerprint]
        data = b"".join(varint(number) for number in known) + body
        return crc16(data).to_bytes(2, "little") if short else zlib.crc32(data).to_bytes(4, "little")

    # The coded part: the same way for a writer, which knows the entries, and for a reader, which finds them

    def _code(self, coder, codec, most, entries=None):
        positions = entries.positions if entries else []
        k = len(positions)
        if most is None:
            k = coded_number(coder, 5, k)
        elif coder.bit(65280, k == most):
            k = most
        else:
            k = most - 1 - coded_number(coder, 0, most - 1 - k)
        if not 0 <= k <= min(self.size, 2**18):
            raise Refused("the number of entries")
        mean = 0
        if codec == SIGN and k:
            mean = entries.mean if entries else 0
            moved = mean - self.mean
            moved = coded_number(coder, 4, 2 * moved if moved >= 0 else -2 * moved - 1)
            mean = self.mean + (-(moved + 1) // 2 if moved % 2 else moved // 2)
            if not 0 <= mean < 0x7F80:
                raise Refused("the mean")
        signs = dict(zip(positions, entries.negative, strict=True)) if entries and codec == SIGN else {}
        found, negative, walk = self._walk(coder, k, codec == SIGN, set(positions), signs)
        if mean == 0 and any(negative):
            raise Refused("a sign without a mean")
        return Entries(found, mean, negative if codec == SIGN else None, codec), walk

    def _walk(self, coder, k, signs, wanted, wanted_signs):
        chances, trials, lean = copy.deepcopy((self.chances, self.trials, self.lean))
        had, expected, found, negative = {}, {}, [], []
        contexts = [self._contexts(i) for i in range(self.size)] if k else []
        places = [sum(self.weights[key] for key in keys) >> 8 for keys in contexts]
        remaining = sum(power(place) for place in places)
        for i in range(self.size):
            to_come = k - len(found)
            if to_come == 0:
                break
            gaps = [(kind, gap(i, found, back)) for kind, back in (("gap", 1), ("gap two", 2))]
            if to_come == self.size - i:
                chance, entry = 65536, True
            else:
                weight = places[i] + (sum(self.weights[key] for key in gaps) >> 8)
                chance = max(1, min(63488, to_come * power(weight) * 65536 // max(remaining, 1)))
                entry = coder.bit(chance, i in wanted)
            remaining -= power(places[i])
            for key in contexts[i] + gaps:
                expected[key] = expected.get(key, 0) + chance
                had[key] = had.get(key, 0) + entry
            if not entry:
                continue
            found.append(i)
            if not signs:
                continue
            row = self.row[i]
            before = 1 + self.negative[i] if self.clocks and self.last[i] else 0
            chance, tried = chances[lean[row] + 8][before], trials[lean[row] + 8][before]
            minus = coder.bit(chance, bool(wanted_signs.get(i)))
            negative.append(int(minus))
            chances[lean[row] + 8][before] += ((65472 if minus else 64) - chance) * 2 // (2 * tried + 3)
            trials[lean[row] + 8][before] = min(tried + 1, 255)
            lean[row] = max(-8, lean[row] - 1) if minus else min(8, lean[row] + 1)
        return found, negative, Walk(had, expected, chances, trials, lean)

    def _contexts(self, i):
        row, column = self.row[i], self.col[i]
        keys = [("column", self._recent(self.column[column])), ("row", row)]
        if self.clocks:
            beside = [j for j in (i - 1, i + 1) if 0 <= j < self.size and self.row[j] == row]
            near = max([self.last[j] for j in beside], default=0)
            keys += [("phase", self._phase(i)), ("near", self._recent(near))]
        return keys

    def _recent(self, frame):
        return octave(self.now - frame) if frame else 8

    def _phase(self, i):
        if not self.last[i]:
            return 0
        age = self.now - self.last[i]
        if not self.interval[i]:
            return 1 + min(octave(age), 5)
        return 7 + sum(limit <= 8 * age // self.interval[i] for limit in PHASES)


def first_chance(lean, last):
    """That a sign is negative, `last` being 0 for never sent, 1 for positive, 2 for negative."""
    never, other, same = (50, 25, 75) if lean == 0 else (98, 80, 99) if abs(lean) == 8 else (71, 27, 71)
    percent = never if last == 0 else same if (last == 2) == (lean < 0) else other
    return (percent if lean < 0 else 100 - percent) * 65536 // 100


def gap(i, found, back):
    """The context of the distance to the entry `back` places before."""
    return min((i - found[-back] - 1).bit_length(), 7) if len(found) >= back else 7
