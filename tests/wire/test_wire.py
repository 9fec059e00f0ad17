"""The wire: exact round trips, honest sizes, the documented bytes, and no bytes that bring it down."""

import binascii
import contextlib
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import VALUE_CODECS, InvalidInput, MalformedPayload, Sparse, decode, encode
from dagc.wire import indices as rice
from dagc.wire import payload_size
from dagc.wire.frame import VERSION, checksum, varint
from tests.wire.coder_reference import Refused
from tests.wire.entries_reference import decoded
from tests.wire.histories import without_kernels

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
    assert np.array_equal(read.values, dagc.quantize(sparse.values, values))


@given(sparses(), st.sampled_from(list(VALUE_CODECS)), st.integers(0, 1 << 40))
def test_the_reference_reads_the_same(sparse, values, round):
    payload = encode(sparse, values, round=round)
    indices, numbers = decoded(payload, sparse.size, round)
    assert indices == sparse.indices.tolist()
    assert numbers == dagc.quantize(sparse.values, values).tolist()


def test_int8_is_as_good_as_its_bits():
    exact = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).numpy()
    assert np.all(np.abs(dagc.quantize(exact, "int8") - exact) <= np.abs(exact).max() / 127)


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


def test_what_is_read_has_the_seed_if_it_was_sent_and_no_other():
    drawn = dagc.random_k(torch.ones(1000), 100, seed=5)
    assert decode(encode(drawn), 1000).seed == 5
    assert encode(decode(encode(drawn), 1000)) == encode(drawn)
    few = dagc.random_k(torch.ones(1000), 2, seed=5)  # indices take fewer bytes
    clustered = Sparse(20_000, [*range(5000), 19_000, 19_999], np.ones(5002))
    for sparse in (few, clustered, Sparse(100, range(100), np.ones(100))):
        assert rule(encode(sparse)) != SEED
        assert decode(encode(sparse), sparse.size).seed is None


@given(sparses(), st.booleans())
def test_compiled_and_plain_rice_codes_are_the_same(sparse, blocks):
    planned = rice.plan(sparse.indices, sparse.size, blocks)
    section = rice.write(planned)
    assert len(section) == planned.size
    with without_kernels():
        assert rice.plan(sparse.indices, sparse.size, blocks)[3:] == planned[3:]
        assert rice.write(planned) == section
        assert rice.read(memoryview(section), sparse.size, len(sparse), blocks).tolist() == sparse.indices.tolist()
    assert rice.read(memoryview(section), sparse.size, len(sparse), blocks).tolist() == sparse.indices.tolist()


@given(st.binary(max_size=60), st.integers(0, 200), st.sampled_from([1, 100, 5000, 1 << 48]), st.booleans())
@settings(max_examples=300)
def test_compiled_and_plain_rice_codes_refuse_the_same(section, count, size, blocks):
    results = []
    for kernels in (contextlib.nullcontext, without_kernels):
        with kernels():
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
