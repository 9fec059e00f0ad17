"""The compiled kernels do what the plain code does, bit for bit, wherever and however they are run."""

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dagc
from dagc import ErrorFeedback, MalformedPayload, NonFiniteGradient, Sparse, hard_threshold, random_k, top_k
from dagc._numba import compiled
from dagc.wire import quantise, rice

pytest.importorskip("numba")
_fast = pytest.importorskip("dagc.compressors._fast")

PACKAGE = Path(dagc.__file__).parent


@pytest.fixture
def plainly(monkeypatch):
    """`plainly(function, ...)` calls it without kernels."""

    def call(function, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setenv("DAGC_KERNELS", "torch")
            compiled.cache_clear()
            try:
                return function(*arguments, **options)
            finally:
                compiled.cache_clear()

    return call


@pytest.fixture(params=["cached", "streamed"])
def writing(request, monkeypatch):
    """Both ways of writing the sum, whatever the size."""
    monkeypatch.setattr(_fast, "STREAM_FROM", 1 if request.param == "streamed" else 1 << 60)


def by_sorting(vector, count):
    """Top-k in the words of its definition: by magnitude, the first of equals first, no zeros."""
    order = np.argsort(-np.abs(vector.numpy()), kind="stable")[:count]
    return np.sort(order[vector.numpy()[order] != 0])


def same_bits(one, other):
    return one.shape == other.shape and torch.equal(one.view(torch.int32), other.view(torch.int32))


def normal(size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))


def heavy_tailed(size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_t(1.5, size).astype(np.float32))


