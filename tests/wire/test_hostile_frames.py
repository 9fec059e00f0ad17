"""Hostile frames: each refused with its own words, and nothing allocated for what they claim."""

import contextlib
import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import VALUE_CODECS, InvalidInput, MalformedPayload, Sparse, decode, encode
from dagc._numba import compiled
from dagc.wire import payload_size
from dagc.wire.frame import checksum, varint
from tests.wire.entries_reference import decoded
from tests.wire.test_wire import plain_indices  # noqa: F401


def sealed(body):
    """With a right checksum: the attacker can compute one."""
    return body + checksum(body, 1000)


def frame(rule=0, value_id=0, entries=1, index=b"\x00\x02", values=bytes(4), size=1000):
    """With a right checksum. The indices are of one entry of 1000 at 0."""
    body = bytes((rule << 4 | value_id,)) + varint(entries) + index + values
    return body + checksum(body, size)


BLOCK = b"\x40"
"""One index, 0, in a block with parameter 0."""
GOOD = encode(Sparse(1000, [3, 500, 999], [1.0, -2.0, 0.5]))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "0 bytes are too few"),
        (b"\x00\x00", "2 bytes are too few"),
        (b"\x00\x81\x00\x00", "checksum does not match"),
        (sealed(b"\x00\x81"), "does not end"),
        (GOOD[:-1], "checksum does not match"),
        (GOOD + b"\0", "checksum does not match"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum does not match"),
        (GOOD[:5] + bytes([GOOD[5] ^ 1]) + GOOD[6:], "checksum does not match"),
        (b"\x80\x01\x02\x03", "coded with a memory of earlier frames"),
        (b"\x90\x01\x02\x03", "coded with a memory of earlier frames"),
        (frame(rule=4), "unknown index rule 4"),
        (frame(rule=15), "unknown index rule 15"),
        (frame(rule=3), "index rule 3 does not go with this value codec"),
        (frame(value_id=9), "unknown value codec 9"),
        (frame(entries=1001), "claims 1001 entries"),
        (frame(entries=500), "truncated: 9 of at least 2003"),
        (frame(index=b""), "too short for 1 indices: 0 bytes"),
        (frame(index=b"\x01"), "too short for 1 indices: 1 bytes"),
        (frame(index=b"\x00\x00"), "does not hold 1 indices"),
        (frame(index=b"\x00\x06"), "does not hold 1 indices"),
        (frame(index=b"\x00\x02\x00"), "does not hold 1 indices"),
        (frame(index=b"\x00\x80"), "out of range"),
        (frame(rule=1, index=b""), "too short for 1 indices"),
        (frame(rule=1, index=b"\x31" + bytes(7)), "Rice parameter is 49"),
        (frame(rule=1, index=b"\x20\x01"), "too short for 1 indices"),
        (frame(rule=1, index=b"\x00" + bytes(200) + b"\x01"), "out of range"),
        (frame(rule=1, index=b"\xc0"), "does not hold 1 indices"),
        (frame(rule=2), "seed takes 8 bytes"),
        (frame(entries=1000, index=b"\x00", values=bytes(4000)), "need no indices, but there are 1 bytes"),
        (frame(values=b"\x00\x00\xc0\x7f"), "NaN or infinite"),
        (frame(values=b"\x00\x00\x80\xff"), "NaN or infinite"),
        (frame(value_id=1, values=b"\x00\x00\x80\x7f\x01"), "scale"),
        (frame(value_id=1, values=b"\x00\x00\x80\xbf\x01"), "scale"),
        (frame(value_id=1, values=b"\x01\x00\x80\x3f\x01"), "scale"),
        (frame(value_id=1, values=b"\x00\x00\x80\x3f\x80"), "-128"),
        (frame(value_id=2, values=b"\x80\xbf\x01"), "mean magnitude is negative"),
        (frame(value_id=2, values=b"\x80\x3f\x02"), "sign bits"),
        (frame(value_id=2, values=b"\x00\x00\x01"), "sign bits"),
        (frame(value_id=2, values=b"\x80\x7f\x00"), "NaN or infinite"),
        (sealed(b"\x00" + b"\xff" * 9), "too large"),
        (sealed(b"\x00\x80\x00"), "more bytes than it needs"),
    ],
)
def test_malformed_bytes_are_refused_each_with_its_own_words(payload, says):
    assert len(decode(frame(), 1000)) == len(decode(frame(rule=1, index=BLOCK), 1000)) == 1
    with pytest.raises(MalformedPayload, match=says):
        decode(payload, 1000)


@pytest.mark.parametrize(
    ("index", "entries", "says"),
    [
        (b"\x00\x02", 1, "1 indices take 4 bytes, not 2"),
        (b"\xe8\x03\x00\x00", 1, "do not ascend, or one is out of range"),
        (b"\xff\xff\xff\xff", 1, "do not ascend, or one is out of range"),
        (b"\x05\x00\x00\x00" * 2, 2, "do not ascend, or one is out of range"),
    ],
)
def test_malformed_integer_indices_are_refused(index, entries, says, plain_indices):  # noqa: F811
    with pytest.raises(MalformedPayload, match=says):
        decode(frame(3, 15, entries, index, bytes(4 * entries)), 1000)
    with pytest.raises(MalformedPayload, match="index rule 0 does not go with"):
        decode(frame(0, 15), 1000)


