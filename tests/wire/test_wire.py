"""The wire: exact round trips, honest sizes, the documented bytes, and no bytes that bring it down."""

import binascii
import contextlib
import math
import re
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import VALUE_CODECS, InvalidInput, MalformedPayload, Sparse, decode, encode
from dagc.wire import payload_size, rice
from dagc.wire.frame import VERSION, checksum, varint
from tests.wire.coder_reference import Refused
from tests.wire.entries_reference import decoded

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "wire-entries.md"
EVEN, BLOCKS, SEED, PLAIN = range(4)
INT32 = VALUE_CODECS["fp32"]._replace(id=15, index_bytes=4)


@pytest.fixture
def plain_indices(monkeypatch):
    """A value codec whose indices are int32, as other systems send them."""
    monkeypatch.setitem(VALUE_CODECS, "int32+fp32", INT32)


def rule(frame):
    """How the indices of a frame are written."""
    return frame[0] >> 4


@st.composite
def sparses(draw, largest=3000):
    size = draw(st.integers(1, largest) | st.just(1 << 48) | st.integers(1 << 31, 1 << 34))
    indices = sorted(draw(st.sets(st.integers(0, size - 1), max_size=300)))
    values = draw(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=len(indices), max_size=len(indices)
        )
    )
    return Sparse(size, np.array(indices, dtype=np.int64), np.array(values, dtype=np.float32))


@given(sparses(), st.integers(0, 1 << 40))
def test_fp32_comes_back_bit_for_bit(sparse, round):
    assert decode(encode(sparse, round=round), sparse.size, round=round) == sparse


@pytest.mark.parametrize("values", VALUE_CODECS)
@given(sparse=sparses())
@settings(max_examples=60)
def test_what_was_decoded_encodes_to_the_same_bytes(values, sparse):
    payload = encode(sparse, values)
    read = decode(payload, sparse.size, values=values)
    assert encode(read, values) == payload
    assert np.array_equal(read.indices, sparse.indices)
    assert np.array_equal(read.values, dagc.quantise(sparse.values, values))


@given(sparses(), st.sampled_from(list(VALUE_CODECS)), st.integers(0, 1 << 40))
def test_the_reference_reads_the_same(sparse, values, round):
    payload = encode(sparse, values, round=round)
    indices, numbers = decoded(payload, sparse.size, round)
    assert indices == sparse.indices.tolist()
    assert numbers == dagc.quantise(sparse.values, values).tolist()


def test_int8_is_as_good_as_its_bits():
    exact = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).numpy()
    assert np.all(np.abs(dagc.quantise(exact, "int8") - exact) <= np.abs(exact).max() / 127)


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_indices_take_within_two_percent_of_the_bound(ratio):
    size = 2_000_000
    count = int(size * ratio)
    indices = np.sort(np.random.default_rng(0).choice(size, count, replace=False))
    bound = (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)
    assert 8 * rice.plan(indices, size, blocks=False).size < 1.02 * bound
    assert len(encode(Sparse(size, indices, np.ones(count)))) < 1.02 * bound / 8 + 4 * count + 8


def test_clustered_indices_take_half_with_a_parameter_for_each_block():
    rng = np.random.default_rng(0)
    dense_layer = np.sort(rng.choice(20_000, 5000, replace=False))
    sparse_layer = 20_000 + np.sort(rng.choice(2_000_000, 300, replace=False))
    sparse = Sparse(2_020_000, np.concatenate([dense_layer, sparse_layer]), np.ones(5300))
    even, blocks = (rice.plan(sparse.indices, sparse.size, blocks).size for blocks in (False, True))
    assert blocks < 0.5 * even
    assert rule(encode(sparse)) == BLOCKS


