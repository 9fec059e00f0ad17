"""A decoder for frames that are not coded, in plain Python, written from docs/reference/wire-entries.md alone.

It is slow, and it is meant to be read next to that page. `dagc.decode` must agree.
"""

import struct
import zlib

from tests.wire.coder_reference import Refused, crc16, varint


def decoded(frame, size, round_number):
    """The positions and the values of a frame."""
    end = len(frame) - (2 if len(frame) < 1024 else 4)
    if end < 2:
        raise Refused("the length")
    known = varint(1) + varint(round_number) + varint(size)
    if end < 1022:
        seal = crc16(known + frame[:end]).to_bytes(2, "little")
    else:
        seal = zlib.crc32(known + frame[:end]).to_bytes(4, "little")
    if frame[end:] != seal:
        raise Refused("the checksum")
    rule, codec = divmod(frame[0], 16)
    count, start = read_varint(frame, 1, end)
    if count > size or codec not in VALUES:
        raise Refused("the number of entries or the value codec")
    length, read_values = VALUES[codec]
    middle = end - length(count)
    if middle < start:
        raise Refused("the length")
    return positions(rule, frame[start:middle], size, count), read_values(frame[middle:end], count)


def read_varint(frame, at, end):
    number = shift = 0
    while at < end and shift < 49:
        byte = frame[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            if byte == 0 and shift > 7:
                break
            return number, at
    raise Refused("a number")


def positions(rule, section, size, count):
    if rule == 0 and count == size:
        if section:
            raise Refused("indices of a full frame")
        return list(range(size))
    if rule == 2:
        if len(section) != 8:
            raise Refused("the seed")
        return drawn(int.from_bytes(section, "little"), size, count)
    if rule > 2:
        raise Refused("the index rule")
    bits = [byte >> place & 1 for byte in section for place in range(8)]

    def number(width):
        if width > len(bits):
            raise Refused("the end of the indices")
        taken, bits[:width] = bits[:width], []
        return sum(bit << place for place, bit in enumerate(taken))

    if rule == 0:
        widths = [best_parameter(size, count)] * count if count else []
    else:
        widths = [width for width in [number(6) for _ in range(-(-count // 128))] for _ in range(128)][:count]
        if max(widths, default=0) > 48:
            raise Refused("a parameter")
    low = [number(width) for width in widths]
    found, position = [], -1
    for width, lowest in zip(widths, low, strict=True):
        quotient = 0
        while number(1) == 0:
            quotient += 1
        position += (quotient << width) + lowest + 1
        found.append(position)
    if any(bits) or len(bits) > 7 or position >= size:
        raise Refused("the end of the indices, or a position")
    return found


def best_parameter(size, count):
    return ((2 * (size - count) + count) * 4812 // (20000 * count)).bit_length()


def drawn(seed, size, count):
    if 2 * count > size:
        absent = set(drawn(seed, size, size - count))
        return [position for position in range(size) if position not in absent]
    found, step = set(), 0
    while len(found) < count:
        step += 1
        z = (seed + step * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        found.add((z ^ z >> 31) % size)
    return sorted(found)


def exact(section, count):
    values = list(struct.unpack(f"<{count}f", section))
    if any(value - value != 0 for value in values):
        raise Refused("a value")
    return values


def int8(section, count):
    blocks = -(-count // 256)
    scales = struct.unpack(f"<{blocks}f", section[: 4 * blocks])
    for place, scale in enumerate(scales):
        if section[4 * place] or not (scale == 0 or scale >= 2.0**-126) or scale * 127 > 3.4028234663852886e38:
            raise Refused("a scale")
        if scale == 0 and any(section[4 * place : 4 * place + 4]):
            raise Refused("a scale")
    steps = struct.unpack(f"{count}b", section[4 * blocks :])
    if -128 in steps:
        raise Refused("a step")
    return [scales[place // 256] * step for place, step in enumerate(steps)]


def signs(section, count):
    if not count:
        return []
    bits = [byte >> place & 1 for byte in section[2:] for place in range(8)]
    mean = struct.unpack("<f", b"\0\0" + section[:2])[0]
    if section[1] >> 7 or mean - mean != 0 or any(bits[count:]) or (mean == 0 and any(bits)):
        raise Refused("the mean or a sign")
    return [-mean if bit else mean for bit in bits[:count]]


VALUES = {
    0: (lambda k: 4 * k, exact),
    1: (lambda k: k + 4 * -(-k // 256), int8),
    2: (lambda k: 2 * min(k, 1) + -(-k // 8), signs),
}
