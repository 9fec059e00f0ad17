"""Compiled sums are the same bits as plain ones; and kernels work wherever and however they are run."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import dagc
from dagc import Sparse, top_k
from dagc._numba import compiled
from tests.helpers.vectors import same_bits

pytest.importorskip("numba")

PACKAGE = Path(dagc.__file__).parent


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