@pytest.mark.parametrize(
    ("sparse", "chosen", "length"),
    [
        (Sparse(100, range(100), np.ones(100)), EVEN, 0),
        (Sparse(100, range(0, 100, 2), np.ones(50)), EVEN, 13),  # a bit each, to the last entry
        (Sparse(100_000, [5, 70_000], np.ones(2)), EVEN, 5),
        (Sparse(1 << 40, range(50), np.ones(50)), BLOCKS, 7),
        (dagc.random_k(torch.ones(1000), 100, seed=5), SEED, 8),
        (dagc.random_k(torch.ones(1000), 2, seed=5), EVEN, 3),
    ],
)
def test_the_smallest_way_to_write_indices_is_taken(sparse, chosen, length):
    payload = encode(sparse)
    assert rule(payload) == chosen
    assert len(payload) == 1 + 1 + length + 4 * len(sparse) + 2
    assert decode(payload, sparse.size) == sparse


@given(sparses(), st.booleans())
def test_compiled_and_plain_rice_codes_are_the_same(sparse, blocks):
    planned = rice.plan(sparse.indices, sparse.size, blocks)
    section = rice.write(planned)
    assert len(section) == planned.size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rice, "compiled", lambda: False)
        assert rice.plan(sparse.indices, sparse.size, blocks)[3:] == planned[3:]
        assert rice.write(planned) == section
        assert rice.read(memoryview(section), sparse.size, len(sparse), blocks).tolist() == sparse.indices.tolist()
    assert rice.read(memoryview(section), sparse.size, len(sparse), blocks).tolist() == sparse.indices.tolist()


@given(st.binary(max_size=60), st.integers(0, 200), st.sampled_from([1, 100, 5000, 1 << 48]), st.booleans())
@settings(max_examples=300)
def test_compiled_and_plain_rice_codes_refuse_the_same(section, count, size, blocks):
    results = []
    for path in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rice, "compiled", lambda path=path: path)
            try:
                results.append(rice.read(memoryview(section), size, min(count, size), blocks).tolist())
            except MalformedPayload:
                results.append(None)
    assert results[0] == results[1]


