"""Updates: what is encoded is decoded to the same bits, within the bytes, whatever the vector is."""

import json
import math
import re
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from update_reference import Invalid
from update_reference import decode as decode_reference

import dagc
from dagc.errors import InvalidInput, MalformedPayload, NonFiniteGradient
from dagc.sparse import Sparse
from dagc.testing import vectors
from dagc.updates import Update, decode_update, encode_dense, encode_update
from dagc.updates.frame import assemble, seal
from dagc.updates.update import Terms
from dagc.wire.frame import checksum

SHAPES = [(24, 30), 24, (5, 24), 5, (3, 2, 2, 2)]
SIZE = 24 * 30 + 24 + 5 * 24 + 5 + 24
PAGE = Path(__file__).parents[2] / "docs/reference/wire-updates-vectors.md"


def made(seed, rank=2, noise=0.02):
    """A vector like an update: matrices of low rank, and heavy tails."""
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(SIZE, generator=generator).pow(3) * noise
    vector[:720] += (torch.randn(24, rank, generator=generator) @ torch.randn(rank, 30, generator=generator)).view(-1)
    return vector


def bits(tensor):
    return tensor.numpy().tobytes()


def left(vector, update):
    rest = vector.double() - update.dense().double()
    return float(rest.square().sum())


@st.composite
def tasks(draw):
    """Shapes, a vector of any kind, and a number of bytes."""
    sides = st.integers(0, 9)
    shapes = draw(st.lists(st.lists(sides, min_size=1, max_size=4), min_size=1, max_size=4))
    shapes.append(draw(st.sampled_from([[1], [7], [6, 6], [2, 40], [40, 2], [5, 3, 3, 3]])))
    size = sum(map(math.prod, shapes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    vector = torch.randn(size, generator=generator).pow(draw(st.sampled_from([0, 1, 3, 7])))
    vector *= torch.rand(size, generator=generator) < draw(st.sampled_from([0.01, 0.3, 1.0]))
    return shapes, vector * 10.0 ** draw(st.integers(-16, 16)), draw(st.integers(0, 600))


@settings(deadline=None, max_examples=80)
@given(tasks())
def test_a_frame_decodes_to_its_update_within_the_bytes(task):
    shapes, vector, most = task
    frame, update = encode_update(vector, shapes, most, round=5)
    assert len(frame) <= most
    decoded = decode_update(frame, shapes, max_bytes=most, round=5)
    assert bits(decoded.dense()) == bits(update.dense())
    assert len(decoded) == len(update)
    assert left(vector, update) <= float(vector.double().square().sum()) * (1 + 1e-6)
    assert update.energy == pytest.approx(float(update.dense().double().square().sum()), rel=1e-6)
    reference = decode_reference(frame, [(s,) if isinstance(s, int) else s for s in shapes], 5)
    assert [float(number) for number in reference] == decoded.dense().tolist()


@pytest.mark.parametrize("name", vectors())
def test_a_dense_update_decodes_to_its_bits_for_every_kind_of_vector(name):
    vector = vectors()[name]
    shapes = [(len(vector) // 8, 8), len(vector) % 8] if len(vector) > 8 else [len(vector)]
    for width in (2, 5, 8):
        frame, update = encode_dense(vector, shapes, width)
        assert bits(decode_update(frame, shapes).dense()) == bits(update.dense())


def test_more_bytes_carry_more():
    for seed in range(3):
        vector = made(seed)
        energy = [left(vector, encode_update(vector, SHAPES, 10 << k)[1]) for k in range(8)]
        assert all(more < less for less, more in pairwise(energy))
        assert energy[4] < 0.1 * energy[0]


def test_low_rank_is_found_and_signs_are_beaten():
    vector = made(7, rank=1, noise=0.0)
    _, update = encode_update(vector, SHAPES, 80)
    assert [len(part.scales) for part in update.terms] == [1]
    assert left(vector, update) < 0.02 * float(vector.square().sum())


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_share_of_the_energy_takes_few_bytes(share):
    vector = made(3)
    frame, update = encode_update(vector, SHAPES, share=share)
    total = float(vector.double().square().sum())
    assert left(vector, update) <= (1 - share) * total
    fewer, _ = encode_update(vector, SHAPES, share=share / 2)
    assert len(fewer) < len(frame) < 1000
    short, _ = encode_update(vector, SHAPES, 20, share=share)
    assert len(short) <= 20


@pytest.mark.parametrize("least", range(12))
def test_so_few_least_bytes_that_nothing_fits_are_none(least):
    vector = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    frame, update = encode_update(vector, SHAPES, 200, share=0.001, least_bytes=least)
    assert 0 < len(frame) <= 200
    assert update.energy > 0
    if least < 8:
        assert frame == encode_update(vector, SHAPES, 200, share=0.001)[0]


def test_the_same_vector_gives_the_same_bytes_on_any_number_of_threads():
    vector, before = made(4), torch.get_num_threads()
    frames = set()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            frames.add(tuple(encode_update(vector * scale, SHAPES, 200)[0] for scale in (1, 1, 2)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(frames) == 1


def test_a_decoded_matrix_is_the_same_by_any_order_of_sums():
    _, update = encode_update(made(5, rank=6), SHAPES, 250)
    part = update.terms[0]
    left, right = (part.left.T * part.scales).astype(np.float32), part.right.astype(np.float32)
    products = [left @ right, torch.from_numpy(left) @ torch.from_numpy(right), left[:, ::-1] @ right[::-1]]
    exact = (part.left.T.astype(object) * part.scales.astype(object)) @ part.right.astype(object)
    assert len(part.scales) > 3
    assert all(np.array_equal(np.asarray(product), exact.astype(np.float64)) for product in products)
    target = torch.zeros(SIZE)
    for part in update.terms:
        for start, block in part.blocks(torch.device("cpu")):
            target[start : start + len(block)] += block
    expected = np.zeros(SIZE)
    for part in update.terms:
        whole = (part.left.T.astype(object) * part.scales.astype(object)) @ part.right.astype(object)
        expected[part.start : part.start + part.size] = whole.astype(np.float64).reshape(-1) * 2.0**part.exponent
    assert target.tolist() == expected.tolist()
    target.numpy()[update.sparse.indices] += update.sparse.values
    assert bits(target) == bits(update.dense())


def test_a_weight_multiplies_before_it_is_added():
    vector, weight = made(6), 0.3
    _, update = encode_update(vector, SHAPES, 300)
    target = made(8)
    expected = target + update.dense() * np.float32(weight)
    update.add_to(target, weight)
    assert bits(target) == bits(expected)


def test_what_an_update_leaves_is_the_vector_minus_it():
    for scale in (1.0, 1e-14):
        vector = made(9) * scale
        _, update = encode_update(vector, SHAPES, 200)
        residual = vector.clone()
        update.subtract_from(residual)
        assert torch.allclose(residual, vector - update.dense(), atol=1e-6 * scale)
    _, update = encode_update(vector, SHAPES, share=0.7)
    assert 0.7 <= 1 - left(vector, update) / float(vector.double().square().sum()) < 0.85


def test_an_update_may_be_nothing_but_entries():
    sparse = Sparse(6, [1, 4], [0.5, -2.0])
    update = Update.of(sparse)
    assert torch.equal(update.dense(), sparse.dense())
    assert (len(update), update.energy, update.norm()) == (2, 4.25, math.sqrt(4.25))
    assert not torch.count_nonzero(Update.empty(6).dense())


def test_vectors_that_cannot_be_sent():
    for wrong in (math.nan, math.inf, -math.inf):
        vector = made(1)
        vector[100] = wrong
        with pytest.raises(NonFiniteGradient):
            encode_update(vector, SHAPES, 100)
        with pytest.raises(NonFiniteGradient):
            encode_dense(vector, SHAPES, 8)
    for arguments in ((torch.zeros(3), SHAPES, 10), (made(1), SHAPES), (made(1), [(0, 3)], 10)):
        with pytest.raises(InvalidInput):
            encode_update(*arguments)
    with pytest.raises(InvalidInput):
        encode_dense(made(1), SHAPES, 9)


def test_a_frame_of_another_round_or_model_or_length_is_malformed():
    frame, _ = encode_update(made(2), SHAPES, 300, round=3)
    others = [{"round": 4}, {"max_bytes": len(frame) - 1}, {"shapes": [(30, 24), *SHAPES[1:]]}]
    for other in others:
        with pytest.raises(MalformedPayload):
            decode_update(frame, **{"shapes": SHAPES, "round": 3, **other})
    for damaged in (frame[:-1], frame + b"\0", frame[1:], b"\0", frame[:1]):
        with pytest.raises(MalformedPayload):
            decode_update(damaged, SHAPES, round=3)


def mutated(body, rng):
    """A body with one to three changes."""
    body = bytearray(body)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(body) + 1))
        match rng.integers(5):
            case 0:
                del body[max(place, 1) :]
            case 1:
                body += rng.bytes(rng.integers(1, 20))
            case 2:
                body[place : place + 1] = rng.bytes(1)
            case 3:
                body[place : place + 9] = bytes([int(rng.choice([0, 255]))]) * int(rng.integers(1, 9))
            case 4:
                body[1:4] = rng.bytes(3)
    return bytes(body)


def attack(count, seed):
    """Decode mutated frames with repaired checksums. Returns how many were valid."""
    rng, valid = np.random.default_rng(seed), 0
    frames = [encode_update(made(k, rank=k % 4), SHAPES, most)[0] for k, most in enumerate((12, 40, 150, 600, 1500))]
    frames += [encode_dense(made(0), SHAPES, width)[0] for width in (2, 4, 7, 8)]
    for _ in range(count):
        frame = frames[rng.integers(len(frames))]
        body = mutated(frame[: -2 if len(frame) < 1024 else -4], rng)
        try:
            update = decode_update(seal(body, SHAPES, 0), SHAPES)
        except MalformedPayload:
            continue
        valid += 1
        assert float(update.dense().abs().max()) <= 2.0**101
        assert math.isfinite(update.energy)
    return valid


def test_hostile_frames_are_malformed():
    assert attack(3000, seed=1) < 600


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_hostile_frames_are_malformed():
    assert attack(1_000_000, seed=2) < 200_000


def test_claims_are_checked_before_anything_is_allocated():
    """A frame of a few bytes for a model of 10^9 entries."""
    shapes = [(1 << 15, 1 << 15)]
    rng = np.random.default_rng(3)
    for _ in range(200):
        with pytest.raises(MalformedPayload):
            decode_update(seal(b"\xb0" + rng.bytes(rng.integers(1, 12)) + b"\xff" * 9, shapes, 0), shapes)


def test_vectors_of_the_specification():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    for case in json.loads(block):
        frame = bytes.fromhex(case["frame"])
        vector = decode_update(frame, case["shapes"], round=case["round"]).dense()
        assert vector.tolist() == [float(x) for x in decode_reference(frame, case["shapes"], case["round"])]
        data = vector.numpy().astype(">f4").tobytes()
        if "vector" in case:
            assert data.hex() == case["vector"]
        else:
            assert zlib.crc32(data).to_bytes(4, "little").hex() == case["crc32"]


def test_frames_that_the_specification_refuses():
    (block,) = re.findall(r"```text frames\n(.*?)```", PAGE.read_text(), re.S)
    assert block.count("\n") > 9
    for line in block.splitlines():
        shapes, number, frame, _ = line.split(" | ")
        shapes, number, frame = json.loads(shapes), int(number), bytes.fromhex(frame)
        with pytest.raises(MalformedPayload):
            decode_update(frame, shapes, round=number)
        with pytest.raises(Invalid):
            decode_reference(frame, shapes, number)


def test_the_vectors_of_the_specification_have_every_form():
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    cases = json.loads(block)
    updates = [decode_update(bytes.fromhex(case["frame"]), case["shapes"], round=case["round"]) for case in cases]
    forms = {(bool(update.terms), len(update.sparse) > 0, update.whole is not None) for update in updates}
    assert forms == {(True, True, False), (True, False, False), (False, True, False), (False, False, True)}
    assert max(len(case["frame"]) for case in cases) > 2 * 1026, "a frame with the long checksum"


def test_the_page_of_all_frames_says_which_form_a_first_byte_has():
    text = (PAGE.parent / "wire-format.md").read_text()
    rows = re.findall(r"^\| ([0-9A-F]{2})(?: to ([0-9A-F]{2}))? \| (\w+)", text, re.M)
    forms = {byte: form for first, last, form in rows for byte in range(int(first, 16), int(last or first, 16) + 1)}
    for byte in range(256):
        body = bytes((byte,)) + bytes(40)
        says = refusal(lambda body=body: decode_update(seal(body, [(3,)], 0), [(3,)]))
        unknown = re.search("not the frame of an update|unknown kind|from 2 to 8 bits", says)
        assert (unknown is None) == (forms.get(byte) in ("rank", "dense")), f"{byte:02X}: {says}"
        if byte % 16 == 0:
            says = refusal(lambda body=body: dagc.decode(body + checksum(body, 3), 3))
            assert ("unknown index rule" not in says) == (forms.get(byte) == "entries"), f"{byte:02X}: {says}"


def refusal(read):
    """What the library says of bytes; nothing if it reads them."""
    try:
        read()
    except MalformedPayload as error:
        return str(error)
    return ""


@pytest.mark.parametrize("limits", [{"max_bytes": 40}, {"max_bytes": 4000}, {"share": 0.999}, {"share": 1.0}], ids=str)
def test_a_vector_of_numbers_of_all_sizes_is_sent_largest_first(limits):
    """The step that fitted the smallest made the frame invalid, and cut the largest off."""
    vector = torch.logspace(-38, 3, 400) * torch.where(torch.arange(400) % 2 == 0, 1.0, -1.0)
    frame, update = encode_update(vector, [(20, 20)], **limits)
    assert decode_update(frame, [(20, 20)]) == update
    left = vector.double() - update.dense().double()
    assert float(left.square().sum()) < 0.05 * float(vector.double().square().sum())
    tiny = torch.full((400,), 1e-30)
    frame, update = encode_update(tiny, [(20, 20)], **limits)
    assert decode_update(frame, [(20, 20)]) == update


@pytest.mark.parametrize("bits", range(2, 9))
def test_an_integer_below_the_smallest_is_refused(bits):
    """Two's complement has one more negative number than positive ones: no encoder writes it."""
    frame, _ = encode_dense(torch.ones(8), [8], bits)
    lowest = sum((1 << (bits - 1)) << (bits * place) for place in range(8)).to_bytes(bits, "little")
    with pytest.raises(MalformedPayload, match="below the smallest"):
        decode_update(seal(frame[:3] + lowest, [8], 0), [8])


def test_the_bound_of_a_sum_of_terms_is_met_by_the_largest_factors():
    left, right = (np.full((2, count), 100, dtype=np.int8) for count in (3, 4))
    terms = Terms(0, left, right, np.array([17, 31]), 0)
    assert terms.largest == 100 * 100 * (17 + 31)
    assert float(Update(12, Sparse(12, [], []), (terms,)).dense().max()) == terms.largest


@pytest.mark.parametrize("octaves", [20, 31, 59, 64, 200])
def test_scales_that_are_too_far_apart_are_malformed(octaves):
    """Their sum would not be exact; from 59 octaves on, it would not even fit an integer of 64 bits."""
    sides = np.ones((2, 3), dtype=np.int8)
    lowest = 16 * -100
    assert assemble(0, sides, sides, np.array([lowest, lowest + 16 * 10])).exponent == -100
    with pytest.raises(MalformedPayload):
        assemble(0, sides, sides, np.array([lowest, lowest + 16 * octaves]))


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("times", [4, 16, 40, 64])
def test_frames_of_entries_alone_use_their_bytes_on_flat_vectors(kind, times):
    """The late updates of adapters are flat: in two bits per entry, a fifth of the bytes once stayed unused."""
    shapes = [(8, 128), (384, 8)] * 4 + [(8, 128), (128, 8)] * 4
    size, generator = 24576, torch.Generator().manual_seed(5)
    vector = torch.randn(size, generator=generator) if kind == "normal" else torch.rand(size, generator=generator) - 0.5
    most = int(times * 0.5 * math.sqrt(size))
    frame, _ = encode_update(vector, shapes, most, most_terms=0)
    assert 0.96 * most < len(frame) <= most
