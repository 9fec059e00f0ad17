"""Histories of frames for the coder, and its reference's state."""

import contextlib
import importlib.util
import sys

import numpy as np
import pytest
from hypothesis import strategies as st

from dagc import VALUE_CODECS, Sparse
from dagc.wire import _coder, _kernels
from dagc.wire.frame import encode_coded
from tests.wire.coder_reference import FIRST_WEIGHTS, Entries, ReferenceMemory

SIGN = VALUE_CODECS["sign"].id


@st.composite
def shapes(draw):
    tensor = st.integers(1, 12) | st.tuples(st.integers(1, 6), st.integers(0, 8))
    tensor |= st.tuples(st.integers(2, 9), st.just(1)) | st.tuples(*[st.integers(1, 3)] * 4) | st.just((1, 9))
    found = draw(st.just([1]) | st.just([(1, 1)]) | st.lists(tensor, min_size=1, max_size=4))
    return found if any(np.prod(shape) for shape in found) else [*found, 1]


def size_of(shapes):
    return int(sum(np.prod(shape) for shape in shapes))


def signed(size, indices, negative, mean):
    """Entries of one magnitude, which has these bits in bf16."""
    magnitude = np.array([mean << 16], dtype=np.uint32).view(np.float32)[0]
    negative = np.broadcast_to(negative, len(indices)).astype(bool)
    return Sparse(size, indices, np.where(negative, -magnitude, magnitude).astype(np.float32))


@st.composite
def histories(draw, size, signs, most=8):
    """Frames that could follow each other: each a `Sparse` and the most entries that the reader expects."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    frames, before = [], np.arange(0)
    for _ in range(draw(st.integers(1, most))):
        count = draw(st.sampled_from([0, 1, size]) | st.integers(0, size))
        where = draw(st.sampled_from(["anywhere", "together", "as before"]))
        if where == "together":
            start = int(rng.integers(size - count + 1))
            indices = np.arange(start, start + count)
        elif where == "as before" and len(before):
            indices, before = before, np.arange(0)
        else:
            indices = np.sort(rng.choice(size, count, replace=False))
        before = indices if rng.random() < 0.5 else before
        mean = draw(st.sampled_from([0, 1, 0x3C00, 0x3C23, 0x7F7F])) if signs else 0x3F80
        negative = rng.random(len(indices)) < draw(st.sampled_from([0, 0.1, 0.5, 1])) if signs and mean else 0
        expected = draw(st.sampled_from([None, 0, 0, 1, size]))
        expected = None if expected is None else min(size, len(indices) + expected)
        values = signed(size, indices, negative, mean).values if signs else rng.standard_normal(len(indices))
        frames.append((Sparse(size, indices, values), expected))
    return frames


def entries_of(sparse, values="sign"):
    """The same for the reference."""
    if values != "sign":
        codec = VALUE_CODECS[values]
        return Entries(sparse.indices.tolist(), codec=codec.id, values=codec.write(sparse.values))
    mean = int(np.abs(sparse.values[:1]).view(np.uint32)[0] >> 16) if len(sparse) else 0
    return Entries(sparse.indices.tolist(), mean, (sparse.values < 0).astype(int).tolist())


def state(memory):
    """Everything that a memory remembers, as plain lists and numbers."""
    return plain(memory.state_dict())


def plain(state):
    """A memory's state as plain lists and numbers."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.items()}


def reference_state(reference, signs, frames):
    """The same of the reference's."""
    kinds = [(kind, context) for kind, table in FIRST_WEIGHTS.items() for context in range(len(table))]
    kinds += [("row", row) for row in range(len(reference.lean))]
    tables = [reference.weights[key] for key in kinds] + [reference.seen[key] for key in kinds]
    tables += [number for part in (reference.chances, reference.trials) for row in part for number in row]
    tables += reference.lean
    clocks = {}
    if reference.clocks:
        both = zip(reference.interval, reference.negative, strict=True)
        clocks = {"last": reference.last, "interval": [2 * time + negative for time, negative in both]}
    return {
        "tables": tables,
        "columns": reference.column,
        **clocks,
        "clocks": reference.clocks,
        "signs": signs,
        "frames": frames,
        "fingerprint": reference.fingerprint,
        "mean": reference.mean,
        "now": reference.now,
    }


def reference_for(shapes, clocks):
    return ReferenceMemory([(shape,) if isinstance(shape, int) else shape for shape in shapes], clocks)


@contextlib.contextmanager
def without_kernels():
    """Rice codes and the coder as they run where numba is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagc._numba.compiled", lambda: False)
        for module in (_kernels, _coder):  # the second imports the first
            spec = importlib.util.spec_from_file_location(module.__name__, module.__file__)
            plain = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, module.__name__, plain)
            patch.setattr(module.__name__, plain)
            spec.loader.exec_module(plain)
        yield


def coded_frame(sparse, values, round, memory, most):
    """A coded frame, even where another one would be smaller."""
    return encode_coded(sparse, VALUE_CODECS[values], round, memory, most, limit=1 << 20)
