"""The update's frame in plain Python, written from docs/reference/wire-updates.md alone; `decode_update` must agree.

Integers, lists and exact fractions, nothing shared with the library. It is slow, and it is meant to be read beside
that page.
"""

import binascii
import math
import struct
import zlib
from fractions import Fraction

Q = [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4]
USUAL = [0, 1, 1, 1, 2, 2, 3, 5, 6, 9, 13, 18, 26, 36, 51, 72, 102, 145]
NOT_ZERO = [2, 3, 7, 14, 21, 29, 37, 43, 49, 53, 56, 58]
LARGER = [2, 2, 2, 4, 9, 16, 24, 32, 39, 45, 50, 54]
UP = [32, 32, 16, 5, 2, 2, 2, 2]
DOWN = [32, 27, 30, 31, 32, 32, 32, 32]


class Invalid(Exception):
    """The bytes are no frame."""


def need(condition):
    if not condition:
        raise Invalid


def varint(number):
    out = []
    while number > 127:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def tensors(shapes):
    """Start, rows and columns of each tensor with entries."""
    start, found = 0, []
    for shape in shapes:
        size = math.prod(shape)
        if size:
            rows = shape[0] if len(shape) > 1 and size > shape[0] else 1
            found.append((start, rows, size // rows))
            start += size
    return found


def decode(frame, shapes, round=0):
    """The vector, as a list of fractions."""
    parts = tensors(shapes)
    size = sum(rows * columns for _, rows, columns in parts)
    if not frame:
        return [Fraction(0)] * size
    need(len(frame) >= 3 and len(frame) not in (1024, 1025))
    end = len(frame) - (2 if len(frame) < 1024 else 4)
    layout = zlib.crc32(b"".join(varint(rows) + varint(columns) for _, rows, columns in parts))
    known = b"".join(map(varint, (1, round, size, layout)))
    if len(frame) < 1024:
        need(binascii.crc_hqx(known + frame[:end], 0xFFFF) == int.from_bytes(frame[end:], "little"))
    else:
        need(zlib.crc32(known + frame[:end]) == int.from_bytes(frame[end:], "little"))
    if 0xC2 <= frame[0] <= 0xC8:
        return dense(frame[1:end], frame[0] - 0xC0, parts, size)
    need(frame[0] == 0xB0)
    return Body(frame[1:end]).vector(parts, size)


def dense(body, bits, parts, size):
    rows = []
    for _, count, columns in parts:
        rows += [columns] * count if bits > 4 and columns >= 64 else [count * columns]
    need(len(body) == 2 * len(rows) + (bits * size + 7) // 8)
    whole = int.from_bytes(body[2 * len(rows) :], "little")
    need(whole >> (bits * size) == 0)
    out = []
    for number, length in enumerate(rows):
        (scale,) = struct.unpack(">f", body[2 * number : 2 * number + 2][::-1] + b"\0\0")
        need(scale == 0 or 2.0**-100 <= scale <= 2**100 / (2 ** (bits - 1) - 1))
        need(math.copysign(1, scale) > 0)
        for _ in range(length):
            code = whole >> (bits * len(out)) & (1 << bits) - 1
            need(code != 1 << (bits - 1))
            out.append((code - (1 << bits) if code >> (bits - 1) else code) * Fraction(scale))
    return out


def fraction(scale):
    return (16 + scale % 16) * Fraction(2) ** (scale // 16)


class Body:
    """The coded part."""

    def __init__(self, data):
        self.data, self.used = data, 0
        self.low, self.high = 0, 0xFFFFFFFF
        self.contexts = {}

    def next_four(self):
        return int.from_bytes((self.data + bytes(8))[self.used : self.used + 4], "big")

    def decision(self, chance):
        need(self.used <= len(self.data))
        span = self.high - self.low
        middle = self.low + (span >> 16) * chance + ((span & 0xFFFF) * chance >> 16)
        bit = int(self.next_four() <= middle)
        if bit:
            self.high = middle
        else:
            self.low = middle + 1
        while self.low >> 24 == self.high >> 24:
            self.low = self.low << 8 & 0xFFFFFFFF
            self.high = self.high << 8 & 0xFFFFFFFF | 0xFF
            self.used += 1
        return bit

    def finish(self):
        for count in range(5):
            rest = 2 ** (8 * (4 - count)) - 1
            first = (self.low + rest) // (rest + 1) * (rest + 1)
            if first + rest <= self.high:
                need(self.data[self.used :] == first.to_bytes(4, "big")[:count])
                return
        raise Invalid

    def plain(self, bits):
        number = 0
        for _ in range(bits):
            number = 2 * number + self.decision(32768)
        return number

    def adaptive(self, context, chance=32, seen=1):
        chance, seen = self.contexts.get(context, (chance * 1024, seen))
        bit = self.decision(min(max(chance, 2048), 63488))
        chance += ((65535 if bit else 0) - chance) * (131072 // (2 * seen + 3)) >> 16
        self.contexts[context] = chance, min(seen + 1, 60)
        return bit

    def number(self, kind):
        count = 0
        while count < 40 and self.adaptive((kind, min(count, 15))):
            count += 1
        return (1 << count) + self.plain(count) - 1

    def signed(self, kind):
        number = self.number(kind)
        return -(number + 1) // 2 if number % 2 else number // 2

    def tail(self):
        count = 0
        while count < 30 and self.plain(1):
            count += 1
        return (1 << (count + 2)) + self.plain(count + 2) - 4

    def vector(self, parts, size):
        vector = [Fraction(0)] * size
        step = self.plain(12) - 2048
        if self.plain(1):
            for start, rows, columns in parts:
                if rows > 1 and columns > 1:
                    vector[start : start + rows * columns] = self.matrix(step, rows, columns)
        for index, value in self.entries(step, parts, size):
            vector[index] = rounded(vector[index] + value)
        self.finish()
        return vector

    def matrix(self, step, rows, columns):
        count = self.number("rank")
        need(count <= min(rows, columns, 64, 180 * (len(self.data) + 8) // (rows + columns)))
        scale, scales, left, right = step, [], [], []
        for _ in range(count):
            scale += self.signed("step")
            need(-126 <= scale // 16 <= 100)
            scales.append(scale)
            left.append(self.column(left, step, scale, rows))
            right.append(self.column(right, step, scale, columns))
        if not count:
            return [Fraction(0)] * (rows * columns)
        unit = Fraction(2) ** (min(scales) // 16)
        need(max(scales) // 16 - min(scales) // 16 <= 30)
        largest = [max(map(abs, a)) * max(map(abs, b)) for a, b in zip(left, right, strict=True)]
        bound = sum(fraction(s) * x for s, x in zip(scales, largest, strict=True))
        need(bound / unit < 2**24 and bound <= 2**100)
        factors = list(zip(map(fraction, scales), left, right, strict=True))
        return [sum(s * a[i] * b[j] for s, a, b in factors) for i in range(rows) for j in range(columns)]

    def column(self, before, step, scale, length):
        quarters = Q[step % 16] - Q[scale % 16] + 4 * (step // 16 - scale // 16)
        spread = min(max((quarters - ((length * length).bit_length() - 1) + 13) // 2, 0), 17)
        low = max(0, (spread - 10) // 2)
        row = spread if spread < 12 else 10 + spread % 2
        out, sign = [], 0
        for i in range(length):
            a, b = (abs(out[i - n]) if i >= n else 0 for n in (1, 2))
            usual = USUAL[spread]
            beside = 0 if 16 * a + 8 * b < 3 * usual else 1 if 4 * a + 2 * b < 2 * usual else 2
            recent = min(sum(abs(term[i]) for term in before[-2:]), 2)
            size = 0
            while size < 12 and self.adaptive(
                ("factor", spread, recent, beside, size), LARGER[row] if size else NOT_ZERO[row], 3
            ):
                size += 1
            if size == 12:
                size += self.tail()
            size = (size << low) + self.plain(low)
            need(size <= 127)
            negative = self.adaptive(("factor sign", sign)) if size else 0
            sign = 1 + negative if size else sign
            out.append(-size if negative else size)
        need(any(out))
        return out

    def entries(self, step, parts, size):
        count = self.number("count")
        need(count <= min(size, 180 * (len(self.data) + 8) // 3))
        if not count:
            return
        step += self.signed("other")
        offsets = [self.plain(4) - 8 for _ in range(3)] if count >= 16 else [0, 0, 0]
        need(-100 <= step // 16 <= 90)
        position, magnitude, widths, row, signs = -1, 1, (0, 0), None, (0, 0)
        for left in range(count, 0, -1):
            gap, width = self.gap(size - 1 - position, left, sum(widths))
            position, widths = position + gap, (widths[1], width)
            magnitude = self.magnitude(min(magnitude, 4))
            need(magnitude * Fraction(2) ** (step // 16 + 5) <= 2**100)
            start, _, columns = next(part for part in reversed(parts) if part[0] <= position)
            if row != (start, (position - start) // columns):
                row, signs = (start, (position - start) // columns), (0, 0)
            negative = self.adaptive(("sign", *signs))
            signs = (1 + negative, signs[0])
            value = (16 * magnitude + offsets[min(magnitude, 3) - 1]) * fraction(step) / 16
            yield position, -value if negative else value

    def gap(self, room, left, near):
        usual = (room // left).bit_length() - 1
        density = 0 if near < -6 else 1 if near < -3 else 2 if near < 0 else 3
        width = usual
        if usual == 0 or self.adaptive(("up", density, 0), UP[0], 4):
            while 2 ** (width + 1) <= room:
                place = min(width - usual + 1, 7)
                if not self.adaptive(("up", density, place), UP[place], 4):
                    break
                width += 1
        else:
            width -= 1
            while width:
                place = min(usual - width, 7)
                if self.adaptive(("down", density, place), DOWN[place], 4):
                    break
                width -= 1
        gap = 1
        if width:
            gap = 2 + self.adaptive(("top", min(max(width - usual, -8), 7)))
            gap = (gap << (width - 1)) + self.plain(width - 1)
        need(gap <= room - left + 1)
        return gap, width - usual

    def magnitude(self, before):
        size = 1
        while size <= 14 and self.adaptive(("level", before, size), 24):
            size += 1
        size += self.tail() if size > 14 else 0
        need(size <= 32767)
        return size


def rounded(number):
    """To the nearest float32, of two equally near ones to the even one."""
    if not number:
        return Fraction(0)
    exponent = max(math.floor(math.log2(abs(number))), -126) - 23
    unit = Fraction(2) ** exponent
    if abs(number) / unit >= 2**24:
        unit *= 2
    elif abs(number) / unit < 2**23 and exponent > -149:
        unit /= 2
    return round(number / unit) * unit