def placed(style, size, count, rng):
    """The positions of `count` entries."""
    return {
        "random": lambda: np.sort(rng.choice(size, count, replace=False)),
        "first": lambda: np.arange(count),
        "last": lambda: np.arange(size - count, size),
        "even": lambda: np.unique(np.linspace(0, size - 1, count).astype(np.int64)),
        "ends": lambda: np.unique(
            np.concatenate([np.arange(count // 2), np.arange(size - (count - count // 2), size)])
        ),
    }[style]()


@given(st.integers(1, 3000), st.data())
def test_no_support_takes_more_than_payload_size_says(size, data):
    allowed = data.draw(st.integers(0, size) | st.just(size))
    count = data.draw(st.integers(0, allowed) | st.just(max(0, allowed - 1)))
    style = data.draw(st.sampled_from(["random", "first", "last", "even", "ends"]))
    indices = placed(style, size, count, np.random.default_rng(data.draw(st.integers(0, 1000))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VALUE_CODECS, "int32+fp32", INT32)
        for values in VALUE_CODECS:
            payload = encode(Sparse(size, indices, np.ones(len(indices))), values)
            assert len(payload) <= payload_size(size, allowed, values)[0]


@pytest.mark.parametrize("values", VALUE_CODECS)
def test_every_support_of_a_short_vector_is_within_payload_size(values):
    for size in range(1, 12):
        most = np.zeros(size + 1, dtype=np.int64)
        for number in range(1 << size):
            indices = [i for i in range(size) if number >> i & 1]
            payload = encode(Sparse(size, indices, np.ones(len(indices))), values)
            most[len(indices)] = max(most[len(indices)], len(payload))
        bound = payload_size(size, range(size + 1), values)
        assert np.all(np.maximum.accumulate(most) <= bound)
        assert bound[0] == most[0]


@pytest.mark.parametrize("values", [*VALUE_CODECS, "int32+fp32"])
def test_more_entries_never_take_fewer_bytes(values, plain_indices):
    for size in [*range(1, 400), 1023, 1500, 7850, 65_536]:
        sizes = payload_size(size, range(size + 1), values)
        assert np.all(np.diff(sizes) >= 0), size
        some = [size // 2, 0, size, size // 3]  # the same whatever else is asked for
        assert [payload_size(size, k, values)[0] for k in some] == sizes[some].tolist()


def test_a_value_codec_may_have_indices_as_integers(plain_indices):
    sparse = Sparse(7850, [3, 500, 7000], [0.5, -2.0, 1.0])
    payload = encode(sparse, "int32+fp32", round=7)
    assert len(payload) == 4 + 8 * 3 == payload_size(7850, 3, "int32+fp32")[0]
    assert payload[2:14] == np.array([3, 500, 7000], dtype="<i4").tobytes()
    assert decode(payload, 7850, round=7) == sparse
    everything = Sparse(20, range(20), np.ones(20))
    assert encode(everything, "int32+fp32")[1:-2] == encode(everything)[1:-2]  # nobody sends indices for that
    assert rule(encode(dagc.random_k(torch.ones(100), 20, seed=5), "int32+fp32")) == PLAIN
    with pytest.raises(InvalidInput, match="indices of 4 bytes are too small"):
        encode(Sparse((1 << 31) + 1, [5], [1.0]), "int32+fp32")


def test_payload_size_keeps_the_shape_of_what_it_is_asked():
    assert payload_size(1000, 10).shape == (1,)
    assert payload_size(1000, []).shape == (0,)
    assert payload_size(1000, [[1, 2, 3], [4, 5, 1000]]).shape == (2, 3)


def test_payload_size_of_a_million_different_counts_takes_less_than_three_seconds():
    counts = np.random.default_rng(0).permutation(1_000_000)
    started = time.process_time()
    sizes = payload_size(1 << 40, counts, "int8")
    assert time.process_time() - started < 3
    assert sizes[counts == 5] == payload_size(1 << 40, 5, "int8")


def test_a_frame_of_another_round_or_model_is_refused():
    payload = encode(Sparse(1000, [3, 500], [0.5, -2.0]), round=7)
    assert len(decode(payload, 1000, round=7)) == 2
    for size, round in ((1000, 6), (1000, 0), (1001, 7), (999, 7)):
        with pytest.raises(MalformedPayload, match="damaged in transit, or from another round, model or version"):
            decode(payload, size, round=round)


def test_a_frame_with_other_values_or_too_many_entries_is_refused():
    payload = encode(Sparse(1000, [3, 500], [0.5, -2.0]), "int8")
    assert len(decode(payload, 1000, values="int8", most=2)) == 2
    with pytest.raises(MalformedPayload, match="has value codec 1, not sign"):
        decode(payload, 1000, values="sign")
    with pytest.raises(MalformedPayload, match="claims 2 entries, of at most 1"):
        decode(payload, 1000, most=1)


@given(sparses(), st.integers(0, 1 << 40))
def test_a_short_frame_of_another_version_is_always_refused(sparse, round):
    payload = encode(sparse, "sign", round=round)
    if len(payload) >= 1024:
        return
    body = payload[:-2]
    for version in range(256):
        start = binascii.crc_hqx(bytes((version,)) + varint(round) + varint(sparse.size), 0xFFFF)
        other = body + binascii.crc_hqx(body, start).to_bytes(2, "little")
        if version == VERSION:
            assert other == payload
            continue
        with pytest.raises(MalformedPayload, match="damaged in transit, or from another round, model or version"):
            decode(other, sparse.size, round=round)


def test_long_frames_have_a_long_checksum_and_none_has_1024_or_1025_bytes():
    lengths = set()
    for count in range(200, 300):
        payload = encode(Sparse(1000, range(count), np.ones(count)))
        lengths.add(len(payload))
        assert len(decode(payload, 1000)) == count
        body = payload[: -2 if len(payload) < 1024 else -4]
        assert payload == body + checksum(body, 1000)
        for wrong in (body + checksum(body, 1001), payload[:-1], payload + b"\0"):
            with pytest.raises(MalformedPayload):
                decode(wrong, 1000)
    assert min(lengths) < 1020 < 1030 < max(lengths)
    assert not lengths & {1024, 1025}


class TestDocumentedBytes:
    LINES, REFUSED = map(str.splitlines, re.findall(r"```text frames\n(.*?)```", DOCUMENT.read_text(), re.S))

    def test_every_codec_and_every_rule_has_one(self):
        heads = [bytes.fromhex(line.split("|")[-1])[0] for line in self.LINES]
        assert {head & 15 for head in heads} == {codec.id for codec in VALUE_CODECS.values()}
        assert {head >> 4 for head in heads} == {EVEN, BLOCKS, SEED}

    @pytest.mark.parametrize("line", LINES)
    def test_vector(self, line):
        size, indices, values, codec, round, frame = (part.strip() for part in line.split("|"))
        payload = bytes.fromhex(frame)
        expected = np.array([float(value) for value in values.split()], dtype=np.float32)
        read = decode(payload, int(size), round=int(round))
        assert read.indices.tolist() == [int(index) for index in indices.split()]
        assert read.values.tobytes() == expected.tobytes()
        assert encode(read, codec, round=int(round)) == payload
        assert decoded(payload, int(size), int(round)) == (read.indices.tolist(), expected.tolist())

    @pytest.mark.parametrize("line", REFUSED)
    def test_refused_vector(self, line):
        size, round, frame, _ = (part.strip() for part in line.split("|"))
        with pytest.raises(MalformedPayload):
            decode(bytes.fromhex(frame), int(size), round=int(round))
        with pytest.raises(Refused):
            decoded(bytes.fromhex(frame), int(size), int(round))

    def test_the_short_checksum_by_hand(self):
        assert "are the bytes `01 0C AA 3D`, and their CRC-16 is 925E" in DOCUMENT.read_text()
        body = "0206110050c1d61b20fc88593e0a"
        crc = 0xFFFF
        for byte in bytes.fromhex("010caa3d" + body):
            crc ^= byte << 8
            for _ in range(8):
                crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
        assert self.LINES[0].endswith(f"| {body}{crc.to_bytes(2, 'little').hex()}")


def frame(rule=0, value_id=0, entries=1, index=b"\x00\x02", values=bytes(4), size=1000):
    """With a right checksum: the attacker can compute one. The indices are of one entry of 1000 at 0."""
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
        (b"\x00\x81\x00\x00", "does not end"),
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
        (frame(entries=500), "truncated: 11 of at least 2005"),
        (frame(index=b""), "too short for 1 indices: 0 bytes"),
        (frame(index=b"\x01"), "too short for 1 indices: 1 bytes"),
        (frame(index=b"\x00\x00"), "0 quotients for 1 indices"),
        (frame(index=b"\x00\x06"), "2 quotients for 1 indices"),
        (frame(index=b"\x00\x02\x00"), "bytes follow them"),
        (frame(index=b"\x00\x80"), "out of range"),
        (frame(rule=1, index=b""), "too short for 1 indices"),
        (frame(rule=1, index=b"\x31" + bytes(7)), "Rice parameter is 49"),
        (frame(rule=1, index=b"\x20\x01"), "too short for 1 indices"),
        (frame(rule=1, index=b"\x00" + bytes(200) + b"\x01"), "out of range"),
        (frame(rule=1, index=b"\xc0"), "2 quotients for 1 indices"),
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
        (b"\x00" + b"\xff" * 9, "too large"),
        (b"\x00\x80\x00\x00\x00", "more bytes than it needs"),
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
def test_malformed_integer_indices_are_refused(index, entries, says, plain_indices):
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
        with pytest.raises(MalformedPayload, match="bytes follow them"):
            decode(payload, 1 << 48)
    assert time.process_time() - started < 1


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
