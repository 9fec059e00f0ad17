"""Frames that are damaged or made up: each is refused with its own words, and costs nothing."""

import contextlib
import time
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import INDEX_CODECS, VALUE_CODECS, InvalidInput, MalformedPayload, Sparse, decode, encode
from dagc.wire import payload_size
from dagc.wire.frame import varint


def sealed(frame):
    """With a right checksum: the attacker can compute one."""
    return frame + zlib.crc32(frame).to_bytes(4, "little")


def frame(
    index_id=2, value_id=0, size=1000, entries=1, index=b"\x00\x01", values=bytes(4), version=1, magic=b"\xda\x6c"
):
    numbers = b"".join(map(varint, (0, size, entries, len(index))))
    return sealed(magic + bytes((version, index_id << 4 | value_id)) + numbers + index + values)


GOOD = encode(Sparse(1000, [3, 500, 999], [1.0, -2.0, 0.5]))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "0 bytes are too few"),
        (GOOD[:11], "too few"),
        (GOOD[:-1], "truncated: .* of"),
        (GOOD[:14], "truncated"),
        (GOOD + b"\0", "1 bytes follow the end"),
        (b"XX" + GOOD[2:], "not a dagc frame"),
        (frame(version=2), "version 2, this library reads version 1: update"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum does not match"),
        (GOOD[:12] + bytes([GOOD[12] ^ 1]) + GOOD[13:], "checksum does not match"),
        (frame(index_id=9), "unknown index codec 9"),
        (frame(value_id=9), "unknown value codec 9"),
        (frame(size=0, entries=0, values=b""), "vector of 0 entries"),
        (frame(size=2**48 + 1), "1 to 2\\^48"),
        (frame(size=3, entries=4, values=bytes(16)), "claims 4 entries of a vector of 3"),
        (frame(size=2**41, entries=2**40), "truncated"),
        (frame(index=b"\x00" + bytes(200) + b"\x01"), "out of range"),
        (frame(index=b"\x31" + bytes(7) + b"\x01"), "Rice parameter is 49"),
        (frame(index=b""), "too short for the Rice parameters"),
        (frame(index=b"\x20\x01"), "too short for the low bits"),
        (frame(index=b"\x00\x03"), "2 quotients for 1 indices"),
        (frame(index=b"\x00\x00"), "0 quotients for 1 indices"),
        (frame(index=b"\x00\x01\x00"), "does not end"),
        (frame(index=b"\x04\xf0\x01"), "padding"),
        (frame(index_id=3, index=b"\xc0\x01"), "padding"),
        (frame(index_id=0), "dense frame"),
        (frame(index_id=1), "bitmap of 1000 entries takes 125 bytes, not 2"),
        (frame(index_id=1, index=bytes(125)), "bitmap has 0 entries, the header says 1"),
        (frame(index_id=1, size=9, index=b"\x00\x80"), "index 15 is out of range"),
        (frame(index_id=4), "seed takes 8 bytes"),
        (frame(values=b"\x00\x00\xc0\x7f"), "NaN or infinite"),
        (frame(values=b"\x00\x00\x80\xff"), "NaN or infinite"),
        (frame(value_id=1, values=b"\x00\x7c"), "NaN or infinite"),
        (frame(value_id=2, values=b"\x80\x7f"), "NaN or infinite"),
        (frame(value_id=3, values=b"\x00\x00\x80\x7f\x01"), "scale"),
        (frame(value_id=3, values=b"\x00\x00\x80\xbf\x01"), "scale"),
        (frame(value_id=3, values=b"\x01\x00\x80\x3f\x01"), "scale"),
        (frame(value_id=3, values=b"\x00\x00\x80\x3f\x80"), "-128"),
        (frame(value_id=4, values=b"\x00\x00\x80\x3f\x01"), "value codec 4 .* mean of 4 bytes.* retired"),
        (frame(value_id=5, values=b"\x80\xbf\x01"), "mean magnitude is negative"),
        (frame(value_id=5, values=b"\x80\x3f\x02"), "sign bits"),
        (frame(value_id=6, values=b"\x00\x3f\x80\xbf\x00"), "above the large one"),
        (frame(value_id=6, values=b"\x80\x3f\x00\x3f\x00"), "above the large one"),
        (frame(value_id=6, values=b"\x00\x80\x80\x3f\x00"), "is negative"),
        (frame(value_id=6, values=b"\xc0\x7f\x80\x3f\x02"), "is negative or above"),
        (frame(value_id=6, values=b"\x80\x7f\x80\x7f\x00"), "NaN or infinite"),
        (frame(value_id=6, values=b"\x80\x3f\x80\x3f\x02"), "or they are equal"),
        (frame(value_id=6, values=b"\x00\x3f\x80\x3f\x00"), "does not use both"),
        (frame(value_id=6, values=b"\x00\x3f\x80\x3f\x02"), "does not use both"),
        (frame(value_id=6, values=b"\x00\x00\x00\x00\x01"), "set where there is no value"),
        (frame(value_id=6, values=b"\x80\x3f\x80\x3f\x04"), "set where there is no value"),
        (sealed(b"\xda\x6c\x01\x20" + b"\x80\x00" + b"\x08\x00\x00"), "more bytes than it needs"),
        (sealed(b"\xda\x6c\x01\x20" + b"\xff" * 9), "too large"),
        (sealed(b"\xda\x6c\x01\x20" + b"\xff" * 7 + b"\x01" + b"\x0a\x00\x00"), "too large"),
        (sealed(b"\xda\x6c\x01\x20" + b"\xff" * 5), "header does not end"),
    ],
)
def test_malformed_bytes_are_refused_each_with_its_own_words(payload, says):
    with pytest.raises(MalformedPayload, match=says):
        decode(payload)


