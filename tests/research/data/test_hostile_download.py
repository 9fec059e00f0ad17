"""Archives and addresses of strangers: whatever claims to be huge costs nothing, and what is no address is refused."""

import gzip
import io
import tarfile
import threading
import tracemalloc
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dagc.errors import DataError
from research.data.download import fetch, unpack
from research.data.idx import read_idx


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
    zeros = bytes(1_000_000)
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
        for path, use in (("x.gz", read_idx), ("x.tar.gz", lambda path: unpack(path, tmp_path / "set"))):
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


def test_a_tar_header_of_gigabytes_is_refused(tmp_path):
    """A long name or a pax header is read at once: its size is the stranger's word."""
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        head = tarfile.TarInfo("set/x")
        head.type, head.size = kind, 2_000_000_000
        with gzip.open(tmp_path / "x.tar.gz", "wb", compresslevel=1) as file:
            file.write(head.tobuf(tarfile.GNU_FORMAT))
            for _ in range(300):
                file.write(bytes(1_000_000))
        with little_memory(100_000_000), pytest.raises(DataError, match=r"x\.tar\.gz cannot be unpacked"):
            unpack(tmp_path / "x.tar.gz", tmp_path / "set")
        assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "set/../../out", "set/link"])
def test_no_tar_member_leaves_its_folder(tmp_path, name):
    member = tarfile.TarInfo(name)
    if name.endswith("link"):
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(member, io.BytesIO())
    with pytest.raises(DataError, match="not a plain file inside"):
        unpack(tmp_path / "x.tar", tmp_path / "in" / "set")
    assert not (tmp_path / "out").exists()
