"""Memory is reused as soon as nobody can see it, and never before; what is kept is bounded and can be released."""

import gc
import queue
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import ErrorFeedback, _memory, hard_threshold, random_k, top_k
from dagc._memory import LINE, SMALL, Pool

FLOAT32, INT64 = np.dtype(np.float32), np.dtype(np.int64)
LARGE = SMALL // 4
"""The fewest float32 values that come from the pool."""


@pytest.fixture(autouse=True)
def without_counts(monkeypatch):
    """As if nobody held anything: whoever trusts reference counts, which differ between Pythons, fails here."""
    monkeypatch.setattr(sys, "getrefcount", lambda _: 0)


@pytest.fixture(autouse=True)
def empty():
    gc.collect()
    dagc.release_memory()


def address(array):
    return array.__array_interface__["data"][0]


def reader(held):
    """Holds this and nothing else; called, it says what is to be seen there now."""
    return lambda: np.asarray(held).copy()


def cycle(held):
    """Holds this and itself: only the garbage collector ends that."""

    def read():
        assert read
        return np.asarray(held).copy()

    return read


def backward(array):
    """An autograd graph holds what it needs for the gradient."""
    leaf = torch.zeros(len(array), requires_grad=True)
    product = leaf * torch.from_numpy(array)
    return lambda: torch.autograd.grad(product, leaf, torch.ones(len(leaf)), retain_graph=True)[0].numpy().copy()


def storage(held):
    return lambda: torch.empty(0, dtype=torch.uint8).set_(held).numpy().copy()


HOLD = {
    "an array": reader,
    "a slice": lambda array: reader(array[7:-5]),
    "every other entry, backwards": lambda array: reader(array[::-2]),
    "a matrix": lambda array: reader(array.reshape(2, -1).T),
    "a slice of a slice": lambda array: reader(array[3:][4:][:100]),
    "other bits": lambda array: reader(array.view(np.uint8)[1::3]),
    "a subclass": lambda array: reader(array.view(np.recarray)),
    "a memoryview": lambda array: reader(memoryview(array)),
    "an array over a memoryview": lambda array: reader(np.frombuffer(memoryview(array), dtype=array.dtype)),
    "an iterator": lambda array: array.flat.copy,
    "ctypes": lambda array: reader(np.ctypeslib.as_ctypes(array)),
    "dlpack": lambda array: reader(np.from_dlpack(array)),
    "a tensor": lambda array: reader(torch.from_numpy(array)),
    "a slice of a tensor": lambda array: reader(torch.from_numpy(array)[9:-9]),
    "a view of a tensor": lambda array: reader(torch.from_numpy(array).view(2, -1).t()),
    "an array over a tensor": lambda array: reader(torch.from_numpy(array)[2:].numpy()),
    "storage": lambda array: storage(torch.from_numpy(array).untyped_storage()),
    "autograd": backward,
    "a cycle": cycle,
}


@pytest.mark.parametrize("hold", HOLD.values(), ids=HOLD.keys())
def test_what_is_held_in_any_way_does_not_change_and_is_reused_afterwards(hold):
    pool = Pool()
    array = pool.take(LARGE, FLOAT32)
    place = address(array)
    array[:] = np.arange(LARGE)
    read = hold(array)
    del array
    before = np.array(read())
    others = [pool.take(LARGE, FLOAT32) for _ in range(3)]
    for other in others:
        other.fill(np.nan)
        assert address(other) != place
    assert np.array_equal(read(), before)
    assert len(np.unique(before)) > 50
    del read
    gc.collect()
    assert address(pool.take(LARGE, FLOAT32)) == place


def test_a_vector_is_aligned_writable_and_of_the_type_asked_for():
    pool = Pool()
    for dtype in (FLOAT32, INT64, np.dtype(np.uint64), np.dtype(np.int32)):
        for count in (0, 1, 1000, LARGE - 1, LARGE, LARGE + 13, 10 * LARGE + 1):
            array = pool.take(count, dtype)
            assert array.shape == (count,)
            assert array.dtype == dtype
            assert array.flags.writeable
            assert array.flags.c_contiguous
            assert array.nbytes < SMALL or address(array) % LINE == 0
            array[:] = 7
            assert (array == 7).all()


