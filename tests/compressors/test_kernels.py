"""The compiled kernels select what the plain code selects, bit for bit."""

import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dagc
from dagc import ErrorFeedback, NonFiniteGradient, compressors, hard_threshold, random_k, top_k
from tests.helpers.vectors import (
    constant,
    denormal,
    few,
    heavy_tailed,
    layers,
    normal,
    same_bits,
    spikes,
    ties,
    zeros,
)

pytest.importorskip("numba")
_fast = pytest.importorskip("dagc.compressors._fast")


@pytest.fixture(params=["cached", "streamed"])
def writing(request, monkeypatch):
    """Both ways of writing the sum, whatever the size."""
    monkeypatch.setattr(_fast, "STREAM_FROM", 1 if request.param == "streamed" else 1 << 60)


def by_sorting(vector, count):
    """Top-k in the words of its definition: by magnitude, the first of equals first, no zeros."""
    order = np.argsort(-np.abs(vector.numpy()), kind="stable")[:count]
    return np.sort(order[vector.numpy()[order] != 0])


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
    assert np.array_equal(compressors.largest(vector.numpy(), count), by_sorting(vector, count))


@pytest.mark.parametrize("guess", [1, 0x7F000000, 0x3F800000, 0x7F800000])
@pytest.mark.parametrize("make", DISTRIBUTIONS)
def test_a_wrong_guess_costs_time_only_without_kernels(make, guess, monkeypatch, plainly):
    for answer in (guess, torch.tensor(guess)):
        monkeypatch.setattr(compressors, "_guess", lambda vector, count, answer=answer: answer)
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
