"""The coder that knows the past: the documented bytes, the same on every path, and memories that stay the same."""

import contextlib
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from benchmarks.coder_attack import Attack
from dagc import VALUE_CODECS, InvalidInput, MalformedPayload, Sparse, decode, encode
from dagc._numba import compiled
from dagc.wire import Memory, is_coded
from dagc.wire.coder import MOST_ENTRIES
from dagc.wire.frame import checksum
from tests.wire.coder_reference import Refused
from tests.wire.histories import (
    SIGN,
    coded_frame,
    entries_of,
    histories,
    reference_for,
    reference_state,
    shapes,
    signed,
    size_of,
    state,
    without_kernels,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "wire-entries.md"


@given(shapes(), st.booleans(), st.sampled_from(["sign", "sign", "fp32", "int8"]), st.data())
@settings(max_examples=120)
def test_frames_are_those_of_the_reference_byte_for_byte(shapes, clocks, values, data):
    signs = values == "sign"
    size, reference = size_of(shapes), reference_for(shapes, clocks)
    sender, receiver = (Memory(shapes, clocks, signs) for _ in range(2))
    assert state(sender) == reference_state(reference, signs, 0)
    for number, (sparse, most) in enumerate(data.draw(histories(size, signs))):
        entries = entries_of(sparse, values)
        expected = reference.write(entries, round_number=number, most=most)
        plain = encode(sparse, values, round=number)
        frame = encode(sparse, values, round=number, memory=sender, most=most)
        assert frame == (expected if len(expected) < len(plain) else plain)
        assert sender.write(sparse, most) == reference.section(entries, most)
        assert reference.read(expected, number, entries.codec, most) == entries
        read = decode(expected, size, round=number, memory=receiver, most=most)
        assert read == Sparse(size, sparse.indices, dagc.quantize(sparse.values, values))
        sender.learn(sparse)
        receiver.learn(read)
        reference.count(entries)
        assert state(sender) == state(receiver) == reference_state(reference, signs, number + 1)


@given(shapes(), st.booleans(), st.booleans(), st.data())
@settings(max_examples=60)
def test_the_plain_path_gives_the_same_bytes_and_the_same_state(shapes, clocks, signs, data):
    frames = data.draw(histories(size_of(shapes), signs))
    results = []
    for path in (contextlib.nullcontext, without_kernels):
        with path():
            sender, receiver, third = (Memory(shapes, clocks, signs) for _ in range(3))
            sections, states = [], []
            for sparse, most in frames:
                sections.append(sender.write(sparse, most))
                read, length = receiver.read(sections[-1] + b"\xff\x00", most)
                assert length == len(sections[-1])
                sender.learn(sparse)
                receiver.learn(read)
                third.learn(sparse)
                states.append([state(memory) for memory in (sender, receiver, third)])
        results.append((sections, states))
    assert results[0] == results[1]


@pytest.mark.parametrize("clocks", [False, True])
def test_all_paths_agree_on_a_model_of_two_layers(clocks):
    """Four frames of 900 entries: far more contexts at once than in small vectors."""
    shapes, rng = [(30, 80), 30, (10, 30), 10], np.random.default_rng(0)
    size, reference, memory = size_of(shapes), reference_for(shapes, clocks), Memory(shapes, clocks)
    plain = Memory(shapes, clocks)
    scale = rng.standard_t(2, size) ** 2
    for number in range(4):
        indices = np.sort(np.argsort(scale * rng.random(size))[-300 * (number + 1) :])
        sparse = signed(size, indices, rng.random(len(indices)) < 0.3, 0x3C00 + number)
        section = memory.write(sparse, len(sparse))
        assert section == reference.section(entries_of(sparse), len(sparse))
        with without_kernels():
            assert plain.write(sparse, len(sparse)) == section
            plain.learn(sparse)
        memory.learn(sparse)
        reference.count(entries_of(sparse))
        assert state(memory) == state(plain) == reference_state(reference, True, number + 1)


@pytest.mark.parametrize("now", [65533, 65534, 65535])
@given(data=st.data())
@settings(max_examples=10)
def test_the_clock_overflows_as_documented(now, data):
    shapes = [(3, 5), 4]
    frames = data.draw(histories(19, True, most=6))
    reference, memory = reference_for(shapes, True), Memory(shapes)
    for number, (sparse, most) in enumerate(frames):
        if number == 1:  # as if many frames had passed: some times are old, some recent
            memory.now = reference.now = now
            memory.last[::2] += np.where(memory.last[::2] > 0, 32767, 0).astype(np.uint16)
            reference.last = memory.last.tolist()
        assert memory.write(sparse, most) == reference.section(entries_of(sparse), most)
        memory.learn(sparse)
        reference.count(entries_of(sparse))
        assert state(memory) == reference_state(reference, True, number + 1)
    if len(frames) == 6:
        assert memory.now < 40_000


@given(shapes(), st.booleans(), st.sampled_from(list(VALUE_CODECS)), st.data())
@settings(max_examples=60)
def test_a_memory_never_makes_a_frame_longer(shapes, clocks, values, data):
    memory = Memory(shapes, clocks, values == "sign")
    for sparse, most in data.draw(histories(size_of(shapes), values == "sign")):
        plain = encode(sparse, values)
        frame = encode(sparse, values, memory=memory, most=most)
        assert len(frame) < len(plain) if is_coded(frame) else frame == plain
        memory.learn(sparse)


@pytest.mark.parametrize("values", ["sign", "fp32"])
def test_long_frames_have_a_long_checksum(values):
    """Around 1024 bytes; a frame of 1024 or 1025 does not exist."""
    size, rng = 20_000, np.random.default_rng(0)
    sender, receiver = (Memory([(100, 200)], signs=values == "sign") for _ in range(2))
    lengths = []
    for count in range(1120, 1260, 5) if values == "sign" else range(170, 240, 2):
        indices = np.sort(rng.choice(size, count, replace=False))
        sparse = signed(size, indices, rng.random(count) < 0.5, 0x3C00)
        frame = coded_frame(sparse, values, 3, sender, None)
        lengths.append(len(frame))
        assert decode(frame, size, round=3, memory=receiver) == sparse
        for damaged in (frame[:-1], frame + b"\0", frame[:-1] + bytes([frame[-1] ^ 1])):
            with pytest.raises(MalformedPayload):
                decode(damaged, size, round=3, memory=receiver)
    assert min(lengths) < 1000 < 1050 < max(lengths)
    assert not {1024, 1025} & set(lengths)


def test_a_long_frame_is_that_of_the_reference():
    memory, reference = Memory([(40, 150)], clocks=False), reference_for([(40, 150)], False)
    rng = np.random.default_rng(0)
    sparse = signed(6000, np.sort(rng.choice(6000, 2000, replace=False)), rng.random(2000) < 0.5, 0x3C00)
    frame = coded_frame(sparse, "sign", 9, memory, 2000)
    assert len(frame) > 1023
    assert frame == reference.write(entries_of(sparse), 9, 2000)


def test_too_many_entries_are_sent_without_memory():
    size = MOST_ENTRIES + 1
    everything = signed(size, np.arange(size), np.arange(size) % 2, 0x3C00)
    memory = Memory([size], clocks=False)
    assert memory.write(everything) is None
    frame = encode(everything, "sign", memory=memory)
    assert not is_coded(frame)
    assert decode(frame, size) == everything
    most = signed(size, np.arange(MOST_ENTRIES), 0, 0x3C00)
    assert is_coded(encode(most, "sign", memory=memory))


def test_more_entries_than_the_reader_expects_are_sent_without_memory():
    sparse, memory = signed(100, [3, 4, 5], 0, 0x3C00), Memory([100])
    assert memory.write(sparse, most=2) is None
    assert memory.write(sparse, most=0) is None
    assert not is_coded(encode(sparse, "sign", memory=memory, most=2))
    assert memory.write(sparse, most=3) is not None


def test_a_memory_of_another_model_or_value_codec_writes_nothing():
    sparse = signed(100, [3, 4, 5], 0, 0x3C00)
    for memory, values in ((Memory([99]), "sign"), (Memory([101]), "sign"), (Memory([100]), "fp32")):
        with pytest.raises(InvalidInput, match="the memory is for"):
            encode(sparse, values, memory=memory)
    with pytest.raises(
        InvalidInput, match="the memory is for 100 entries without signs, not for 100 entries sent as sign"
    ):
        encode(sparse, "sign", memory=Memory([100], signs=False))


def test_a_frame_says_nothing_without_the_right_memory():
    """Another round, most, value codec, history: refused, never read as something else."""
    sparse, memory = signed(400, [3, 4, 200], [0, 1, 0], 0x3C00), Memory([(20, 20)])
    memory.learn(sparse)
    frame = coded_frame(sparse, "sign", 5, memory, 3)
    assert decode(frame, 400, round=5, memory=memory, most=3) == sparse
    other = Memory([(20, 20)])
    other.learn(signed(400, [3, 4, 200], [0, 0, 0], 0x3C00))
    wrong = [
        {"memory": None},
        {"memory": Memory([(20, 20)])},
        {"memory": other},
        {"memory": Memory([(20, 20)], signs=False)},
        {"round": 6},
        {"most": 4},
        {"most": None},
        {"size": 401},
    ]
    for change in wrong:
        with pytest.raises(MalformedPayload):
            decode(frame, **{"size": 400, "round": 5, "memory": memory, "most": 3} | change)


CONNECTIONS = re.findall(r"```coded\n(.*?)```", DOCUMENT.read_text(), re.S)


def test_coded_frames_are_documented_with_and_without_signs_and_clocks():
    assert [connection.splitlines()[0].split("|")[1:3] for connection in CONNECTIONS] == [
        [" clocks ", " sign"],
        [" no clocks ", " fp32"],
    ]


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_coded_vectors(connection):
    """Frame after frame: read, written again, and counted, by the library and by the reference."""
    head, *lines = connection.splitlines()
    tensors, clocked, values = (part.strip() for part in head.split("|"))
    shapes = [tuple(map(int, tensor.split("×"))) for tensor in tensors.split()]
    clocks, size = clocked == "clocks", size_of(shapes)
    receiver = Memory(shapes, clocks, values == "sign")
    for line in lines:
        round_number, expected, indices, numbers, frame, fingerprint = (part.strip() for part in line.split("|"))
        number, most = int(round_number), None if expected == "-" else int(expected)
        payload = bytes.fromhex(frame)
        sparse = Sparse(size, [int(index) for index in indices.split()], [float(value) for value in numbers.split()])
        assert decode(payload, size, round=number, memory=receiver, most=most) == sparse
        if payload[0] >> 4 == 9:  # the sender starts with an empty memory, for the first time or again
            sender, reference = Memory(shapes, clocks, values == "sign"), reference_for(shapes, clocks)
        assert encode(sparse, values, round=number, memory=sender, most=most) == payload
        entries = entries_of(sparse, values)
        assert reference.write(entries, number, most) == payload
        for memory in (sender, receiver):
            memory.learn(sparse)
        reference.count(entries)
        assert sender.fingerprint == receiver.fingerprint == reference.fingerprint == int(fingerprint, 16)


@pytest.mark.parametrize("line", re.search(r"```coded-refused\n(.*?)```", DOCUMENT.read_text(), re.S)[1].splitlines())
def test_refused_coded_vectors(line):
    """After the first frame of the first connection."""
    memory, reference = Memory([(8, 25), 8]), reference_for([(8, 25), 8], True)
    frame = CONNECTIONS[0].splitlines()[1].split("|")[4].strip()
    sparse = decode(bytes.fromhex(frame), 208, round=1, memory=memory, most=14)
    memory.learn(sparse)
    reference.count(entries_of(sparse))
    number, most, damaged, why = (part.strip() for part in line.split("|"))
    says = "the checksum" if why.startswith(("of round", "for at most", "coded with")) else "the coded section"
    with pytest.raises(MalformedPayload, match="1 bytes follow" if "follows" in why else says):
        decode(bytes.fromhex(damaged), 208, round=int(number), memory=memory, most=int(most))
    with pytest.raises(Refused):
        reference.read(bytes.fromhex(damaged), int(number), SIGN, int(most))


def test_mutated_frames_never_crash_the_decoder():
    frames = 2000 if compiled() else 200
    counts = Attack(seed=0).run(frames)
    assert counts["refused"] > frames / 4
    assert counts["noticed"] > frames / 20
    assert counts["noticed"] == counts["taken"] - counts["unchanged"]


@given(st.sampled_from([8, 9]), st.sampled_from(range(5)), st.binary(max_size=40), st.none() | st.integers(0, 300))
@settings(max_examples=200)
def test_arbitrary_bytes_never_crash_the_decoder(kind, value_id, section, most):
    memory = Memory([(16, 16), 1], signs=value_id == SIGN)
    memory.learn(signed(257, [1, 17, 256], 0, 0x3C00))
    body = bytes([kind << 4 | value_id]) + section
    payload = body + checksum(body, 257, 0, memory, most)
    before = state(memory)
    try:
        sparse = decode(payload, 257, memory=memory, most=most)
    except MalformedPayload:
        sparse = Sparse(257, [], [])
    Sparse(257, sparse.indices, sparse.values)
    assert len(sparse) <= (257 if most is None else most)
    assert state(memory) == before


@given(st.binary(max_size=60), st.booleans(), st.none() | st.integers(0, 40))
@settings(max_examples=100)
def test_the_reference_refuses_and_reads_the_same_bytes(section, clocks, most):
    memory, reference = Memory([(4, 9), 3], clocks), reference_for([(4, 9), 3], clocks)
    for indices in ([1, 2, 30], [2, 5, 38]):
        sparse = signed(39, indices, [0, 1, 0], 0x3C00)
        memory.learn(sparse)
        reference.count(entries_of(sparse))
    body = bytes([8 << 4 | SIGN]) + section
    payload = body + reference._checksum(body, 7, most, True)
    try:
        expected = reference.read(payload, 7, SIGN, most)
    except Refused:
        with pytest.raises(MalformedPayload):
            decode(payload, 39, round=7, memory=memory, most=most)
        return
    assert entries_of(decode(payload, 39, round=7, memory=memory, most=most)) == expected


def test_no_bytes_take_longer_than_a_walk_over_the_coordinates():
    """Of two hundred thousand: whatever the bytes claim, time is in proportion to them."""
    rng = np.random.default_rng(0)
    memory = Memory([(500, 400)])
    memory.learn(signed(200_000, [5], 0, 0x3C00))
    with contextlib.suppress(MalformedPayload):
        memory.read(rng.bytes(100))
    started = time.process_time()
    for length in (0, 10, 1000, 100_000):
        with contextlib.suppress(MalformedPayload):
            memory.read(rng.bytes(length))
        with contextlib.suppress(MalformedPayload):
            memory.read(b"\0" * length, most=1 << 40)
    assert time.process_time() - started < 8