def test_a_block_is_at_most_twice_as_large_as_what_it_holds():
    pool = Pool()
    array = pool.take(4 * LARGE, FLOAT32)
    place = address(array)
    del array
    assert address(pool.take(2 * LARGE - 1, FLOAT32)) != place
    assert address(pool.take(8 * LARGE, FLOAT32)) != place
    assert address(pool.take(2 * LARGE, INT64)) == place  # any type that needs as much
    for size in range(SMALL, 3 * SMALL, 10_007):
        block = _memory._new(size)
        assert size <= block.nbytes <= 1.125 * size


def test_one_that_is_too_small_does_not_hide_one_that_fits():
    pool = Pool()
    small, large = pool.take(LARGE, FLOAT32), pool.take(2 * LARGE - 1, FLOAT32)
    place = address(large)
    del large
    del small  # the last one back is the first one to be tried
    assert address(pool.take(2 * LARGE - 2, FLOAT32)) == place


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(LARGE - 5000, 5 * LARGE)),
            st.tuples(st.just("drop"), st.integers(0, 99)),
            st.tuples(st.just("cut"), st.integers(0, 99)),
            st.tuples(st.just("tensor"), st.integers(0, 99)),
            st.tuples(st.just("copy"), st.integers(0, 99)),
            st.tuples(st.just("release"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_whatever_is_taken_held_and_dropped_nothing_overlaps(actions):
    pool, held, stamp = Pool(), [], 0
    for action, number in actions:
        at = number % len(held) if held else None
        if action == "take":
            stamp += 1
            array = pool.take(number, FLOAT32)
            array.fill(stamp)
            held.append((array, stamp))
            del array
        elif action == "release":
            pool.release()
        elif at is None:
            continue
        elif action == "drop":
            held.pop(at)
        elif action == "cut":
            held[at] = held[at][0][len(held[at][0]) // 3 :], held[at][1]
        elif action == "tensor":
            held[at] = torch.as_tensor(held[at][0]), held[at][1]
        else:
            held.append((held[at][0][:], held[at][1]))  # a second view of the same
        for kept, value in held:
            assert (kept == value).all()
    addresses = {}
    for kept, value in held:
        start = torch.as_tensor(kept).data_ptr()
        addresses.setdefault(value, []).append((start, start + 4 * len(kept)))
    spans = sorted(
        (min(starts), max(ends)) for starts, ends in (zip(*spans, strict=True) for spans in addresses.values())
    )
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_threads_never_get_the_same_memory():
    pool, wrong, passed_on = Pool(), [], queue.SimpleQueue()

    def work(number):
        rng, held = np.random.default_rng(number), []
        for step, size in enumerate(rng.integers(LARGE, 2 * LARGE, 4000).tolist()):
            array, stamp = pool.take(size, FLOAT32), 10_000 * number + step
            array[0] = array[-1] = stamp
            held.append((array, stamp))
            del array
            if step % 3 == 0:
                passed_on.put(held.pop())  # another thread will check and drop it
            if step % 4 == 0:
                held.append(passed_on.get())
            while len(held) > 2:
                kept, value = held.pop(0)
                if not kept[0] == kept[-1] == value:
                    wrong.append((number, step, value))
                del kept
            if step % 1000 == 0:
                pool.release()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    while not passed_on.empty():
        kept, value = passed_on.get()
        assert kept[0] == kept[-1] == value


def test_what_is_kept_is_bounded(monkeypatch):
    pool = Pool()
    many = [pool.take(LARGE, FLOAT32) for _ in range(100)]
    assert pool.release() == 0
    del many
    assert pool.release() == _memory.KEEP_BLOCKS * SMALL
    monkeypatch.setattr(_memory, "KEEP_BYTES", 4 * SMALL)
    pool = Pool()
    many = [pool.take(LARGE, FLOAT32) for _ in range(100)]
    del many
    assert pool.release() <= 4 * SMALL
    many = [pool.take(20 * LARGE, FLOAT32) for _ in range(10)]  # one alone is more than the bound
    del many
    assert pool.release() == 2 * 20 * SMALL
    assert pool.release() == 0


def test_released_memory_is_gone_and_what_is_in_use_stays():
    feedback = ErrorFeedback(top_k, LARGE)
    sparse = feedback.step(torch.randn(LARGE), LARGE)
    residual, entries = feedback.residual.clone(), sparse.dense()
    assert dagc.release_memory() >= 4 * LARGE  # the first residual
    assert dagc.release_memory() == 0
    for _ in range(3):
        ErrorFeedback(top_k, LARGE).step(torch.randn(LARGE), LARGE)
    assert torch.equal(feedback.residual, residual)
    assert torch.equal(sparse.dense(), entries)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_memory_of_ended_threads_is_released_too(kernels, monkeypatch):
    monkeypatch.setenv("DAGC_KERNELS", kernels)
    dagc._numba.compiled.cache_clear()
    try:
        vector = torch.randn(5_000_000)  # in the end, nothing but buffers for work is left
        threads = [
            threading.Thread(target=lambda: ErrorFeedback(hard_threshold, len(vector)).step(vector, 2.0))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert dagc.release_memory() > 1_000_000
        assert dagc.release_memory() == 0
    finally:
        dagc._numba.compiled.cache_clear()


def test_a_client_alone_uses_two_blocks_for_its_residuals():
    feedback = ErrorFeedback(top_k, LARGE)
    places = {feedback.residual.data_ptr()}
    for _ in range(20):
        feedback.step(torch.randn(LARGE), 100)
        places.add(feedback.residual.data_ptr())
    assert len(places) == 2


@pytest.mark.parametrize("values", ["fp32", "int8"])
@pytest.mark.parametrize(("compressor", "parameter"), [(top_k, LARGE), (hard_threshold, 0.5), (random_k, LARGE)])
def test_residuals_and_results_that_are_held_do_not_change(compressor, parameter, values):
    size = 2 * LARGE
    one, other = ErrorFeedback(compressor, size, values=values), ErrorFeedback(compressor, size, values=values)
    held = []
    for seed, hold in enumerate(HOLD.values()):
        sparse = one.step(torch.randn(size, generator=torch.Generator().manual_seed(seed)), parameter)
        even = len(sparse) // 2 * 2
        for array in (sparse.indices[:even], sparse.values[:even], one.residual.numpy()):
            read = hold(array)
            held.append((read, np.array(read())))
        indices = sparse.indices[5:]
        held.append((reader(indices), indices.copy()))
        dense = sparse.dense()
        held.append((reader(dense), dense.clone().numpy()))
        if seed % 3 == 0:
            held.append((reader(sparse.values), sparse.values.copy()))
            one.unsend(sparse)
        if seed % 4 == 1:
            one.residual, one.steps = other.residual, other.steps
        other.step(one.residual / 2, parameter)
        del sparse, array, read, indices, dense
        if len(held) > 25:
            del held[::2]
        if seed % 5 == 0 or seed == len(HOLD) - 1:
            for read, before in held:
                assert np.array_equal(read(), before)


def test_threads_that_hold_what_others_made():
    size, results, wrong = 2 * LARGE, queue.SimpleQueue(), []

    def work(number):
        feedback, held = ErrorFeedback(top_k, size), []
        for step in range(25):
            sparse = feedback.step(torch.randn(size), LARGE)
            results.put((sparse, sparse.dense(), feedback.residual, feedback.residual.clone()))
            del sparse
            held.append(results.get())  # often another thread's
            if len(held) > 3:
                sparse, dense, residual, copy = held.pop(0)
                if not torch.equal(sparse.dense(), dense) or not torch.equal(residual, copy):
                    wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_refused_gradient_gives_its_memory_back():
    feedback = ErrorFeedback(top_k, LARGE)
    bad = torch.full((LARGE,), float("nan"))
    for _ in range(5):
        with pytest.raises(dagc.NonFiniteGradient):
            feedback.step(bad, 10)
    gc.collect()
    assert dagc.release_memory() <= 2 * SMALL


def test_the_end_of_the_interpreter_is_silent():
    script = """
    import torch, dagc
    from dagc._memory import Pool
    class Holder:
        def __del__(self):
            assert self.array[-1] == self.array[0] == 1
            assert self.feedback.residual[-1]
    holder = Holder()
    holder.feedback = dagc.ErrorFeedback(dagc.top_k, 400_000)
    holder.sparse = holder.feedback.step(torch.ones(400_000), 200_000)
    holder.array = Pool().take(400_000, holder.sparse.values.dtype)
    holder.array.fill(1.0)
    holder.itself = holder
    kept = [holder, dagc.ErrorFeedback(dagc.top_k, 400_000)]
    torch.kept = kept[1].residual  # outlives this module
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env={"PYTHONPATH": str(Path(dagc.__file__).parent.parent)},
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
