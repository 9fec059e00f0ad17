"""Downloads against a server of our own: whole, broken off, refused, damaged, and archives that would escape."""

import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagc.data import load
from dagc.errors import DataError, InvalidInput
from research.__main__ import app
from research.data import ENTRIES
from research.data.download import Source, fetch, fetch_all, unpack
from tests.research.data.files import write_cifar10, write_fashion


class Server(ThreadingHTTPServer):
    """Serves `files` from memory; breaks off after `patience` bytes of a body, `faults` times."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str | None] = []
        self.faults = 0
        self.patience = 1000
        self.ranges = True
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append(asked)
        body = server.files.get(self.path.lstrip("/"))
        if body is None or server.status != 200:
            self.send_error(404 if body is None else server.status)
            return
        start = int(re.findall(r"\d+", asked)[0]) if asked and server.ranges else 0
        if start and start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        rest = body[start:]
        if server.faults:
            server.faults -= 1
            rest = rest[: server.patience]
        self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


BODY = bytes(range(256)) * 40
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()


def test_a_whole_file_with_progress(server: Server, tmp_path: Path) -> None:
    server.files["f"] = BODY
    seen: list[tuple[str, int, int | None]] = []
    fetch(f"{server.url}/f", tmp_path / "new" / "f", MD5, lambda *told: seen.append(told))
    assert (tmp_path / "new" / "f").read_bytes() == BODY
    assert seen[-1] == ("f", len(BODY), len(BODY))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["f"]


def test_a_broken_off_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.files["f"] = BODY
    server.faults = 2
    fetch(f"{server.url}/f", tmp_path / "f", MD5, pause=0)
    assert (tmp_path / "f").read_bytes() == BODY
    assert server.requests == [None, "bytes=1000-", "bytes=2000-"]


def test_what_has_come_is_kept_for_the_next_command(server: Server, tmp_path: Path) -> None:
    server.files["f"] = BODY
    server.faults = 4
    with pytest.raises(DataError, match=r"was interrupted at byte 4,000 .*run the same command again to continue"):
        fetch(f"{server.url}/f", tmp_path / "f", MD5, pause=0)
    assert not (tmp_path / "f").exists()
    fetch(f"{server.url}/f", tmp_path / "f", MD5, pause=0)
    assert server.requests[-1] == "bytes=4000-"
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_server_without_ranges_begins_again(server: Server, tmp_path: Path) -> None:
    server.files["f"] = BODY
    server.ranges = False
    server.faults = 1
    fetch(f"{server.url}/f", tmp_path / "f", MD5, pause=0)
    assert (tmp_path / "f").read_bytes() == BODY


@pytest.mark.parametrize("extra", [0, 5])
def test_a_part_that_is_complete_or_too_long(server: Server, tmp_path: Path, extra: int) -> None:
    server.files["f"] = BODY
    (tmp_path / "f.part").write_bytes(BODY + b"x" * extra)
    fetch(f"{server.url}/f", tmp_path / "f", MD5, pause=0)
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.files["f"] = BODY[:-1] + b"!"
    with pytest.raises(DataError, match=f"has the md5 .* and not the published {MD5[4:]}"):
        fetch(f"{server.url}/f", tmp_path / "f", MD5)
    assert list(tmp_path.iterdir()) == []


def test_refusals_are_not_repeated_but_server_errors_are(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/f: the server says 404"):
        fetch(f"{server.url}/f", tmp_path / "f", None, pause=0)
    assert len(server.requests) == 1
    server.files["f"] = BODY
    server.status = 503
    with pytest.raises(DataError, match="503"):
        fetch(f"{server.url}/f", tmp_path / "f", None, pause=0, attempts=3)
    assert len(server.requests) == 4


def test_addresses_that_are_none_or_dead(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not an address"):
        fetch("nonsense", tmp_path / "f", None, pause=0)
    with Server() as gone:
        url = gone.url
    with pytest.raises(DataError, match="was interrupted at byte 0"):
        fetch(f"{url}/f", tmp_path / "f", None, pause=0)


def archive(entries: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "raw",
    [
        archive({"set/a": b"1", "../escape": b"2"}),
        archive({"set/a": b"1", "/escape": b"2"}),
        archive({"set/a": b"1"}, {"set/link": "../../escape"}),
        archive({"set/a": b"1" * 5000})[:-40],
        archive({"other/a": b"1"}),
        b"no archive",
        b"",
    ],
    ids=["above", "root", "link", "cut", "another folder", "none", "empty"],
)
def test_archives_that_escape_or_are_damaged_change_nothing(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(raw)
    (tmp_path / "root" / "set").mkdir(parents=True)
    (tmp_path / "root" / "set" / "old").write_text("kept")
    with pytest.raises(DataError, match=r"a\.tar\.gz"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "root" / "set", "set")
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "a.tar.gz",
        "root",
        "root/set",
        "root/set/old",
    ]


def test_unpacking_replaces_the_whole_folder(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(archive({"set/a": b"1", "set/deep/b": b"2"}))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "old").write_text("gone")
    unpack(tmp_path / "a.tar.gz", tmp_path / "set", "set")
    assert sorted(path.name for path in (tmp_path / "set").rglob("*")) == ["a", "b", "deep"]


def test_get_takes_cifar10_from_a_mirror(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = write_cifar10(tmp_path / "original")
    raw = archive({f"cifar-10-batches-bin/{path.name}": path.read_bytes() for path in original.iterdir()})
    server.files["mirror/cifar-10-binary.tar.gz"] = raw
    root = tmp_path / "data"
    arguments = ["data", "get", "cifar-10", "--data-dir", str(root), "--mirror", f"{server.url}/mirror/"]
    with pytest.raises(DataError, match="and not the published c32a1d4ab5d03f1284b67883e8d87530"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    entry = ENTRIES["cifar-10"]
    assert entry.locate(root) is None
    source = replace(entry.sources[0], checksum=f"sha256:{hashlib.sha256(raw).hexdigest()}")
    monkeypatch.setitem(ENTRIES, "cifar-10", replace(entry, sources=(source,)))
    first = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "cifar-10-binary.tar.gz" in first.output
    assert len(load("cifar-10", root)) == 50
    asked = len(server.requests)
    assert "already" in CliRunner().invoke(app, arguments, catch_exceptions=False).output
    assert len(server.requests) == asked
    assert CliRunner().invoke(app, [*arguments, "--force"], catch_exceptions=False).exit_code == 0
    assert len(server.requests) == asked + 1


def test_fashion_mnist_is_fetched_file_by_file(server: Server, tmp_path: Path) -> None:
    sources = []
    for path in write_fashion(tmp_path / "original", zipped=True).iterdir():
        server.files[path.name] = path.read_bytes()
        digest = hashlib.md5(path.read_bytes()).hexdigest()
        sources.append(Source(f"{server.url}/{path.name}", f"md5:{digest}", "FashionMNIST/raw"))
    fetch_all(tuple(sources), tmp_path / "data")
    assert len(load("fashion-mnist", tmp_path / "data")) == 20


def test_every_official_address_names_a_file_and_a_well_formed_checksum() -> None:
    lengths = {"md5": 32, "sha256": 64}
    for entry in ENTRIES.values():
        for source in entry.sources:
            assert re.fullmatch(r"https?://[\w./~-]+/[\w.-]+\.(gz|data|txt)", source.url)
            if source.checksum is not None:
                kind, digest = source.checksum.split(":")
                assert re.fullmatch(r"[0-9a-f]+", digest)
                assert len(digest) == lengths[kind]


def test_the_list_says_what_is_here_and_get_knows_its_sets(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    listed = CliRunner().invoke(app, ["data", "list", "--data-dir", str(tmp_path)], env={"COLUMNS": "120"}).output
    rows = {line.split()[0]: line for line in listed.splitlines() if line.strip()}
    assert "yes" in rows["cifar-10"]
    assert "no" in rows["cifar-100"]
    with pytest.raises(InvalidInput, match="no data set 'mnist'"):
        CliRunner().invoke(app, ["data", "get", "mnist"], catch_exceptions=False)
