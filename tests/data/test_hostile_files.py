"""Arrays of strangers: whatever claims to be huge costs nothing."""

import io
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pytest

from dagc.data.files import read_npz
from dagc.errors import DataError


def npz(path, shape, descr="<f4"):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as file:
        for name in ("x.npy", "y.npy"):
            file.writestr(name, head.getvalue() + b"1234")
    return path


@pytest.mark.parametrize(
    ("shape", "descr"),
    [((10**12,), "<f4"), ((10**9, 10**9), "<f4"), ((10**40,), "<f4"), ((10**9,), "<U1000000"), ((10**10,), "<f4")],
)
def test_arrays_that_claim_to_be_huge_cost_nothing(tmp_path, shape, descr):
    path = npz(tmp_path / "x.npz", shape, descr)
    with pytest.raises(DataError, match=r"x\.npz"):
        read_npz(path)


def test_an_array_that_is_no_archive_is_refused(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"x\.npz"):
        read_npz(tmp_path / "x.npz")


@contextmanager
def little_memory(most):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


BOMB = 200_000_000


def test_arrays_do_not_unpack_to_hundreds_of_times_their_size(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (BOMB,)})
    zeros = bytes(1_000_000)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name in ("x.npy", "y.npy"):
            with file.open(name, "w") as member:
                member.write(head.getvalue())
                for _ in range(BOMB // len(zeros)):
                    member.write(zeros)
    with little_memory(150_000_000), pytest.raises(DataError, match="would unpack to"):
        read_npz(tmp_path / "x.npz")
