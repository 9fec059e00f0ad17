"""Error feedback: nothing is lost, whatever the tensor, the codec or the mishap."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import ErrorFeedback, InvalidInput, NonFiniteGradient, Sparse, hard_threshold, per_tensor, random_k, top_k
from dagc.wire.indices import SEED

floats = st.floats(-(2.0**100), 2.0**100, width=32)


@given(st.lists(st.lists(floats, min_size=9, max_size=9), min_size=1, max_size=6), st.integers(0, 9))
def test_what_is_decoded_plus_the_residual_is_everything(gradients, k):
    feedback = ErrorFeedback(top_k, size=9)
    for gradient in gradients:
        total = feedback.residual + torch.tensor(gradient)
        sparse = dagc.decode(dagc.encode(feedback.step(torch.tensor(gradient), k)), 9)
        assert len(sparse) <= k
        assert torch.equal(sparse.dense() + feedback.residual, total)


@pytest.mark.parametrize("values", ["int8", "sign"])
def test_the_rounding_error_of_a_codec_stays_in_the_residual(values):
    generator = torch.Generator().manual_seed(0)
    feedback = ErrorFeedback(top_k, size=5000, values=values)
    sent, everything = torch.zeros(5000, dtype=torch.float64), torch.zeros(5000, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.randn(5000, generator=generator).pow(3)
        everything += gradient
        sparse = feedback.step(gradient, 100)
        assert dagc.decode(dagc.encode(sparse, values), sparse.size) == sparse
        sent += sparse.dense()
    assert torch.allclose(sent + feedback.residual, everything, rtol=1e-5, atol=1e-5)
    assert sent.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_any_float_type_and_layout_means_the_same_vector(dtype):
    image = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    layouts = [
        image,
        image.contiguous(memory_format=torch.channels_last),
        image.repeat(1, 1, 1, 2)[..., ::2].clone()[:, :, :, :5].copy_(image),
        image.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
        image.clone().requires_grad_(),
    ]
    steps = [ErrorFeedback(top_k, size=120).step(layout, 30) for layout in layouts]
    assert all(step == steps[0] for step in steps)
    assert steps[0] == top_k(image.float().flatten(), 30)


def test_a_list_of_tensors_is_one_vector():
    parts = [torch.randn(3, 4), torch.randn(5), torch.randn(1)]
    whole = torch.cat([part.flatten() for part in parts])
    one, other = ErrorFeedback(top_k, size=18), ErrorFeedback(top_k, size=18)
    for _ in range(3):
        assert one.step(parts, 4) == other.step(whole, 4)
    assert torch.equal(one.residual, other.residual)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("compressor", "parameter"), [(top_k, 3), (random_k, 3), (hard_threshold, 0.5)])
@pytest.mark.parametrize("at", [0, 7, 4999])
def test_a_gradient_that_is_not_finite_changes_nothing(bad, compressor, parameter, at):
    feedback = ErrorFeedback(compressor, size=5000)
    feedback.step(torch.randn(5000), parameter)
    before, steps = feedback.residual.clone(), feedback.steps
    gradient = torch.randn(5000)
    gradient[at] = bad
    with pytest.raises(NonFiniteGradient, match=f"entry {at} of 5000"):
        feedback.step(gradient, parameter)
    assert torch.equal(feedback.residual, before)
    assert feedback.steps == steps
    feedback.step(torch.randn(5000), parameter)


def test_a_sum_that_overflows_is_refused_too():
    feedback = ErrorFeedback(top_k, size=2)
    feedback.step(torch.tensor([3e38, 1e38]), 0)
    with pytest.raises(NonFiniteGradient):
        feedback.step(torch.tensor([3e38, 0.0]), 1)
    assert feedback.residual.tolist() == pytest.approx([3e38, 1e38])


def test_an_upload_that_was_never_taken_can_be_given_back():
    feedback, other = ErrorFeedback(top_k, size=100), ErrorFeedback(top_k, size=100)
    gradient = torch.randn(100)
    feedback.unsend(feedback.step(gradient, 10))
    other.step(gradient, 0)
    assert torch.equal(feedback.residual, other.residual)
    with pytest.raises(InvalidInput, match="of 99 entries"):
        feedback.unsend(Sparse(99, [], []))


def test_taking_an_upload_back_leaves_the_tensor_that_somebody_holds_alone():
    feedback = ErrorFeedback(top_k, size=100)
    sparse = feedback.step(torch.randn(100), 10)
    held, before = feedback.residual, feedback.residual.clone()
    feedback.unsend(sparse)
    assert torch.equal(held, before)
    assert torch.equal(feedback.residual, before + sparse.dense())


@pytest.mark.parametrize("size", [100, 200_000])
def test_steps_are_undone_by_rolling_back(size):
    feedback, other = ErrorFeedback(random_k, size, seed=3), ErrorFeedback(random_k, size, seed=3)
    gradients = [torch.randn(size) for _ in range(4)]
    for gradient in gradients:
        before, residual, bits = feedback.snapshot(), feedback.residual, feedback.residual.clone()
        wrong = feedback.step(torch.randn(size), size // 2)
        feedback.unsend(wrong)
        feedback.step(torch.randn(size), 5)
        feedback.rollback(before)
        assert feedback.residual is residual
        feedback.step(gradient, 10)
        assert torch.equal(residual, bits)
        other.step(gradient, 10)
        assert len(wrong) == size // 2
    assert torch.equal(feedback.residual, other.residual)


@pytest.mark.parametrize(
    ("residual", "says"),
    [
        (torch.zeros(4), r"5 float32 numbers, not torch.float32 \(4,\)"),
        (torch.zeros(5, dtype=torch.float64), "5 float32 numbers, not torch.float64"),
        (torch.zeros(5, 1), r"\(5, 1\)"),
        (np.zeros(5, dtype=np.float32), "tensor, not ndarray"),
    ],
)
def test_a_residual_of_another_kind_is_refused(residual, says):
    feedback = ErrorFeedback(top_k, size=5)
    before = feedback.residual
    with pytest.raises(InvalidInput, match=says):
        feedback.residual = residual
    assert feedback.residual is before


def test_compressor_values_and_seed_may_change_between_steps():
    settings = [
        (top_k, "fp32", 0, 50),
        (hard_threshold, "int8", 1, 0.5),
        (random_k, "sign", 2, 70),
        (top_k, "int8", 3, 9),
    ]
    one = ErrorFeedback(top_k, size=500)
    state = one.state_dict()
    for compressor, values, seed, parameter in settings * 2:
        gradient = torch.randn(500)
        one.compressor, one.values, one.seed = compressor, values, seed
        fresh = ErrorFeedback(compressor, size=500, values=values, seed=seed)
        fresh.load_state_dict(state)
        assert one.step(gradient, parameter) == fresh.step(gradient, parameter)
        assert torch.equal(one.residual, fresh.residual)
        state = one.state_dict()
    one.values = "fp8"
    before = one.residual
    with pytest.raises(InvalidInput, match="'fp8': choose one of"):
        one.step(torch.randn(500), 3)
    assert one.residual is before
    assert one.steps == len(settings * 2)


@pytest.mark.parametrize("compressor", [top_k, random_k])
def test_state_goes_out_and_in_as_plain_arrays(compressor):
    feedback = ErrorFeedback(compressor, size=50, seed=3)
    feedback.step(torch.randn(50), 5)
    state = feedback.state_dict()
    assert all(isinstance(array, np.ndarray) for array in state.values())
    other = ErrorFeedback(compressor, size=50, seed=3)
    other.load_state_dict(state)
    for _ in range(3):
        gradient = torch.randn(50)
        assert other.step(gradient, 5) == feedback.step(gradient, 5)
    assert not np.array_equal(state["residual"], feedback.residual.numpy())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"residual": np.zeros(3, np.float32)}, "50 float32"),
        ({"residual": np.zeros(50)}, "50 float32"),
        ({"residual": np.full(50, np.nan, np.float32)}, "damaged"),
        ({"more": np.zeros(1)}, "'residual' and 'steps'"),
    ],
)
def test_a_damaged_state_is_refused(change, says):
    feedback = ErrorFeedback(top_k, size=50)
    with pytest.raises(InvalidInput, match=says):
        feedback.load_state_dict({**feedback.state_dict(), **change})


@pytest.mark.parametrize("state", [{}, {"residual": np.ones(50, np.float32), "steps": "x"}])
def test_a_state_is_loaded_whole_or_not_at_all(state):
    feedback = ErrorFeedback(top_k, size=50)
    feedback.step(torch.randn(50), 5)
    before = feedback.snapshot()
    with pytest.raises(InvalidInput):
        feedback.load_state_dict(state)
    assert feedback.snapshot() == before


@pytest.mark.parametrize("values", dagc.VALUE_CODECS)
@pytest.mark.parametrize("scale", [1e-40, 1.0, 1e30])
def test_what_is_sent_is_within_the_clip_however_small_it_is(values, scale):
    gradient = torch.randn(600, generator=torch.Generator().manual_seed(0)) * scale
    for clip in (2.0**-126, 1e-30, 1e-6, 0.5, 1e20):
        feedback = ErrorFeedback(top_k, size=600, values=values)
        feedback.clip = clip
        sparse = feedback.step(gradient, 100)
        assert np.linalg.norm(sparse.values.astype(np.float64)) <= clip
        assert dagc.decode(dagc.encode(sparse, values), sparse.size) == sparse
        assert torch.allclose(sparse.dense() + feedback.residual, gradient)


@pytest.mark.parametrize("clip", [1e-45, 2.0**-127, -1.0, float("nan"), float("inf")])
def test_a_clip_that_nothing_can_be_scaled_to_is_refused(clip):
    feedback = ErrorFeedback(top_k, size=5)
    with pytest.raises(InvalidInput, match="clip must be 0"):
        feedback.clip = clip
    assert feedback.clip == 0


def test_top_k_takes_the_largest_the_first_of_equals_and_no_zeros():
    vector = torch.tensor([1.0, -2.0, 2.0, 0.0, -2.0, -0.0, 1e-45])
    assert top_k(vector, 2).indices.tolist() == [1, 2]
    assert top_k(vector, 3).indices.tolist() == [1, 2, 4]
    assert top_k(vector, 7).indices.tolist() == [0, 1, 2, 4, 6]


def test_the_receiver_draws_the_same_random_indices():
    sparse = random_k(torch.randn(100_000), 1000, seed=12345)
    payload = dagc.encode(sparse)
    assert payload[0] >> 4 == SEED
    assert dagc.decode(payload, 100_000) == sparse
    assert len(payload) < 4 * 1000 + 30


@settings(max_examples=30)
@given(st.integers(1, 500), st.integers(0, 2**64 - 1), st.data())
def test_random_indices_are_distinct_and_complete(size, seed, data):
    count = data.draw(st.integers(0, size))
    indices = random_k(torch.zeros(size), count, seed=seed).indices
    assert len(indices) == len(set(indices.tolist())) == count


def test_random_k_reaches_every_entry_equally_often():
    hits = np.zeros(50)
    feedback = ErrorFeedback(random_k, size=50, seed=1)
    for _ in range(2000):
        hits[feedback.step(torch.ones(50), 5).indices] += 1
    assert hits.sum() == 10_000
    assert np.abs(hits - 200).max() < 5 * np.sqrt(200)


def test_a_threshold_that_is_a_whole_number_is_no_count():
    vector = torch.tensor([0.1, 2.0, 0.3, 1.0, 0.2, 5.0])
    assert per_tensor(hard_threshold, [2, 4])(vector, 1) == hard_threshold(vector, 1.0)


def test_quantize_takes_any_floats():
    for name in dagc.VALUE_CODECS:
        exact = np.array([1.0, -2.0, 0.5, 4.0])
        assert np.array_equal(dagc.quantize(exact[::2], name), dagc.quantize(exact[::2].astype(np.float32), name))


def test_per_tensor_no_tensor_is_left_out_for_ever():
    """A bias of four entries beside a thousand: 0.5 % of it is nothing, and its residual would only grow."""
    feedback = ErrorFeedback(per_tensor(top_k, [1000, 4, 1]), 1005)
    gradient = torch.cat([torch.linspace(-1, 1, 1000), torch.full((5,), 0.01)])
    sent = torch.zeros(1005)
    for _ in range(50):
        sparse = feedback.step(gradient, 5)
        assert len(sparse) == 5
        sent[sparse.indices] += 1
    assert sent[1000:].min() >= 12
    few = per_tensor(top_k, [1000, 4, 1])(gradient, 2)
    assert few.indices.tolist() == [0, 999]  # fewer entries than tensors: the largest of all


def test_per_tensor_shares_the_entries_out_by_size():
    vector = torch.cat([torch.full((10,), 100.0), torch.ones(90)])
    sparse = per_tensor(top_k, [10, 90])(vector, 20)
    assert (sparse.indices < 10).sum() == 2
    assert len(sparse) == 20
    assert len(per_tensor(top_k, [10, 90])(vector, 0)) == 0
    with pytest.raises(InvalidInput, match="the tensors have 100"):
        per_tensor(top_k, [10, 90])(torch.ones(99), 3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: ErrorFeedback(top_k, size=0), "at least 1"),
        (lambda: ErrorFeedback(top_k, size=3, values="fp8"), "'fp8': choose one of"),
        (lambda: ErrorFeedback(top_k, size=3).step(torch.zeros(4), 1), "4 entries"),
        (lambda: ErrorFeedback(top_k, size=3).step(torch.zeros(3, dtype=torch.int64), 1), "int64"),
        (lambda: ErrorFeedback(top_k, size=3).step([1.0, 2.0, 3.0], 1), "not float"),
        (lambda: ErrorFeedback(top_k, size=3).step([], 1), "at least one tensor"),
        (lambda: top_k(torch.zeros(3), 4), "4 entries from a vector of 3"),
        (lambda: top_k(torch.zeros(3), -1), "-1 entries"),
        (lambda: top_k(torch.zeros(3), 0.5), "integer, not 0.5"),
        (lambda: top_k(torch.zeros(3), True), "integer, not True"),
        (lambda: random_k(torch.zeros(3), 4), "4 entries from a vector of 3"),
        (lambda: hard_threshold(torch.zeros(3), -1.0), "-1.0"),
        (lambda: hard_threshold(torch.zeros(3), float("nan")), "nan"),
        (lambda: per_tensor(top_k, []), "each at least 1"),
    ],
)
def test_bad_input_is_refused_with_the_reason(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


class TestSparse:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ((3, [0, 0], [1.0, 1.0]), "ascend"),
            ((3, [1, 0], [1.0, 1.0]), "ascend"),
            ((3, [3], [1.0]), "from 0 to 2"),
            ((3, [-1], [1.0]), "from 0 to 2"),
            ((3, [0.5], [1.0]), "integers"),
            ((3, [0], [1.0, 2.0]), "one for each"),
            ((3, [0], [float("nan")]), "finite"),
            ((3, [0], ["x"]), "numbers"),
            ((0, [], []), "from 1 to"),
            ((3, 1, 2.0), "integers"),
            ((3, [0], [1e300]), "finite"),
        ],
    )
    def test_disorder_is_refused(self, arguments, says):
        with pytest.raises(InvalidInput, match=says):
            Sparse(*arguments)

    def test_it_is_compared_by_its_entries(self):
        assert Sparse(3, [1], [2.0]) == Sparse(3, [1], [2.0])
        assert Sparse(3, [1], [2.0]) != Sparse(3, [1], [2.5])
        assert Sparse(3, [1], [2.0]) != Sparse(4, [1], [2.0])


class TestAggregate:
    def some(self, n=5, size=1000):
        generator = torch.Generator().manual_seed(0)
        return [top_k(torch.randn(size, generator=generator), 100) for _ in range(n)]

    def test_it_is_the_weighted_sum_in_order(self):
        sparses, weights = self.some(), [5, 1, 3, 0, 1]
        expected = torch.zeros(1000)
        for sparse, weight in zip(sparses, weights, strict=True):
            expected += torch.tensor(weight / 10) * sparse.dense()
        assert torch.equal(dagc.aggregate(sparses, weights), expected)

    def test_huge_weights_are_shares_too(self):
        expected = dagc.aggregate(self.some(2), [1, 1])
        assert torch.equal(dagc.aggregate(self.some(2), [1e308, 1e308]), expected)

    def test_into_a_given_tensor(self):
        out = torch.full((1000,), 7.0)
        result = dagc.aggregate(self.some(), [1] * 5, out=out)
        assert result.data_ptr() == out.data_ptr()
        assert torch.equal(result, dagc.aggregate(self.some(), [1] * 5))

    @pytest.mark.parametrize(
        ("sparses", "weights", "says"),
        [
            ([], [], "nothing to aggregate"),
            ([Sparse(3, [], [])], [1, 2], "each of the 1 clients"),
            ([Sparse(3, [], [])], [0], "not all 0"),
            ([Sparse(3, [], [])], [float("nan")], "finite"),
            ([Sparse(3, [], []), Sparse(4, [], [])], [1, 1], "of one size"),
        ],
    )
    def test_bad_input_is_refused(self, sparses, weights, says):
        with pytest.raises(InvalidInput, match=says):
            dagc.aggregate(sparses, weights)
