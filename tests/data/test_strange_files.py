"""Files of strangers: what a small file may cost, what it may start, and where it may lead."""

import io
import os
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


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_LZMA])
def test_an_encrypted_npz_is_refused(tmp_path: Path, compression: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", compression) as file:
        for name, array in (("x", np.zeros((20, 3))), ("y", np.arange(20))):
            file.writestr(f"{name}.npy", npy(array))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    for mark, flags in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        for place in range(len(content)):
            if content.startswith(mark, place):
                content[place + flags] |= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz cannot be read .*encrypted"):
        load(tmp_path / "x.npz")


def test_a_damaged_lzma_member_of_an_npz_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("x.npy", npy(np.random.default_rng(0).random((50, 3))))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[200:260] = b"\xff" * 60
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz cannot be read"):
        load(tmp_path / "x.npz")


def test_pipes_and_devices_in_a_folder_of_data_are_refused_at_once(tmp_path: Path) -> None:
    for name in ("a.csv", "a.npz", "a.txt"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match="is not a regular file"):
            load(tmp_path / name)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "b.txt").write_text("hello " * 200)
    (tmp_path / "texts" / "a.txt").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"a\.txt is not a regular file"):
        load(tmp_path / "texts")


@pytest.fixture
def parquet():
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    return parquet


def test_a_parquet_of_one_number_repeated_is_refused_before_it_is_decoded(tmp_path: Path, parquet) -> None:
    import pyarrow

    piece = pyarrow.table({"a": np.zeros(5_000_000, np.int64), "label": np.zeros(5_000_000, np.int64)})
    with parquet.ParquetWriter(tmp_path / "x.parquet", piece.schema) as file:
        for _ in range(2):
            file.write_table(piece, row_group_size=5_000_000)
    assert (tmp_path / "x.parquet").stat().st_size < 300_000
    before = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(DataError, match=r"x\.parquet .* would unpack to 160,000,000"):
        load(tmp_path / "x.parquet")
    assert pyarrow.default_memory_pool().max_memory() <= before


@pytest.mark.parametrize("kind", ["string", "binary", "large_string"])
def test_a_parquet_of_one_long_text_repeated_is_refused_before_it_is_decoded(tmp_path: Path, parquet, kind) -> None:
    import pyarrow

    long = pyarrow.array(["x" * 500_000], type=getattr(pyarrow, kind)())
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(1500, np.int32)), long)
    table = pyarrow.table({"a": texts, "label": np.arange(1500) % 2})
    parquet.write_table(table, tmp_path / "x.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "x.parquet").stat().st_size < 3000
    with little_memory(20_000_000), pytest.raises(DataError, match=r"x\.parquet .* would unpack to 750,000,000"):
        load(tmp_path / "x.parquet")


def test_a_parquet_with_lists_is_refused(tmp_path: Path, parquet) -> None:
    import pyarrow

    parquet.write_table(pyarrow.table({"a": [[0, 1]] * 8, "label": np.arange(8) % 2}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: the column 'a\..*' holds lists or records"):
        load(tmp_path / "x.parquet")


def test_missing_values_of_a_parquet_are_those_of_a_csv(tmp_path: Path, parquet) -> None:
    import pyarrow

    columns = {"a": [1.0, None, 3.0, 4.0] * 3, "b": ["p", None, "q", "p"] * 3, "label": ["y", "n", "y", "n"] * 3}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    cells = zip(
        *([("" if value is None else str(value)) for value in column] for column in columns.values()), strict=True
    )
    lines = [",".join(row) for row in cells]
    (tmp_path / "x.csv").write_text("a,b,label\n" + "\n".join(lines) + "\n")
    ours, theirs = load(tmp_path / "x.parquet"), load(tmp_path / "x.csv")
    assert (ours.train_x == theirs.train_x).all()
    assert (ours.train_y == theirs.train_y).all()
    assert ours.classes == theirs.classes
