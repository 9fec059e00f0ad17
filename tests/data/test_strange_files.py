"""Files of strangers: what a small file may cost, what it may start, and where it may lead."""

import io
import tracemalloc
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dagc.data import load
from dagc.data.files import read_image
from dagc.data.limits import VARIABLE
from dagc.errors import DagcError, DataError


@contextmanager
def little_memory(most=200_000_000):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_postscript_named_png_does_not_start_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    def start(*_: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", start)
    header = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "cat.png").write_bytes(header)
    with pytest.raises(DataError, match=r"cat\.png is not a readable image"):
        read_image(tmp_path / "cat.png")


def test_a_png_of_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (12_000, 12_000)).save(tmp_path / "big.png", optimize=True)
    assert (tmp_path / "big.png").stat().st_size < 30_000
    with little_memory(20_000_000), pytest.raises(DataError, match=rf"would unpack to 432,000,000 .*{VARIABLE}="):
        read_image(tmp_path / "big.png")
    monkeypatch.setenv(VARIABLE, "5e8")
    assert read_image(tmp_path / "big.png").shape == (3, 32, 32)


def test_a_csv_of_long_text_costs_no_gigabytes(tmp_path: Path) -> None:
    """Text padded to the longest value took 4 bytes × rows × length."""
    rows = [f"{n % 3},{'x' * 100_000 if n == 7 else 'a'},{n % 2}" for n in range(20_000)]
    (tmp_path / "long.csv").write_text("a,b,label\n" + "\n".join(rows) + "\n")
    with little_memory(50_000_000):
        assert load(tmp_path / "long.csv").shape == (3,)
    rows = [f"{n % 3},{'x' * 100_000 if n == 7 else n % 2}" for n in range(20_000)]
    (tmp_path / "label.csv").write_text("a,label\n" + "\n".join(rows) + "\n")
    with little_memory(50_000_000):
        assert len(load(tmp_path / "label.csv").classes) == 3


def test_a_csv_that_becomes_hundreds_of_times_larger_is_refused(tmp_path: Path, monkeypatch) -> None:
    rows = [f"{n % 990},{n % 980},{n % 970},{n % 2}" for n in range(40_000)]
    text = "a,b,c,label\n" + "\n".join(rows).replace(",", "x,") + "\n"
    (tmp_path / "wide.csv").write_text(text)
    with little_memory(100_000_000), pytest.raises(DataError, match=rf"would unpack to .*{VARIABLE}=.*'[abc]'"):
        load(tmp_path / "wide.csv")


def npz(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def npy(array: np.ndarray, pickled: bool = False) -> bytes:
    raw = io.BytesIO()
    np.save(raw, array, allow_pickle=pickled)
    return raw.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        {"x": b"no array", "y": b"no array"},
        {"x.npy": npy(np.zeros((4, 2))), "y": b"text"},
        {"x.npy": b"", "y.npy": npy(np.arange(4))},
        {"x.npy": npy(np.array([{}, []], dtype=object), True), "y.npy": npy(np.arange(2))},
        {"x.npy": npy(np.zeros(4, dtype="M8[s]")), "y.npy": npy(np.arange(4))},
        {"x.npy": npy(np.zeros((4, 2), dtype="f4,f4")), "y.npy": npy(np.arange(4))},
        {"x.npy": npy(np.zeros((4, 2))), "y.npy": npy(np.array(3))},
        {"x.npy": npy(np.zeros((4, 2))), "y.npy": npy(np.zeros((4, 0)))},
        {"x.npy": npy(np.zeros((4, 0))), "y.npy": npy(np.arange(4))},
    ],
)
def test_an_npz_member_that_is_no_plain_array_is_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    with pytest.raises(DagcError, match=r"x\.npz"):
        load(npz(tmp_path / "x.npz", members))


def test_arrays_that_nobody_asked_for_are_not_opened(tmp_path: Path) -> None:
    x, y = npy(np.zeros((4, 2))), npy(np.arange(4) % 2)
    assert len(load(npz(tmp_path / "x.npz", {"x.npy": x, "y.npy": y, "../evil.npy": b"?"}))) == 3


def test_names_from_a_file_have_no_control_characters(tmp_path: Path) -> None:
    rows = [f"{n},{'a' if n % 2 else chr(27) + '[2J'},{'b' if n % 3 else chr(7)}" for n in range(20)]
    (tmp_path / "x.csv").write_text("a,label,client\n" + "\n".join(rows) + "\n")
    data = load(tmp_path / "x.csv")
    assert data.classes == (r"\x1b[2J", "a")
    assert data.clients == (r"\x07", "b")


@pytest.mark.parametrize("value", ["many", "nan", "inf"])
def test_a_bound_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 2)), y=np.arange(4))
    with pytest.raises(DagcError, match=f"{VARIABLE} is '{value}'"):
        load(tmp_path / "x.npz")
