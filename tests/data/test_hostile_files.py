"""Archives and addresses of strangers: whatever claims to be huge costs nothing, and what is no address is refused."""

import gzip
import io
import tarfile
import threading
import tracemalloc
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dagc.data.download import fetch, unpack
from dagc.data.idx import read_idx
from dagc.data.npz import read_npz
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


def test_archives_do_not_unpack_to_hundreds_of_times_their_size(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (BOMB,)})
    zeros = bytes(1_000_000)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name in ("x.npy", "y.npy"):
            with file.open(name, "w") as member:
                member.write(head.getvalue())
                for _ in range(BOMB // len(zeros)):
                    member.write(zeros)
    with gzip.open(tmp_path / "x.gz", "wb", compresslevel=1) as file:
        file.write(b"\0\0\x08\x01" + BOMB.to_bytes(4, "big"))
        for _ in range(BOMB // len(zeros)):
            file.write(zeros)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", compresslevel=1) as tar:
        for number in range(BOMB // len(zeros)):
            member = tarfile.TarInfo(f"set/{number}")
            member.size = len(zeros)
            tar.addfile(member, io.BytesIO(zeros))
    with little_memory(150_000_000):
        for path, use in (
            ("x.npz", read_npz),
            ("x.gz", read_idx),
            ("x.tar.gz", lambda path: unpack(path, tmp_path / "set")),
        ):
            with pytest.raises(DataError, match="would unpack to"):
                use(tmp_path / path)
    assert not (tmp_path / "set").exists()
    assert not list(tmp_path.glob(".set*"))


class Hostile(BaseHTTPRequestHandler):
    """Answers with whatever header the path says."""

    def do_GET(self):
        kind = self.path.strip("/")
        self.send_response(302 if kind.startswith("to") else 200)
        length = {"words": "many", "digits": "9" * 5000, "negative": "-5"}.get(kind)
        if length:
            self.send_header("Content-Length", length)
        if kind == "to-nowhere":
            self.send_header("Location", "http://[bad/x")
        if kind == "to-long":
            self.send_header("Location", f"http://{'a' * 200}/x")
        if kind == "to-file":
            self.send_header("Location", "file:///etc/hostname")
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_):
        pass


@pytest.fixture
def hostile():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["words", "digits", "negative"])
def test_a_length_that_is_none_is_not_believed(hostile, tmp_path, kind):
    fetch(f"{hostile}/{kind}", tmp_path / "f", None, pause=0, attempts=1)
    assert (tmp_path / "f").read_bytes() == b"x"


@pytest.mark.parametrize("kind", ["to-nowhere", "to-long", "to-file"])
def test_a_redirect_to_what_is_no_address_is_refused(hostile, tmp_path, kind):
    with pytest.raises(DataError):
        fetch(f"{hostile}/{kind}", tmp_path / "f", None, pause=0, attempts=1)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("url", ["http://[", "http://[::1", f"http://{'a' * 70_000}/f", "http://./f", "http://\n/f"])
def test_what_is_no_address_is_refused(tmp_path, url):
    with pytest.raises(DataError):
        fetch(url, tmp_path / "f", None, pause=0, attempts=1)
