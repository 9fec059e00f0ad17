"""The user's own data: .npz, .csv, a folder per client."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dagc.data import load, make_partition
from dagc.errors import DataError, InvalidInput

RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, (40, 5)).astype(np.float32)
Y = np.arange(40) % 4
CLIENT = np.repeat(["ann", "bob", "cleo"], [25, 10, 5])


def test_npz_with_clients(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=X, y=Y * 10, client=CLIENT)
    data = load(tmp_path / "mine.npz")
    assert data.classes == ("0", "10", "20", "30")
    assert data.clients == ("ann", "bob", "cleo")
    assert (len(data), len(data.test_y)) == (32, 8)
    split = make_partition("by-client", data)
    assert split.names == ("ann", "bob", "cleo")
    assert split.sizes.tolist() == [20, 8, 4]
    np.testing.assert_allclose(data.normalize(data.train_x).mean(0), 0, atol=1e-5)
    for index in range(len(data)):  # labels and clients stay with their samples
        row = int(np.flatnonzero((data.train_x[index].numpy() == X).all(1))[0])
        assert data.train_y[index] == Y[row]
        assert data.client is not None
        assert data.clients[int(data.client[index])] == CLIENT[row]


def test_npz_with_its_own_test_set_and_bytes(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (10, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "m.npz", x=images, y=np.array(list("ab") * 5), x_test=images[:3], y_test=np.array(list("bca")))
    data = load(str(tmp_path / "m.npz"), augment=True)
    assert data.train_x.dtype == torch.uint8
    assert (len(data), data.classes, data.test_y.tolist()) == (10, ("a", "b", "c"), [1, 2, 0])
    assert data.client is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": None}, "has no array 'x', only y"),
        ({"y": None}, "has no array 'y', only x"),
        ({"y": Y[:30]}, r"y has shape \(30,\) for 40 samples"),
        ({"y": np.full(40, np.nan)}, "y has NaN or infinity"),
        ({"y": np.where(Y > 2, np.inf, Y)}, "y has NaN or infinity"),
        ({"y": np.zeros(40, int)}, "all labels are 0"),
        ({"y": Y.astype(complex)}, "y is of type complex"),
        ({"x": X.astype("U3")}, "x is of type <U3"),
        ({"x": X[:, 0]}, r"x has shape \(40,\)"),
        ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 5\)"),
        ({"x": np.where(X > 3, np.nan, X)}, "holds NaN or infinity"),
        ({"x": X.astype(float) * 1e300}, "holds NaN or infinity"),
        ({"x": np.array([object()] * 40), "y": Y}, "plain arrays"),
        ({"client": CLIENT[:4]}, r"client is <U4 of shape \(4,\)"),
        ({"x_test": X[:4]}, "only one of x_test and y_test"),
        ({"x_test": X[:4, :2], "y_test": Y[:4]}, "different shapes"),
    ],
)
def test_unusable_npz_files_say_why(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    arrays = {name: value for name, value in ({"x": X, "y": Y} | change).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises((DataError, InvalidInput), match=f"bad.npz.*{reason}"):
        load(tmp_path / "bad.npz")


@pytest.mark.parametrize("keep", [0, 3, 100, 700])
def test_truncated_npz_files_are_named(tmp_path: Path, keep: int) -> None:
    np.savez(tmp_path / "cut.npz", x=X, y=Y)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:keep])
    with pytest.raises(DataError, match=r"cut\.npz cannot be read"):
        load(tmp_path / "cut.npz")


def test_npz_files_of_an_unknown_compression_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=X, y=Y)
    content = bytearray((tmp_path / "odd.npz").read_bytes())
    content[content.rindex(b"PK\x01\x02") + 10] = 99
    (tmp_path / "odd.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"odd\.npz cannot be read"):
        load(tmp_path / "odd.npz")


def test_arrays_of_clients_are_checked_file_by_file(tmp_path: Path) -> None:
    for client, y in (("ann", Y), ("bob", Y.astype(np.float32))):  # 1 and 1.0 are one label
        (tmp_path / client).mkdir()
        np.savez(tmp_path / client / "all.npz", x=X, y=y)
    assert load(tmp_path).classes == ("0", "1", "2", "3")
    np.savez(tmp_path / "ann" / "more.npz", x=X[:3], y=Y[:4])
    np.savez(tmp_path / "bob" / "more.npz", x=X[:4], y=Y[:3])
    with pytest.raises(DataError, match=r"ann.more\.npz: y has shape \(4,\) for 3 samples"):
        load(tmp_path)


def test_csv_with_numbers_text_and_gaps(tmp_path: Path) -> None:
    lines = [f"{n % 3}, {'red' if n % 2 else 'blue'}, {n if n != 4 else '?'}, hospital {n % 2}" for n in range(20)]
    (tmp_path / "t.csv").write_text("label, color, age, client\n" + "\n".join(lines) + "\n\n")
    data = load(tmp_path / "t.csv")
    assert data.shape == (3,)  # blue, red, age
    assert data.classes == ("0", "1", "2")
    assert data.clients == ("hospital 0", "hospital 1")
    assert len(data.notes) == 1
    assert "1 missing values of 'age'" in data.notes[0]
    renamed = load(tmp_path / "t.csv", label="color", client="label")
    assert renamed.classes == ("blue", "red")
    assert renamed.clients == ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 lines"),
        ("label,a\n1,2\n", "has 2 lines"),
        ("a,b\n1,2\n3,4\n", "no column 'label'"),
        ("label,a\n0,1\n1,2,3\n", "line 3 has 3 fields"),
        ("label,a\n0,1\n1,nan\n", "line 3: the column 'a' is nan"),
        ("label,a\n0,inf\n1,2\n", "line 2: the column 'a' is inf"),
        ("label,a\n0,\n1,?\n", "'a' is empty in all rows"),
        ("label,a\n,1\n1,2\n", "line 2: the column 'label' is empty"),
        ("label,client\n0,a\n1,b\n", "nothing to learn from"),
        ("label,a,a\n0,1,1\n1,1,1\n", "names a column twice"),
        ("label,a\n" + "".join(f"{n % 2},name{n}\n" for n in range(1001)), "1,001 different values"),
        ("label,a\n0,\xff\n1,2\n", "cannot be read as CSV"),
    ],
)
def test_unusable_csv_files_say_where(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=f"bad.csv.*{reason}"):
        load(tmp_path / "bad.csv")


def test_a_folder_per_client_with_images_or_arrays(tmp_path: Path) -> None:
    for client, count in (("ann", 10), ("bob", 5)):
        for label in ("cat", "dog"):
            (tmp_path / "pictures" / client / label).mkdir(parents=True)
            for number in range(count):
                Image.new("L", (20, 20), number).save(tmp_path / "pictures" / client / label / f"{number}.png")
        (tmp_path / "arrays" / client).mkdir(parents=True)
        np.savez(tmp_path / "arrays" / client / "part.npz", x=X[:count], y=Y[:count])
    for folder, shape, per_client in (
        ("pictures", (3, 32, 32), [16, 8]),
        ("arrays", (5,), [8, 4]),
    ):
        data = load(tmp_path / folder)
        assert data.shape == shape
        assert make_partition("by-client", data).sizes.tolist() == per_client
        assert data.clients == ("ann", "bob")


def test_unusable_folders_and_paths_say_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no client"):
        load(tmp_path / "empty")
    (tmp_path / "odd" / "ann" / "cat").mkdir(parents=True)
    (tmp_path / "odd" / "ann" / "cat" / "note.txt").write_text("?")
    with pytest.raises(DataError, match=r"note\.txt is not a sample, one of .png"):
        load(tmp_path / "odd")
    (tmp_path / "odd" / "ann" / "cat" / "note.txt").rename(tmp_path / "odd" / "ann" / "cat" / "x.png")
    with pytest.raises(DataError, match=r"x\.png is not a readable image"):
        load(tmp_path / "odd")
    (tmp_path / "notes.md").write_text("?")
    with pytest.raises(InvalidInput, match=r"notes\.md is neither"):
        load(tmp_path / "notes.md")
    with pytest.raises(InvalidInput, match=r"gone\.npz does not exist"):
        load(tmp_path / "gone.npz")
    np.savez(tmp_path / "flat.npz", x=X, y=Y)
    with pytest.raises(InvalidInput, match="only images"):
        load(tmp_path / "flat.npz", augment=True)
