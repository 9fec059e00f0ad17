"""The wire: exact round trips, honest sizes, the documented bytes, and no bytes that bring it down."""

import binascii
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
from dagc import INDEX_CODECS, VALUE_CODECS, InvalidInput, MalformedPayload, Sparse, decode, encode, read_header
from dagc.wire import payload_size
from dagc.wire.frame import COMPACT_VERSION, varint

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "wire-vectors.md"


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
    payload = encode(sparse, round=round)
    assert decode(payload, size=sparse.size) == sparse
    assert read_header(payload).round == round


@pytest.mark.parametrize("values", VALUE_CODECS)
@given(sparse=sparses())
@settings(max_examples=60)
def test_what_was_decoded_encodes_to_the_same_bytes(values, sparse):
    payload = encode(sparse, values)
    decoded = decode(payload)
    assert encode(decoded, values) == payload
    assert np.array_equal(decoded.indices, sparse.indices)
    assert np.array_equal(decoded.values, dagc.quantise(sparse.values, values))


@pytest.mark.parametrize(("values", "error"), [("fp16", 2**-11), ("bf16", 2**-8), ("int8", 1 / 127)])
def test_quantisation_is_as_good_as_its_bits(values, error):
    exact = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).numpy()
    difference = np.abs(dagc.quantise(exact, values) - exact)
    assert np.all(difference <= error * (np.abs(exact) if values != "int8" else np.abs(exact).max()))


def test_two_bits_leave_less_than_half_of_the_error_that_signs_leave():
    exact = torch.randn(200_000, generator=torch.Generator().manual_seed(0)).pow(3).numpy()
    exact = exact[np.abs(exact) > 2.0]
    lost = {name: np.square(dagc.quantise(exact, name) - exact).sum() for name in ("sign", "two-bit")}
    assert lost["two-bit"] < 0.5 * lost["sign"]
    assert len(encode(Sparse(len(exact), range(len(exact)), exact), "two-bit")) < 0.27 * len(exact) + 40


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
def test_indices_take_within_two_percent_of_the_bound(ratio):
    size = 2_000_000
    count = int(size * ratio)
    indices = np.sort(np.random.default_rng(0).choice(size, count, replace=False))
    bound = (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)
    assert 8 * read_header(encode(Sparse(size, indices, np.ones(count)))).index_bytes < 1.02 * bound


def test_clustered_indices_take_half_with_the_adaptive_code():
    rng = np.random.default_rng(0)
    dense_layer = np.sort(rng.choice(20_000, 5000, replace=False))
    sparse_layer = 20_000 + np.sort(rng.choice(2_000_000, 300, replace=False))
    sparse = Sparse(2_020_000, np.concatenate([dense_layer, sparse_layer]), np.ones(5300))
    sizes = {name: read_header(encode(sparse, indices=name)).index_bytes for name in ("rice", "adaptive-rice")}
    assert sizes["adaptive-rice"] < 0.5 * sizes["rice"]
    assert read_header(encode(sparse)).index_codec == "adaptive-rice"


@pytest.mark.parametrize(
    ("sparse", "codec"),
    [
        (Sparse(100, range(100), np.ones(100)), "dense"),
        (Sparse(100, range(0, 100, 2), np.ones(50)), "bitmap"),
        (Sparse(100_000, [5, 70_000], np.ones(2)), "rice"),
    ],
)
def test_the_smallest_codec_is_taken(sparse, codec):
    payload = encode(sparse)
    assert read_header(payload).index_codec == codec
    sizes = {
        name: len(encode(sparse, indices=name))
        for name in INDEX_CODECS
        if name != "seed" and (name != "dense" or codec == "dense")
    }
    assert len(payload) == min(sizes[name] for name in sizes if name != "tight-rice")
    compact = {name: len(encode(sparse, indices=name, frames="compact")) for name in sizes}
    assert len(encode(sparse, frames="compact")) == min(compact.values())


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
    for values in VALUE_CODECS:
        for wire in ({}, {"frames": "compact"}, {"frames": "raw"}, {"indices": "raw"} if count < size else {}):
            payload = encode(Sparse(size, indices, np.ones(len(indices))), values, round=2**21 - 1, **wire)
            assert len(payload) <= payload_size(size, allowed, values, **wire)[0]