def layers(size, seed=0):
    """Layers of very different scale, as in a model."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-4, 1, 8).repeat(-(-size // 8))[:size]
    return torch.from_numpy((rng.normal(size=size) * scale).astype(np.float32))


def few(size, seed=0):
    """Almost all zero, of either sign."""
    vector = normal(size, seed)
    vector[torch.from_numpy(np.random.default_rng(seed + 1).random(size) > 0.003)] = 0.0
    vector[::2] *= -1
    return vector


def ties(size, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(-3, 4, size).astype(np.float32))


def denormal(size, seed=0):
    return normal(size, seed) * 2.0**-140


def constant(size, seed=0):
    return torch.full((size,), -0.5)


def zeros(size, seed=0):
    return torch.zeros(size) * torch.where(torch.arange(size) % 3 == 0, -1.0, 1.0)


def spikes(size, seed=0):
    """All the weight where a sample of the vector is unlikely to look."""
    vector = normal(size, seed) * 1e-6
    vector[size // 2 : size // 2 + size // 50] += 5.0
    return vector


DISTRIBUTIONS = [normal, heavy_tailed, layers, few, ties, denormal, constant, zeros, spikes]
SIZES = [1, 7, 64, 65, 1000, 20_011]


@pytest.mark.parametrize("make", DISTRIBUTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_a_step_selects_what_sorting_selects(make, size, writing, plainly):
    for count in sorted({0, 1, size // 100, size // 3, size}):
        one, other = ErrorFeedback(top_k, size), ErrorFeedback(top_k, size)
        for seed in range(2):
            gradient = make(size, seed)
            total = one.residual + gradient
            sparse = one.step(gradient, count)
            assert sparse == plainly(other.step, gradient, count)
            assert np.array_equal(sparse.indices, by_sorting(total, count))
            assert same_bits(one.residual, other.residual)
            assert top_k(gradient, count) == plainly(top_k, gradient, count)


@pytest.mark.parametrize("make", DISTRIBUTIONS)
@pytest.mark.parametrize("threshold", [0.0, 0.5, 1e39, float("inf")])
def test_a_step_takes_what_reaches_the_threshold(make, threshold, writing, plainly):
    for size in SIZES:
        one, other = ErrorFeedback(hard_threshold, size), ErrorFeedback(hard_threshold, size)
        for seed in range(2):
            gradient = make(size, seed)
            total = one.residual + gradient
            sparse = one.step(gradient, threshold)
            assert sparse == plainly(other.step, gradient, threshold)
            reached = (total.abs() >= torch.tensor(threshold)) & (total != 0)
            assert np.array_equal(sparse.indices, reached.nonzero()[:, 0].numpy())
            assert same_bits(one.residual, other.residual)
            assert hard_threshold(gradient, threshold) == plainly(hard_threshold, gradient, threshold)


@pytest.mark.parametrize(("compressor", "parameter"), [(top_k, 200), (hard_threshold, 1.5), (random_k, 200)])
@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        *((make, torch.float32) for make in (normal, heavy_tailed, layers, few, ties, spikes)),
        *((heavy_tailed, torch.float16), (ties, torch.float16), (layers, torch.bfloat16), (normal, torch.float64)),
    ],
)
def test_25_rounds_of_error_feedback(make, dtype, compressor, parameter, plainly):
    size = 20_011
    for values in ("fp32", "int8") if dtype == torch.float32 else ("sign",):
        one = ErrorFeedback(compressor, size, values=values)
        other = ErrorFeedback(compressor, size, values=values)
        for seed in range(25):
            gradient = make(size, seed).to(dtype)
            gradient[~gradient.isfinite()] = 0
            parts = list(torch.split(gradient, [1, 4096, 10_000, 0, 63, size - 14_160])) if seed % 2 else gradient
            assert one.step(parts, parameter) == plainly(other.step, gradient, parameter)
        assert same_bits(one.residual, other.residual)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", range(3))
def test_every_half_precision_number_is_read_exactly(dtype, shift):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[every.isfinite()][shift:]
    feedback = ErrorFeedback(top_k, len(finite))
    feedback.residual.fill_(-0.0)  # so that the sign of zero shows
    feedback.step(finite, 0)
    assert same_bits(feedback.residual, finite.float())
    for wrong in every[~every.isfinite()][:: 97 + shift]:
        gradient = torch.zeros(100, dtype=dtype)
        gradient[70 + shift] = wrong
        small = ErrorFeedback(top_k, 100)
        with pytest.raises(NonFiniteGradient, match=f"entry {70 + shift} of 100"):
            small.step(gradient, 1)


@pytest.mark.parametrize("at", [0, 64, 10_000])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize(
    ("compressor", "parameter"), [(top_k, 0), (top_k, 400), (hard_threshold, float("inf")), (random_k, 40)]
)
def test_what_is_not_finite_is_refused_and_leaves_no_trace(compressor, parameter, bad, at, writing):
    feedback = ErrorFeedback(compressor, 10_001)
    feedback.step(heavy_tailed(10_001), parameter)
    feedback.residual[at] = 3e38  # with which 3e38 overflows
    before, tensor = feedback.residual.clone(), feedback.residual
    gradient = heavy_tailed(10_001, 1)
    gradient[at] = bad
    with pytest.raises(NonFiniteGradient, match=f"entry {at} of 10001 is (nan|-?inf)"):
        feedback.step([gradient[:100], gradient[100:]], parameter)
    assert feedback.residual is tensor
    assert same_bits(tensor, before)
    assert feedback.steps == 1


def test_many_that_are_not_finite_are_refused(writing):
    for compressor, parameter in ((top_k, 5), (top_k, 0), (hard_threshold, 1.0), (random_k, 3)):
        feedback = ErrorFeedback(compressor, 100_000)
        with pytest.raises(NonFiniteGradient, match="entry 1 of 100000 is nan"):
            feedback.step(torch.tensor([0.0] + [float("nan")] * 99_999), parameter)
        assert not feedback.residual.any()
        with pytest.raises(NonFiniteGradient):
            compressor(torch.tensor([0.0] + [float("nan")] * 99_999), parameter)


@pytest.mark.parametrize("guess", [1, 0x7F000000, 0x3F800000])
@pytest.mark.parametrize("make", [normal, heavy_tailed, ties, constant, few, spikes])
def test_a_wrong_guess_of_the_threshold_costs_time_only(make, guess, monkeypatch, writing):
    for size, count in ((50_000, 10), (50_001, 3000), (100_000, 20_000)):
        guesses = itertools.chain([guess] * 3, itertools.repeat(1))
        monkeypatch.setattr(_fast, "_guess", lambda sample, rank, guesses=guesses: next(guesses))
        feedback = ErrorFeedback(top_k, size)
        gradient = make(size)
        sparse = feedback.step(gradient, count)
        assert np.array_equal(sparse.indices, by_sorting(gradient, count))
        assert torch.equal(sparse.dense() + feedback.residual, gradient)
        assert top_k(gradient, count) == sparse


@pytest.mark.parametrize("make", DISTRIBUTIONS)
def test_the_torch_path_finds_the_same_by_a_sample(make, plainly):
    for size, count in ((100_000, 100), (150_001, 1500), (100_000, 10_000), (100_000, 99_999), (100_000, 0)):
        vector = make(size)
        assert np.array_equal(plainly(top_k, vector, count).indices, by_sorting(vector, count))
    vector[77_777] = float("nan")
    with pytest.raises(NonFiniteGradient, match="entry 77777"):
        plainly(top_k, vector, 100)


def test_sorted_vectors_and_growing_ones(writing):
    """Everything that comes is larger than all before: the buffer fills again and again."""
    rising = torch.arange(1.0, 200_001.0)
    for vector in (rising, rising.flip(0), -rising):
        assert np.array_equal(ErrorFeedback(top_k, 200_000).step(vector, 777).indices, by_sorting(vector, 777))
        assert len(ErrorFeedback(hard_threshold, 200_000).step(vector, 100_000.0)) == 100_001


@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0, 1e-42]), min_size=1, max_size=60), st.data())
def test_the_definition_is_what_sorting_selects(values, data):
    vector = torch.tensor(values)
    count = data.draw(st.integers(0, len(values)))
    module = sys.modules["dagc.compressors.top_k"]
    assert np.array_equal(module.largest(vector.numpy(), count), by_sorting(vector, count))


@pytest.mark.parametrize("guess", [1, 0x7F000000, 0x3F800000, 0x7F800000])
@pytest.mark.parametrize("make", DISTRIBUTIONS)
def test_a_wrong_guess_costs_time_only_without_kernels(make, guess, monkeypatch, plainly):
    module = sys.modules["dagc.compressors.top_k"]  # the name in the package is the function's
    for answer in (guess, torch.tensor(guess)):
        monkeypatch.setattr(module, "_guess", lambda vector, count, answer=answer: answer)
        for size, count in ((50_001, 10), (50_001, 3000), (10, 10)):
            vector = make(size)
            assert np.array_equal(plainly(top_k, vector, count).indices, by_sorting(vector, count))


def test_layouts_views_and_negated_views():
    image = normal(2 * 3 * 8 * 5).reshape(2, 3, 8, 5)
    expected = top_k(image.flatten().clone(), 30)
    assert ErrorFeedback(top_k, 240).step(image.contiguous(memory_format=torch.channels_last), 30) == expected
    assert ErrorFeedback(top_k, 240).step(torch.cat([image, image], -1)[..., :5], 30) == expected
    assert ErrorFeedback(top_k, 240).step(image[:, :1].expand(2, 3, 8, 5), 30) == top_k(
        image[:, :1].repeat(1, 3, 1, 1), 30
    )
    negated = torch.complex(torch.zeros(240), -image.flatten()).conj().imag  # a view that says "minus"
    assert negated.is_neg()
    assert ErrorFeedback(top_k, 240).step(negated, 30) == expected


def test_a_residual_that_somebody_holds_does_not_change():
    one, other = ErrorFeedback(top_k, 5000), ErrorFeedback(top_k, 5000)
    held = []
    for seed in range(8):
        one.step(normal(5000, seed), 50)
        kept = [one.residual, one.residual[10:], one.residual.numpy(), one.residual.view(50, 100)][seed % 4]
        kept = torch.as_tensor(kept)
        held.append((kept, kept.clone()))
        other.step(normal(5000, seed + 100), 50)
        one.step(one.residual, 50)
    for kept, copy in held:
        assert torch.equal(kept, copy)


def test_many_clients_share_one_spare_array():
    dagc.release_memory()
    clients = [ErrorFeedback(top_k, 200_000) for _ in range(20)]
    places = {client.residual.data_ptr() for client in clients}
    for seed in range(3):
        for client in clients:
            client.step(normal(200_000, seed), 50)
            places.add(client.residual.data_ptr())
    assert len(places) == 21


def test_threads_step_clients_side_by_side():
    def run(number, results):
        feedback = ErrorFeedback(top_k, 50_000, values="int8")
        sent = [dagc.encode(feedback.step(heavy_tailed(50_000, number + i), 500), "int8") for i in range(10)]
        total = dagc.aggregate([dagc.decode(payload, 50_000) for payload in sent], [1] * 10)
        results[number] = sent, feedback.residual.clone(), total

    alone, together = {}, {}
    for number in range(6):
        run(number, alone)
    threads = [threading.Thread(target=run, args=(number, together)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        assert alone[number][0] == together[number][0]
        assert same_bits(alone[number][1], together[number][1])
        assert same_bits(alone[number][2], together[number][2])


@pytest.mark.parametrize(("compressor", "parameter"), [(top_k, 200_000), (hard_threshold, 1.5)])
def test_what_is_handed_out_is_written_to_again_only_when_nobody_holds_it(compressor, parameter):
    def where(sparse):
        return sparse.indices.__array_interface__["data"][0], sparse.values.__array_interface__["data"][0]

    vectors = [torch.randn(800_000, generator=torch.Generator().manual_seed(n)) for n in range(9)]
    wanted = [compressor(vector, parameter).dense() for vector in vectors]
    held = [compressor(vector, parameter) for vector in vectors]  # everything
    assert len({where(sparse) for sparse in held}) == len(held)
    parts = [(torch.from_numpy(sparse.indices), torch.from_numpy(sparse.values[1:])) for sparse in held]  # only views
    del held
    places = set()
    for vector, result in zip(vectors, wanted, strict=True):  # the last one, as in a loop
        sparse = compressor(vector, parameter)
        places.add(where(sparse))
        assert torch.equal(sparse.dense(), result)
    assert max(len(set(blocks)) for blocks in zip(*places, strict=True)) < 7
    for (indices, values), result in zip(parts, wanted, strict=True):
        assert torch.equal(result[indices][1:], values)


@pytest.mark.parametrize(("threshold", "wanted"), [(0.0, [1, 2, 4, 5, 6]), (2e-38, [5, 6]), (1.0, [6])])
def test_a_processor_that_takes_denormal_numbers_for_zero_selects_the_same(threshold, wanted, plainly):
    vector = torch.tensor([0.0, 1e-45, -1e-42, -0.0, 1e-39, 2e-38, -3.0])
    torch.set_flush_denormal(True)
    try:
        found = hard_threshold(vector, threshold).indices, plainly(hard_threshold, vector, threshold).indices
    finally:
        torch.set_flush_denormal(False)
    assert found[0].tolist() == found[1].tolist() == wanted


def test_half_precision_is_widened_alike_by_such_a_processor(plainly):
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    halves = halves[halves.isfinite()]
    torch.set_flush_denormal(True)
    try:
        found = [select(hard_threshold, halves, 0.0) for select in (lambda f, *given: f(*given), plainly)]
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(found[0].indices, found[1].indices)
    assert np.array_equal(found[0].values.view(np.int32), found[1].values.view(np.int32))
    assert len(found[0]) == len(halves) - 2  # all but the two zeros


SUPPORTS = {
    "none": [],
    "first": [0],
    "last": [(1 << 40) - 1],
    "both": [0, (1 << 40) - 1],
    "all": np.arange(1000),
    "far": np.arange(300) * (1 << 31) + 5,
    "clusters": np.concatenate([np.arange(200) + start for start in (0, 10_000, 10_300, 1 << 39)]),
    "random": np.unique(np.random.default_rng(0).integers(0, 1 << 20, 5000)),
    "rare": np.unique(np.random.default_rng(1).integers(0, 1 << 40, 1000)),
    "dense": np.flatnonzero(np.random.default_rng(2).random(3000) < 0.7),
    "jumps": np.cumsum(np.where(np.arange(1000) % 97 == 0, 1 << 24, 1)),
    "a word and more": np.cumsum(np.where(np.arange(2000) % 8 == 5, 30 + np.arange(2000) // 8 % 200, 1)),
    **{
        f"{n} of them": np.arange(n) * 37 + 3 for n in (1, 2, 3, 4, 5, 7, 8, 9, 17, 127, 128, 129, 131, 256, 1021, 2063)
    },
}


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS.keys())
def test_rice_sections_are_the_same_bytes(support, adaptive, plainly):
    indices, size = np.asarray(support, dtype=np.int64), 1 << 40
    planned, plain = rice.plan(indices, size, adaptive), plainly(rice.plan, indices, size, adaptive)
    assert np.array_equal(planned.parameters, plain.parameters)
    assert planned[3:] == plain[3:]
    section = rice.write(planned)
    assert section == plainly(rice.write, plain)
    assert len(section) == planned.size
    assert np.array_equal(rice.read(memoryview(section), size, len(indices), adaptive), indices)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("name", ["both", "clusters", "random", "far", "5 of them", "129 of them"])
def test_damaged_rice_sections_mean_the_same_with_and_without_kernels(name, adaptive, plainly):
    def outcome(section, size, count):
        try:
            return rice.read(memoryview(section), size, count, adaptive).tolist()
        except MalformedPayload as error:
            return str(error)

    rng = np.random.default_rng(0)
    indices = np.asarray(SUPPORTS[name], dtype=np.int64)
    right = rice.write(rice.plan(indices, 1 << 40, adaptive))
    refused = 0
    for _ in range(150):
        section, size, count = bytearray(right), 1 << 40, len(indices)
        match rng.integers(5):
            case 0:
                section[rng.integers(len(section))] ^= 1 << rng.integers(8)
            case 1:
                del section[rng.integers(len(section)) :]
            case 2:
                section += bytes(rng.integers(0, 2, rng.integers(1, 12)).astype(np.uint8))
            case 3:
                count = int(rng.integers(0, 2 * count + 2))
            case _:
                size = int(indices[-1])
        expected = plainly(outcome, section, size, count)
        assert outcome(section, size, count) == expected
        refused += isinstance(expected, str)
    assert refused > 50


def test_a_sum_of_huge_steps_does_not_wrap_around():
    """65,536 gaps of 2⁴⁹ add up to 0 in 64 bits."""
    count = 1 << 16
    sent = rice.plan(np.arange(count), 1 << 48, blocks=True).sent
    parameter = (np.int64(48) >> np.arange(sent)) & 1
    parameters = np.tile(parameter, count // rice.BLOCK)
    bits = np.concatenate([parameters, np.ones(48 * count, np.int64), np.tile([0, 1], count)])
    section = np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    with pytest.raises(MalformedPayload, match="out of range"):
        rice.read(memoryview(section), 1 << 48, count, blocks=True)


@pytest.mark.parametrize("codec", dagc.VALUE_CODECS)
@pytest.mark.filterwarnings("ignore:overflow")
def test_values_are_the_same_bytes(codec, plainly):
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 255, 256, 257, 1000):
        for exponent in (-46, -40, -38, -5, 0, 4, 30, 38):
            values = np.clip(rng.standard_t(2, size) * 10.0**exponent, -3.4e38, 3.4e38).astype(np.float32)
            for some in (values, np.where(rng.random(size) < 0.5, values, np.float32(-0.0)), np.sign(values)):
                write, read = dagc.VALUE_CODECS[codec].write, dagc.VALUE_CODECS[codec].read
                payload = write(some)
                assert payload == plainly(write, some)
                assert read(memoryview(payload), size).tobytes() == plainly(quantise, some, codec).tobytes()


def test_sums_are_the_same_bits(plainly):
    rng = np.random.default_rng(0)
    for size in (1, 5, 1000, 32_768, 32_769, 100_003):
        for clients in (1, 3, 40):
            sparses = []
            for _ in range(clients):
                indices = np.flatnonzero(rng.random(size) < rng.choice([0.0, 0.01, 0.5, 1.0]))
                sparses.append(Sparse(size, indices, rng.standard_t(1.5, len(indices)).astype(np.float32)))
            weights = rng.integers(0, 1000, clients) + (np.arange(clients) == 0)
            expected = plainly(dagc.aggregate, sparses, weights)
            assert same_bits(dagc.aggregate(sparses, weights), expected)
            out = torch.full((size,), float("nan"))
            assert dagc.aggregate(sparses, weights, out=out) is out
            assert same_bits(out, expected)


def test_sums_of_groups_of_clients_are_the_same_bits(monkeypatch):
    rng = np.random.default_rng(0)
    sparses = [top_k(torch.from_numpy(rng.standard_t(2, 5000).astype(np.float32)), 100 + i) for i in range(9)]
    expected = dagc.aggregate(sparses, range(1, 10))
    for together in (0, 150, 333, 1 << 20):
        monkeypatch.setattr(sys.modules["dagc.sparse"], "TOGETHER", together)
        assert same_bits(dagc.aggregate(sparses, range(1, 10)), expected)
        wrong = [*sparses, Sparse.trusted(5000, np.array([3, 5000]), np.ones(2, np.float32))]
        with pytest.raises(dagc.InvalidInput, match="client 9"):
            dagc.aggregate(wrong, [1] * 10)


def test_entries_cut_out_of_larger_arrays_add_up(plainly):
    indices, values = np.arange(20)[::2], np.arange(20, dtype=np.float32)[::2]
    sparse = Sparse.trusted(20, indices, values)
    assert torch.equal(dagc.aggregate([sparse], [1]), plainly(dagc.aggregate, [sparse], [1]))
    assert dagc.encode(sparse) == plainly(dagc.encode, sparse)


def run(code, *, without=(), path=None, **environment):
    """Run a script in a process of its own; what it prints."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    kept |= {"PYTHONPATH": str(path or PACKAGE.parent), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], env=kept, capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


