"""The contract suite over everything registered: whoever adds a part has it tested by adding it."""

import pytest
import torch

import dagc
from dagc import ALLOCATORS, COMPRESSORS, VALUE_CODECS, Allocator, Sparse, per_tensor
from dagc.allocation import power
from dagc.compressors import compressor
from dagc.policies import METHODS, Allocated, Method
from dagc.testing import check_allocator, check_compressor, check_policy, check_update, check_value_codec
from dagc.updates import Update, decode_update, encode_dense, encode_update
from research.accordion import Accordion


@pytest.mark.parametrize("name", ALLOCATORS)
def test_allocator(name):
    check_allocator(ALLOCATORS[name], name)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressor(name):
    check_compressor(COMPRESSORS[name], name=name)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressor_per_tensor(name):
    @compressor(COMPRESSORS[name].parameter)
    def select(vector, parameter, *, seed=0):
        sizes = [len(vector)] if len(vector) < 4 else [1, len(vector) // 2, len(vector) - 1 - len(vector) // 2]
        return per_tensor(COMPRESSORS[name], sizes)(vector, parameter, seed=seed)

    check_compressor(select, name=f"{name} per tensor")


@pytest.mark.parametrize("name", VALUE_CODECS)
def test_value_codec(name):
    check_value_codec(VALUE_CODECS[name], name)


OPTIONS = {"accordion": {"interval": 2, "change": 0.1, "gentle": 0.5, "aggressive": 0.001}}


@pytest.mark.parametrize("name", METHODS)
def test_policy(name):
    assert set(OPTIONS.get(name, {})) == set(METHODS[name].options), "every option is tried"
    check_policy(METHODS[name], name, OPTIONS.get(name))


def within(bits):
    """A dense update if it is short enough, else none."""

    def encode(vector, shapes, most):
        frame, update = encode_dense(vector, shapes, bits)
        return (frame, update) if len(frame) <= most else (b"", Update.empty(len(vector)))

    return encode


FORMS = {
    "terms and entries": encode_update,
    "entries alone": lambda vector, shapes, most: encode_update(vector, shapes, most, most_terms=0),
    "half of the energy": lambda vector, shapes, most: encode_update(vector, shapes, most, share=0.5),
    **{f"dense, {bits} bits": within(bits) for bits in (2, 4, 8)},
}


@pytest.mark.parametrize("name", FORMS)
def test_update(name):
    check_update(FORMS[name], decode_update, name)


class TestTheSuiteCatches:
    """A contract suite that passes everything is worth nothing."""

    def test_an_overspending_allocator(self):
        with pytest.raises(AssertionError, match="spends"):
            check_allocator(Allocator(ratios=lambda shares, total: power(shares, total) * 1.01))

    def test_an_allocator_that_starves_a_client(self):
        def starve(shares, total):
            ratios = power(shares, total)
            if len(ratios) > 1:
                ratios[:2] = ratios[:2].sum(), 0
            return ratios

        with pytest.raises(AssertionError, match="gets nothing"):
            check_allocator(Allocator(ratios=starve))

    @pytest.mark.parametrize(
        ("broken", "complaint"),
        [
            (lambda vector, k, seed: Sparse(len(vector), range(k), vector[:k] * 2), "changed a value"),
            (lambda vector, k, seed: Sparse(len(vector), range(k), vector.neg_()[:k]), "changed its input"),
            (lambda vector, k, seed: Sparse(len(vector) + 1, range(k), vector[:k]), "has size"),
        ],
    )
    def test_a_broken_compressor(self, broken, complaint):
        declared = compressor("entries")(lambda vector, parameter, *, seed=0: broken(vector, parameter, seed))
        with pytest.raises(AssertionError, match=complaint):
            check_compressor(declared, lambda vector: [min(3, len(vector))])

    def test_a_compressor_that_does_not_say_what_its_parameter_is(self):
        with pytest.raises(AssertionError, match="does not say what its parameter is"):
            check_compressor(lambda vector, parameter, *, seed=0: COMPRESSORS["top-k"](vector, parameter))

    def test_a_codec_that_is_no_projection(self):
        int8 = VALUE_CODECS["int8"]
        drifting = int8._replace(read=lambda section, count: int8.read(section, count) * 1.5)
        with pytest.raises(AssertionError, match=r"other bytes|NaN"):
            check_value_codec(drifting)

    def test_a_codec_whose_size_falls(self):
        fp32 = VALUE_CODECS["fp32"]
        with pytest.raises(AssertionError, match="more bytes than one value more would"):
            check_value_codec(fp32._replace(size=lambda count: 0 if count == 256 else fp32.size(count)))

    def test_a_policy_that_forgets(self):
        class Forgetful(Accordion):
            def load_state_dict(self, state):
                pass

        with pytest.raises(AssertionError, match="decides differently"):
            check_policy(Method(("ratio",), Forgetful))

    def test_a_policy_that_remembers_by_position(self):
        class ByPosition(Allocated):
            def decide(self, now):
                decided = super().decide(now)
                self._saved = dict(zip(sorted(self._saved), self._saved.values(), strict=True))
                self.calls = getattr(self, "calls", 0) + 1  # not in its state
                return decided if self.calls % 5 else decided[::-1]

        with pytest.raises(AssertionError, match="decides differently"):
            check_policy(Method(("bytes",), lambda plan, size: ByPosition(plan, size, "dagc-r", "top-k"), waits=True))

    def test_a_policy_that_overspends(self):
        class Generous(Allocated):
            def decide(self, now):
                return [min(count + 3, self.size // 1000) for count in super().decide(now)]

        with pytest.raises(AssertionError, match=r"more than|cap"):
            check_policy(Method(("bytes", "rate"), lambda plan, size: Generous(plan, size, "dagc-r", "top-k")))

    def test_a_form_that_takes_more_bytes_than_it_may(self):
        with pytest.raises(AssertionError, match="the frame has"):
            check_update(lambda vector, shapes, most: encode_update(vector, shapes, most + 1), decode_update)

    def test_a_form_whose_sides_do_not_agree(self):
        def encode(vector, shapes, most):
            frame, _ = encode_update(vector, shapes, most)
            return frame, Update.of(Sparse(len(vector), [], []))

        with pytest.raises(AssertionError, match="decodes to other bits"):
            check_update(encode, decode_update)

    def test_a_form_that_says_more_than_there_is(self):
        def encode(vector, shapes, most):
            frame, _ = encode_update(vector, shapes, most)
            return frame, decode(frame, shapes)

        def decode(frame, shapes):
            sparse = Sparse(4097, [7], [1e6])
            return Update.of(sparse) if frame else decode_update(frame, shapes)

        with pytest.raises(AssertionError, match="more than the vector"):
            check_update(encode, decode)

    def test_a_form_whose_reader_trusts_the_bytes(self):
        def decode(frame, shapes):
            try:
                return decode_update(frame, shapes)
            except dagc.MalformedPayload:
                raise ValueError from None

        with pytest.raises(AssertionError, match="damaged bytes raise ValueError"):
            check_update(encode_update, decode)


def test_vectors_are_what_they_say():
    from dagc.testing import vectors

    assert all(torch.isfinite(vector).all() and vector.dtype == torch.float32 for vector in vectors().values())