@pytest.mark.parametrize("values", VALUE_CODECS)
@pytest.mark.parametrize("frames", ["plain", "compact"])
def test_every_support_of_a_short_vector_is_within_payload_size(values, frames):
    for size in range(1, 12):
        most = np.zeros(size + 1, dtype=np.int64)
        for number in range(1 << size):
            indices = [i for i in range(size) if number >> i & 1]
            payload = encode(Sparse(size, indices, np.ones(len(indices))), values, round=2**21 - 1, frames=frames)
            most[len(indices)] = max(most[len(indices)], len(payload))
        bound = payload_size(size, range(size + 1), values, frames=frames)
        assert np.all(np.maximum.accumulate(most) <= bound)
        assert bound[0] == most[0]


@pytest.mark.parametrize("values", VALUE_CODECS)
@pytest.mark.parametrize("wire", [{}, {"frames": "compact"}, {"indices": "raw"}, {"frames": "raw"}])
def test_more_entries_never_take_fewer_bytes(values, wire):
    for size in [*range(1, 400), 1023, 1500, 7850, 65_536]:
        sizes = payload_size(size, range(size + 1), values, **wire)
        assert np.all(np.diff(sizes) >= 0), size
        some = [size // 2, 0, size, size // 3]  # the same whatever else is asked for
        assert [payload_size(size, k, values, **wire)[0] for k in some] == sizes[some].tolist()


def test_raw_indices_are_int32_where_they_are_asked_for():
    sparse = Sparse(7850, [3, 500, 7000], [0.5, -2.0, 1.0])
    payload = encode(sparse, round=7, frames="raw")
    assert len(payload) == 4 + 8 * 3 == payload_size(7850, 3, frames="raw")[0]
    assert payload[2:14] == np.array([3, 500, 7000], dtype="<i4").tobytes()
    assert decode(payload, size=7850, round=7) == sparse
    assert read_header(encode(sparse)).index_codec != "raw"
    everything = Sparse(20, range(20), np.ones(20))
    assert encode(everything, frames="raw") == encode(everything, frames="compact")  # nobody sends indices for that
    drawn = dagc.random_k(torch.ones(100), 20, seed=5)
    assert read_header(encode(drawn, frames="raw"), size=100).index_codec == "raw"
    with pytest.raises(InvalidInput, match="'raw' cannot hold 1 of"):
        encode(Sparse((1 << 31) + 1, [5], [1.0]), frames="raw")


def test_a_kind_of_frames_or_a_bound_that_does_not_exist_is_refused():
    with pytest.raises(InvalidInput, match="no kind of frames 'compat': did you mean 'compact'"):
        encode(Sparse(9, [5], [1.0]), frames="compat")
    with pytest.raises(InvalidInput, match="no kind of frames 'auto'"):
        payload_size(9, 1, frames="auto")
    with pytest.raises(InvalidInput, match="indices must be None or 'raw', not 'bitmap'"):
        payload_size(9, 1, indices="bitmap")


def test_payload_size_keeps_the_shape_of_what_it_is_asked():
    assert payload_size(1000, 10).shape == (1,)
    assert payload_size(1000, []).shape == (0,)
    assert payload_size(1000, [[1, 2, 3], [4, 5, 1000]]).shape == (2, 3)


def test_payload_size_of_a_million_different_counts_takes_less_than_three_seconds():
    counts = np.random.default_rng(0).permutation(1_000_000)
    started = time.process_time()
    sizes = payload_size(1 << 40, counts, "int8", frames="compact")
    assert time.process_time() - started < 3
    assert sizes[counts == 5] == payload_size(1 << 40, 5, "int8", frames="compact")


@given(sparses(), st.integers(0, 1 << 40), st.sampled_from(list(VALUE_CODECS)))
def test_compact_frames_hold_the_same_in_less(sparse, round, values):
    plain, compact = encode(sparse, values, round=round), encode(sparse, values, round=round, frames="compact")
    assert len(compact) <= len(plain) - 8 if len(compact) < 1024 else compact == plain
    assert decode(compact, size=sparse.size, round=round) == decode(plain)
    header = read_header(compact, size=sparse.size, round=round)
    assert (header.round, header.size, header.entries) == (round, sparse.size, len(sparse))
    assert header.compact == (len(compact) < 1024)


def test_a_compact_frame_of_another_round_or_model_is_refused():
    payload = encode(Sparse(1000, [3, 500], [0.5, -2.0]), round=7, frames="compact")
    assert len(decode(payload, size=1000, round=7)) == 2
    for size, round in ((1000, 6), (1000, 0), (1001, 7), (999, 7)):
        with pytest.raises(MalformedPayload, match="damaged in transit, or from another round, model or version"):
            decode(payload, size=size, round=round)
    with pytest.raises(MalformedPayload, match="cannot be read without size="):
        decode(payload)


@given(sparses(), st.integers(0, 1 << 40))
def test_a_compact_frame_of_another_version_is_always_refused(sparse, round):
    payload = encode(sparse, "sign", round=round, frames="compact")
    if not read_header(payload, size=sparse.size).compact:
        return
    body, refused = payload[:-2], 0
    for version in range(256):
        start = binascii.crc_hqx(bytes((version,)) + varint(round) + varint(sparse.size), 0xFFFF)
        other = body + binascii.crc_hqx(body, start).to_bytes(2, "little")
        if version == COMPACT_VERSION:
            assert other == payload
            continue
        with pytest.raises(MalformedPayload, match="damaged in transit, or from another round, model or version"):
            decode(other, size=sparse.size, round=round)
        refused += 1
    assert refused == 255


class TestDocumentedBytes:
    LINES, COMPACT, REFUSED = map(str.splitlines, re.findall(r"```text\n(.*?)```", DOCUMENT.read_text(), re.S))

    def test_every_codec_has_one(self):
        headers = [read_header(bytes.fromhex(line.split("|")[-1])) for line in self.LINES]
        assert {header.index_codec for header in headers} == set(INDEX_CODECS)
        assert {header.value_codec for header in headers} == set(VALUE_CODECS)

    @pytest.mark.parametrize("line", LINES)
    def test_vector(self, line):
        size, indices, values, codecs, round, frame = (part.strip() for part in line.split("|"))
        index_codec, value_codec = codecs.split()
        expected = np.array([float(value) for value in values.split()], dtype=np.float32)
        decoded = decode(bytes.fromhex(frame))
        assert decoded.size == int(size)
        assert decoded.indices.tolist() == [int(index) for index in indices.split()]
        assert decoded.values.tobytes() == expected.tobytes()
        assert encode(decoded, value_codec, round=int(round), indices=index_codec) == bytes.fromhex(frame)

    @pytest.mark.parametrize("line", COMPACT)
    def test_compact_vector(self, line):
        size, indices, values, codecs, round, frame = (part.strip() for part in line.split("|"))
        index_codec, value_codec = codecs.split()
        decoded = decode(bytes.fromhex(frame), size=int(size), round=int(round))
        assert decoded.indices.tolist() == [int(index) for index in indices.split()]
        assert decoded.values.tolist() == [float(value) for value in values.split()]
        again = encode(decoded, value_codec, round=int(round), indices=index_codec, frames="compact")
        assert again == bytes.fromhex(frame)

    @pytest.mark.parametrize("line", REFUSED)
    def test_refused_vector(self, line):
        size, round, frame, why = (part.strip() for part in line.split("|"))
        says = {"value codec 4": "value codec 4 .* retired", "checksum": "the bytes were damaged in transit"}
        with pytest.raises(MalformedPayload, match=says.get(why, "from another round, model or version of dagc")):
            decode(bytes.fromhex(frame), size=int(size), round=int(round))

    def test_the_short_checksum_by_hand(self):
        assert (
            "are the bytes `01 0C AA 3D`, and their CRC-16 is 925E" in DOCUMENT.with_name("wire-format.md").read_text()
        )
        crc = 0xFFFF
        for byte in bytes.fromhex("010caa3d" + "5506110050c1d61b20fc88593e0a"):
            crc ^= byte << 8
            for _ in range(8):
                crc = (crc << 1 ^ (0x1021 if crc & 0x8000 else 0)) & 0xFFFF
        frame = "5506110050c1d61b20fc88593e0a" + crc.to_bytes(2, "little").hex()
        assert self.COMPACT[0].endswith(f"| {frame}")