THE_WHOLE_WAY = """
    import hashlib, numpy as np, torch, dagc
    rng, seen = np.random.default_rng(0), hashlib.sha256()
    clients = [dagc.ErrorFeedback(dagc.top_k, 120_000, values="int8") for _ in range(3)]
    for _ in range(3):
        gradients = [torch.from_numpy(rng.standard_t(2, 120_000).astype(np.float32)) for _ in clients]
        payloads = [dagc.encode(c.step(g, 1200), "int8") for c, g in zip(clients, gradients)]
        total = dagc.aggregate([dagc.decode(payload, 120_000) for payload in payloads], [1, 2, 3])
        for part in (*payloads, total.numpy().tobytes(), clients[0].residual.numpy().tobytes()):
            seen.update(part)
    print(seen.hexdigest())
"""


def test_the_same_bits_without_numba(capsys, plainly):
    code = textwrap.dedent(THE_WHOLE_WAY)
    exec(code, {})
    plainly(exec, code, {})
    one, other = capsys.readouterr().out.split()
    assert one == other == run("import sys; sys.modules['numba'] = None\n" + code).strip()


def test_the_switch_must_be_one_that_exists(monkeypatch):
    compiled.cache_clear()
    monkeypatch.setenv("DAGC_KERNELS", "cuda")
    with pytest.raises(dagc.InvalidInput, match="DAGC_KERNELS must be auto or torch, not 'cuda'"):
        top_k(torch.ones(3), 1)


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path):
    script = """
    import sys, dagc
    assert not {"numba", "llvmlite"} & set(sys.modules), "importing dagc must not import numba, let alone compile"
    import dagc.compressors._kernels, dagc.wire._kernels, dagc._sum_kernels
    assert dagc.aggregate([dagc.Sparse(3, [1], [2.0])], [1]).tolist() == [0.0, 2.0, 0.0]
    print(dagc.__file__, type(dagc._sum_kernels.add_up._cache).__name__)
    """
    shutil.copytree(PACKAGE, tmp_path / "dagc", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [tmp_path / "dagc", *(tmp_path / "dagc").rglob("*")]:
        if folder.is_dir():
            (folder / "__pycache__").write_text("a file where the folder would be: not even root can write there")
    there = str(tmp_path / "dagc" / "__init__.py")
    homeless = {"path": tmp_path, "without": ["HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"]}
    assert run(script, **homeless, HOME="/dev/null", NUMBA_CACHE_DIR="/dev/null/none").split() == [there, "NullCache"]
    made = tmp_path / "not" / "there" / "yet"
    assert run(script, **homeless, NUMBA_CACHE_DIR=str(made)).split() == [there, "FunctionCache"]
    assert any(made.rglob("*.nbc"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_kernels_work_after_a_fork():
    run(
        """
        import os, threading, warnings, numpy as np, torch, dagc
        warnings.simplefilter("ignore")  # that this process has threads is the point
        torch.set_num_threads(1)
        gradient = torch.from_numpy(np.random.default_rng(0).standard_t(2, 50_000).astype(np.float32))
        def work():
            feedback = dagc.ErrorFeedback(dagc.top_k, 50_000)
            sent = [feedback.step(gradient, 500) for _ in range(5)]
            return dagc.aggregate(sent, [1] * 5).numpy().tobytes() + feedback.residual.numpy().tobytes()
        expected = work()
        stop = threading.Event()
        busy = threading.Thread(target=lambda: [work() for _ in iter(stop.is_set, True)])
        busy.start()
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os._exit(0 if work() == expected else 1)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        stop.set()
        busy.join()
        assert codes == [0] * 4, codes
        """
    )


@pytest.mark.slow
def test_the_core_passes_its_tests_without_kernels():
    root = Path(__file__).parents[2]
    names = ("compressors/test_feedback", "engines/test_memory", "compressors/test_contracts", "wire/test_wire")
    names += ("wire/test_hostile_frames", "core/test_entries")
    tests = [str(root / "tests" / f"{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests], env={**os.environ, "DAGC_KERNELS": "torch"}, cwd=root
    )
    assert done.returncode == 0
