"""The contract suite over everything registered: whoever adds a part has it tested by adding it."""

import pytest
import torch

from dagc import ALLOCATORS, COMPRESSORS, VALUE_CODECS, Allocator, Sparse, per_tensor
from dagc.allocation import power
from dagc.compressors import compressor
from dagc.policies import METHODS, Allocated, Method
from dagc.testing import check_allocator, check_compressor, check_policy, check_value_codec
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


def test_vectors_are_what_they_say():
    from dagc.testing import vectors

    assert all(torch.isfinite(vector).all() and vector.dtype == torch.float32 for vector in vectors().values())
