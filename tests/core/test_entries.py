"""Entries that nobody has checked do not reach memory, and codecs of others are checked."""

import numpy as np
import pytest
import torch

import dagc
from dagc import InvalidInput, MalformedPayload, Sparse, aggregate
from dagc._numba import compiled
from dagc.wire import VALUE_CODECS, Memory, is_coded


def unchecked(size, indices, values=None):
    indices = np.asarray(indices, np.int64)
    return Sparse.trusted(size, indices, np.ones(len(indices), np.float32) if values is None else values)


@pytest.fixture(params=["auto", "torch"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("DAGC_KERNELS", request.param)
    compiled.cache_clear()
    yield request.param
    compiled.cache_clear()


@pytest.mark.parametrize("indices", [[-1], [100_000], [5, -(2**62)], [2**62], [-5, 5], [5, 7, 100_001]], ids=str)
def test_a_sum_of_entries_outside_of_the_vector_is_refused(kernels, indices):
    good, bad = Sparse(100_000, [0, 99_999], [1.0, 1.0]), unchecked(100_000, indices)
    for these in ([good, bad], [bad]):
        with pytest.raises(InvalidInput, match=f"client {len(these) - 1} do not ascend"):
            aggregate(these, np.ones(len(these)))


def test_a_sum_of_entries_in_disorder_stays_within_its_memory(kernels):
    """In kernels, they may be added up all the same."""
    bad = unchecked(100_000, np.tile([0, 99_999], 100_000))
    if kernels == "torch":
        with pytest.raises(InvalidInput, match="client 0 do not ascend"):
            aggregate([bad], [1])
    with pytest.raises(InvalidInput, match="one value per index"):
        aggregate([unchecked(10, [1, 2, 3], np.ones(2, np.float32))], [1])


def test_what_a_compressor_of_somebody_else_selects_is_looked_at():
    for wrong in ([-1], [10], [3, 2], [4, 4]):
        feedback = dagc.ErrorFeedback(lambda vector, parameter, *, seed=0, w=wrong: unchecked(10, w), 10)
        with pytest.raises(InvalidInput, match="selected an entry twice, or one that is not in"):
            feedback.step(torch.ones(10), 1)
        assert not feedback.residual.any()


def test_what_a_codec_of_somebody_else_reads_is_looked_at(monkeypatch):
    frame = dagc.encode(Sparse(10, [1, 2], [1.0, 2.0]))
    for wrong in ([1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]):
        codec = VALUE_CODECS["fp32"]._replace(read=lambda *_, w=wrong: np.array(w, np.float32))
        monkeypatch.setitem(VALUE_CODECS, "fp32", codec)
        with pytest.raises(MalformedPayload, match="value codec 0 returned bad entries"):
            dagc.decode(frame, 10)


@pytest.mark.parametrize(
    "indices", [[-1], [100_000], [5, 2], [4, 4], [2**62], [-(2**62), 5], [0] * 3000, range(5000, 0, -1)], ids=str
)
def test_nothing_is_made_of_entries_that_are_not_in_the_vector(kernels, indices):
    """Kernels that write gaps between indices would run over their memory, or for ever."""
    bad = unchecked(100_000, np.array(indices))
    ways = [{}, {"values": "sign"}, {"memory": Memory([100_000], signs=False)}]
    for way in ways:
        with pytest.raises(InvalidInput, match="do not ascend"):
            dagc.encode(bad, **way)
    feedback = dagc.ErrorFeedback(dagc.top_k, 100_000)
    for use in (bad.dense, lambda: feedback.unsend(bad)):
        with pytest.raises(InvalidInput, match="do not ascend"):
            use()
    assert not feedback.residual.any()


def test_a_seed_from_which_other_entries_follow_is_found_out():
    """The server would read other places than the client believes it has sent."""
    drawn = dagc.random_k(torch.zeros(10), 3, seed=5)
    others = np.setdiff1d(np.arange(10), drawn.indices)[:3]
    for indices, right in ((drawn.indices, True), (others, False)):
        values = np.ones(3, np.float32)
        chosen = Sparse.trusted(10, indices, values, drawn.seed)
        feedback = dagc.ErrorFeedback(lambda vector, parameter, *, seed=0, c=chosen: c, 10)
        if right:
            assert feedback.step(torch.ones(10), 3).seed == drawn.seed
        else:
            with pytest.raises(InvalidInput, match="its seed does not draw"):
                feedback.step(torch.ones(10), 3)


def doubled(number, read=lambda section, count: np.frombuffer(section, "<f4") / 2):
    """A value codec of somebody else."""
    return VALUE_CODECS["fp32"]._replace(
        id=number, write=lambda values: (2 * values).astype("<f4").tobytes(), read=read
    )


@pytest.mark.parametrize("way", [{}, {"memory": Memory([10], signs=False)}], ids=list)
def test_codecs_that_were_registered_later_are_read(monkeypatch, way):
    monkeypatch.setitem(VALUE_CODECS, "doubled", doubled(9))
    sparse = Sparse(10, [1, 7], [1.0, 2.0])
    frame = dagc.encode(sparse, "doubled", **way)
    assert dagc.decode(frame, 10, values="doubled", **way) == sparse


@pytest.mark.parametrize("number", [0, 2, 16, -1])
def test_a_codec_with_a_number_of_another_is_refused(monkeypatch, number):
    """Or frames would be read by the other one, and be something else."""
    sparse = Sparse(10, [1, 7], [1.0, 2.0])
    monkeypatch.setitem(VALUE_CODECS, "thief", doubled(number))
    with pytest.raises(InvalidInput, match="value codec 'thief' has the number"):
        dagc.encode(sparse, "thief")


@pytest.mark.parametrize("wrong", [np.ones(1), np.ones(3), np.full(2, np.nan), np.ones((2, 1))], ids=str)
def test_what_a_value_codec_of_somebody_else_reads_is_looked_at_in_coded_frames_too(monkeypatch, wrong):
    monkeypatch.setitem(VALUE_CODECS, "doubled", doubled(9))
    for memory in (None, Memory([(100, 100)], signs=False)):
        sparse = Sparse(10_000, np.arange(100) ** 2, np.ones(100))
        for _ in range(0 if memory is None else 20):
            memory.learn(sparse)  # what comes again and again takes fewer bytes with the memory
        frame = dagc.encode(sparse, "doubled", memory=memory)
        assert is_coded(frame) == (memory is not None)
        with monkeypatch.context() as other:
            other.setitem(VALUE_CODECS, "doubled", doubled(9, lambda *_: wrong.astype(np.float32)))
            with pytest.raises(MalformedPayload):
                dagc.decode(frame, 10_000, memory=memory)