def compact_frame(index_id=5, value_id=0, entries=1, index=b"\x00\x02", values=bytes(4), size=1000):
    from dagc.wire.frame import _short_checksum

    body = bytes((index_id << 4 | value_id,)) + varint(entries) + index + values
    return body + _short_checksum(body, size, 0)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\x50", "from 4 to 1023 bytes, not 1"),
        (b"\x50" + bytes(1023), "from 4 to 1023 bytes, not 1024"),
        (b"\x80\x01\x02\x03", "coded with a memory of earlier frames"),
        (compact_frame(index_id=7), "unknown index codec 7"),
        (compact_frame(index_id=6, index=b"\x00\x02"), "1 raw indices take 4 bytes, not 2"),
        (compact_frame(index_id=6, index=b"\xe8\x03\x00\x00"), "raw indices do not ascend, or one is out of range"),
        (compact_frame(index_id=6, index=b"\xff\xff\xff\xff"), "raw indices do not ascend, or one is out of range"),
        (compact_frame(index_id=6, entries=2, index=b"\x05\x00\x00\x00" * 2, values=bytes(8)), "do not ascend"),
        (compact_frame(value_id=9), "unknown value codec 9"),
        (compact_frame(value_id=4, values=b"\x00\x00\x80\x3f\x01"), "value codec 4 .* retired"),
        (compact_frame(entries=1001), "claims 1001 entries of a vector of 1000"),
        (compact_frame(entries=500), "truncated: 11 of at least 2005"),
        (compact_frame(index=b"\x01"), "too short for 1 indices: 1 bytes"),
        (compact_frame(index=b"\x00\x00"), "0 gaps for 1 indices"),
        (compact_frame(index=b"\x00\x06"), "2 gaps for 1 indices"),
        (compact_frame(index=b"\x00\x02\x00"), "does not end"),
        (compact_frame(index=b"\x00\x80"), "out of range"),
        (compact_frame(values=b"\x00\x00\xc0\x7f"), "NaN or infinite"),
        (compact_frame(value_id=5, values=b"\x80\xbf\x01"), "mean magnitude is negative"),
        (compact_frame(value_id=5, values=b"\x80\x3f\x02"), "sign bits"),
        (compact_frame(value_id=5, values=b"\x80\x7f\x00"), "NaN or infinite"),
        (compact_frame()[:-1] + b"\x00", "checksum does not match"),
        (b"\x50" + b"\xff" * 9, "too large"),
        (b"\x50\x80\x00\x00\x00", "more bytes than it needs"),
    ],
)
def test_malformed_compact_bytes_are_refused_each_with_its_own_words(payload, says):
    assert len(decode(compact_frame(), size=1000)) == 1
    with pytest.raises(MalformedPayload, match=says):
        decode(payload, size=1000)


def test_a_frame_for_another_model_is_refused():
    with pytest.raises(MalformedPayload, match="vector of 1000 entries, expected 1001"):
        decode(GOOD, size=1001)