def test_what_is_not_bytes_is_refused():
    for wrong in ("text", 5, None, [1, 2]):
        with pytest.raises(InvalidInput, match="a payload must be bytes"):
            decode(wrong, 1000)
    assert decode(bytearray(GOOD), 1000) == decode(memoryview(GOOD), 1000) == decode(GOOD, 1000)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda sparse: encode(sparse, "fp64"), "there is no value codec 'fp64'"),
        (lambda sparse: encode(sparse, round=-1), "round"),
        (lambda sparse: payload_size(3, 4), "4 entries of a vector of 3"),
    ],
)
def test_encode_refuses_what_it_cannot_write(call, says):
    with pytest.raises(InvalidInput, match=says):
        call(Sparse(3, [1], [1.0]))


def test_a_value_codec_needs_a_number_of_its_own(monkeypatch):
    for number in (0, 16, -1):
        monkeypatch.setitem(VALUE_CODECS, "thief", VALUE_CODECS["fp32"]._replace(id=number))
        with pytest.raises(InvalidInput, match="'thief' has the number"):
            encode(Sparse(3, [1], [1.0]), "thief")


def test_a_lying_header_allocates_nothing():
    lies = [
        (frame(entries=2**30, size=2**40), 2**40),
        (frame(rule=1, entries=2**46, size=2**47), 2**47),
        (frame(value_id=2, entries=2**46, size=2**46), 2**46),
        (frame(rule=2, entries=2**40, index=bytes(8), size=2**41), 2**41),
        (frame(value_id=2, entries=90, index=b"\0", values=bytes(14), size=2**48), 2**48),
    ]
    for lie, size in lies:
        tracemalloc.start()
        with pytest.raises(MalformedPayload):
            decode(lie, size)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000


@pytest.mark.parametrize(("size", "count"), [(1 << 24, 1 << 23), (1 << 26, 1 << 22), (1 << 48, 1 << 22)])
def test_a_seed_frame_costs_no_more_than_its_bytes_are_worth(size, count):
    payload = frame(2, 2, count, bytes(range(8)), bytes(2 + count // 8), size)  # one bit for each value: 1 MB or half
    started = time.process_time()
    sparse = decode(payload, size)
    assert time.process_time() - started < 3
    tracemalloc.start()
    assert decode(payload, size) == sparse
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (sparse.indices.nbytes + sparse.values.nbytes)
    assert len(sparse) == count
    assert sparse.seed == 0x0706050403020100


def test_one_wide_block_does_not_make_all_others_slow():
    for count in (1 << 10, 1 << 23):  # the first one compiles the kernels
        widths = np.zeros(count // 128, dtype=np.int64)
        widths[0] = 48
        head = np.packbits(widths[:, None] >> np.arange(6) & 1, bitorder="little").tobytes()
        index = head + bytes(128 * 48 // 8) + b"\xff" * (count // 8) + b"\0"
        payload = frame(1, 2, count, index, bytes(2 + count // 8), 1 << 48)
        started = time.process_time()
        with pytest.raises(MalformedPayload, match="or bytes follow"):
            decode(payload, 1 << 48)
    assert time.process_time() - started < (1 if compiled() else 12), "plain Python reads two indices per microsecond"


def mutants(number, seed):
    """Frames of every codec and rule with a few changes each, most of them with a right checksum again."""
    rng = np.random.default_rng(seed)
    seeds = []
    for size, count in [(1, 1), (300, 0), (300, 7), (300, 200), (300, 300), (100_000, 150), (1 << 40, 20)]:
        for values in VALUE_CODECS:
            indices = np.sort(rng.choice(min(size, 1 << 20), count, replace=False))
            for sparse in (
                Sparse(size, indices, rng.standard_normal(count)),
                Sparse(size, np.arange(count), rng.standard_normal(count)),
                dagc.random_k(torch.ones(min(size, 1000)), min(count, size, 1000), seed=5),
            ):
                seeds.append((encode(sparse, values), sparse.size))
    for _ in range(number):
        whole, size = seeds[rng.integers(len(seeds))]
        body = bytearray(whole[: -2 if len(whole) < 1024 else -4])
        for _ in range(rng.integers(1, 4)):
            kind = rng.integers(4)
            at = int(rng.integers(len(body)) if rng.random() < 0.5 else rng.integers(min(16, len(body))))
            if kind == 0:
                body[at] ^= 1 << rng.integers(8)
            elif kind == 1:
                body[at] = rng.integers(256)
            elif kind == 2:
                del body[at : at + int(rng.integers(1, 5))]
            else:
                body[at:at] = rng.bytes(int(rng.integers(1, 5)))
            if not body:
                body = bytearray(b"\0")
        yield bytes(body) + (checksum(body, size) if rng.random() < 0.9 else b""), size


def survives(number, seed):
    accepted = 0
    for payload, size in mutants(number, seed):
        try:
            sparse = decode(payload, size)
        except MalformedPayload:
            continue
        accepted += 1
        Sparse(sparse.size, sparse.indices, sparse.values)  # what is accepted is in order
        indices, values = decoded(payload, size, 0)
        assert (indices, values) == (sparse.indices.tolist(), sparse.values.tolist())
    return accepted


def test_mutated_frames_never_crash_the_decoder():
    assert 0 < survives(5000, seed=0) < 4000


@pytest.mark.slow
def test_200_000_mutated_frames_never_crash_the_decoder():
    assert survives(200_000, seed=1) > 0


@given(
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(0, 200) | st.integers(0, 1 << 48),
    st.binary(max_size=100),
    st.sampled_from([1, 150, 7850, 1 << 48]),
)
@settings(max_examples=500)
def test_arbitrary_bytes_never_crash_the_decoder(rule, value_id, entries, body, size):
    with contextlib.suppress(MalformedPayload):
        decode(body, size)
    with contextlib.suppress(MalformedPayload):
        sparse = decode(frame(rule, value_id, entries, body, b"", size), size)
        assert len(sparse) == entries
        Sparse(sparse.size, sparse.indices, sparse.values)