def test_what_is_not_bytes_is_refused():
    for wrong in ("text", 5, None, [1, 2]):
        with pytest.raises(InvalidInput, match="a payload must be bytes"):
            decode(wrong)
    assert decode(bytearray(GOOD)) == decode(memoryview(GOOD)) == decode(GOOD)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda sparse: encode(sparse, "fp64"), "there is no value codec 'fp64'"),
        (lambda sparse: encode(sparse, indices="huffman"), "'huffman': choose one of"),
        (lambda sparse: encode(sparse, indices="dense"), "cannot hold 1 of 3"),
        (lambda sparse: encode(sparse, round=-1), "round"),
        (lambda sparse: payload_size(3, 4), "4 entries of a vector of 3"),
    ],
)
def test_encode_refuses_what_it_cannot_write(call, says):
    with pytest.raises(InvalidInput, match=says):
        call(Sparse(3, [1], [1.0]))


def test_a_lying_header_allocates_nothing():
    lies = [
        frame(entries=2**30),
        frame(size=2**47, entries=2**46),
        frame(index_id=1, size=2**46),
        frame(index_id=4, entries=2**40, size=2**41, index=bytes(8)),
    ]
    for lie in lies:
        tracemalloc.start()
        with pytest.raises(MalformedPayload):
            decode(lie)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000


@pytest.mark.parametrize(("size", "count"), [(1 << 24, 1 << 23), (1 << 26, 1 << 22), (1 << 48, 1 << 22)])
def test_a_seed_frame_costs_no_more_than_its_bytes_are_worth(size, count):
    payload = frame(4, 5, size, count, bytes(range(8)), bytes(2 + count // 8))  # one bit for each value: 1 MB or half
    started = time.process_time()
    sparse = decode(payload)
    assert time.process_time() - started < 3
    tracemalloc.start()
    assert decode(payload) == sparse
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
        payload = frame(3, 5, 1 << 48, count, index, bytes(2 + count // 8))
        started = time.process_time()
        with pytest.raises(MalformedPayload, match="does not end with them"):
            decode(payload)
    assert time.process_time() - started < 1


def mutants(number, seed):
    """Frames of every codec with a few changes each, most of them with a right checksum again."""
    rng = np.random.default_rng(seed)
    seeds = []
    for size, count in [(1, 1), (300, 0), (300, 7), (300, 200), (300, 300), (100_000, 150), (1 << 40, 20)]:
        indices = np.sort(rng.choice(min(size, 1 << 20), count, replace=False))
        for values in VALUE_CODECS:
            for codec in INDEX_CODECS:
                if codec == "seed":
                    sparse = dagc.random_k(torch.ones(min(size, 1000)), min(count, size, 1000), seed=5)
                else:
                    sparse = Sparse(size, indices, rng.standard_normal(count))
                if (codec != "dense" or count == size) and (codec not in ("bitmap", "raw") or size < 1 << 20):
                    seeds.append(encode(sparse, values, indices=codec, round=int(rng.integers(1 << 20))))
    for _ in range(number):
        body = bytearray(seeds[rng.integers(len(seeds))][:-4])
        for _ in range(rng.integers(1, 4)):
            kind, at = (
                rng.integers(4),
                int(rng.integers(len(body)) if rng.random() < 0.5 else rng.integers(min(16, len(body)))),
            )
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
        yield sealed(bytes(body)) if rng.random() < 0.9 else bytes(body)


def survives(number, seed):
    accepted = 0
    for payload in mutants(number, seed):
        try:
            sparse = decode(payload)
        except MalformedPayload:
            continue
        accepted += 1
        Sparse(sparse.size, sparse.indices, sparse.values)  # what is accepted is in order
    return accepted


def test_mutated_frames_never_crash_the_decoder():
    assert 0 < survives(5000, seed=0) < 4000


@pytest.mark.slow
def test_200_000_mutated_frames_never_crash_the_decoder():
    assert survives(200_000, seed=1) > 0


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_crash_the_decoder(payload):
    for bytes_ in (payload, sealed(GOOD[:4] + payload)):
        with contextlib.suppress(MalformedPayload):
            decode(bytes_)


@given(
    st.sampled_from([0, 1, 2, 3, 5]),
    st.sampled_from([0, 1, 2, 3, 4, 5]),
    st.integers(0, 200) | st.integers(0, 1 << 48),
    st.binary(max_size=100),
    st.sampled_from([1, 150, 7850, 1 << 48]),
)
@settings(max_examples=500)
def test_arbitrary_bytes_in_a_compact_frame_never_crash_the_decoder(index_id, value_id, entries, body, size):
    with contextlib.suppress(MalformedPayload):
        sparse = decode(compact_frame(index_id, value_id, entries, body, b"", size), size=size)
        assert len(sparse) == entries
        Sparse(sparse.size, sparse.indices, sparse.values)
