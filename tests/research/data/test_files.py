"""The loaders on tiny files in the official formats, whole and damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dagc.data import load
from dagc.errors import DataError, MissingData
from research.data import fashion_mnist
from research.data.idx import read_idx
from research.data.mel import log_mel, read_wav
from tests.research.data.files import cifar_records, idx, write_cifar10, write_cifar100, write_fashion, write_wav


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_is_read_plain_and_zipped(tmp_path: Path, zipped: bool) -> None:
    folder = write_fashion(tmp_path / "FashionMNIST" / "raw", zipped=zipped)
    data = load("fashion-mnist", tmp_path)
    assert data.train_x.shape == (20, 1, 28, 28)
    assert data.train_x.dtype == torch.uint8
    assert data.test_y.tolist() == [0, 1, 2, 3, 4]
    expected = read_idx(next(folder.glob("train-images*")))
    np.testing.assert_array_equal(data.train_x[:, 0].numpy(), expected)
    pixels = data.normalize(data.train_x)
    assert pixels.min() >= 0
    assert pixels.max() == 1


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", write_fashion(tmp_path / "debian", zipped=True))
    assert len(load("fashion-mnist", tmp_path / "empty")) == 20


def test_a_missing_set_says_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "nowhere")
    for name in ("fashion-mnist", "cifar-10", "cifar-100"):
        with pytest.raises(MissingData, match=f"research data get {name} --data-dir .*{tmp_path.name}"):
            load(name, tmp_path)


@pytest.mark.parametrize("rate", [999, 2_000_000_000])
def test_a_sample_rate_that_no_recorder_has_is_refused(tmp_path: Path, rate: int) -> None:
    write_wav(tmp_path / "odd.wav", np.zeros(10), rate)
    with pytest.raises(DataError, match=r"odd\.wav .* from 1 kHz to 1 MHz"):
        read_wav(tmp_path / "odd.wav")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "begins with nothing"),
        (b"\0\0", "is not an IDX file"),
        (idx(np.zeros((4, 28, 28), np.uint8))[:-1], "has 3,151 bytes where its header says 3,152"),
        (idx(np.zeros((4, 28, 28), np.uint8)) + b"x", "has 3,153 bytes"),
        (idx(np.zeros((4, 28, 27), np.uint8)), "holds an array of shape"),
        (b"\0\0\x08\xff" + b"\xff" * 1020, "bytes where its header says"),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x", "has 255 axes"),
        (b"\x1f\x8b\x08\0broken", "cannot be read"),
        (idx(np.zeros((19, 28, 28), np.uint8)), "19 images and .* 20 labels"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, raw: bytes, reason: str) -> None:
    folder = write_fashion(tmp_path / "FashionMNIST" / "raw")
    (folder / "train-images-idx3-ubyte").write_bytes(raw)
    with pytest.raises(DataError, match=f"train-images-idx3-ubyte.*{reason}"):
        load("fashion-mnist", tmp_path)


def test_one_missing_idx_file_and_a_wrong_label_are_named(tmp_path: Path) -> None:
    folder = write_fashion(tmp_path / "FashionMNIST" / "raw")
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(5, 10, np.uint8)))
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte holds the label 10"):
        load("fashion-mnist", tmp_path)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is missing"):
        load("fashion-mnist", tmp_path)


def test_cifar10_keeps_order_labels_and_planes(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    data = load("cifar-10", tmp_path)
    assert data.train_x.shape == (50, 3, 32, 32)
    assert data.train_y.tolist() == list(range(10)) * 5
    assert data.test_y.tolist() == [9, 0]
    assert data.classes == tuple("abcdefghij")
    second = np.frombuffer((folder / "data_batch_2.bin").read_bytes(), np.uint8).reshape(10, 3073)[3, 1:]
    np.testing.assert_array_equal(data.train_x[13].numpy().ravel(), second)
    normalized = data.normalize(data.train_x)
    np.testing.assert_allclose(normalized.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(normalized.std((0, 2, 3)), 1, atol=1e-3)


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    data = load("cifar-100", tmp_path)
    assert data.train_y.tolist() == list(range(100))
    assert data.test_y.tolist() == [99, 7]
    assert len(data.classes) == 100


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "has 0 bytes"),
        (cifar_records([[1], [2]])[:-1], "has 6,145 bytes, which is not a number of 3073-byte records"),
        (cifar_records([[1], [10]]), "record 1 has the label 10"),
        (None, "cannot be read"),
    ],
)
def test_damaged_cifar_files_are_named(tmp_path: Path, raw: bytes | None, reason: str) -> None:
    path = write_cifar10(tmp_path) / "data_batch_3.bin"
    path.unlink() if raw is None else path.write_bytes(raw)
    with pytest.raises(DataError, match=rf"data_batch_3.bin:? {reason}"):
        load("cifar-10", tmp_path)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100])
def test_a_tone_is_in_the_band_of_its_pitch_at_any_rate(tmp_path: Path, rate: int) -> None:
    time = np.arange(rate) / rate
    centres = 700 * np.expm1(np.linspace(np.log1p(20 / 700), np.log1p(min(8000, rate / 2) / 700), 34)[1:-1])
    for pitch in (300, 1000, 3000):
        write_wav(tmp_path / "tone.wav", 0.5 * np.sin(2 * np.pi * pitch * time), rate, channels=2)
        picture = log_mel(*read_wav(tmp_path / "tone.wav"))
        assert picture.shape == (32, 32)
        assert np.isfinite(picture).all()
        assert (abs(picture[4:-4].argmax(axis=1) - np.abs(centres - pitch).argmin()) <= 1).all()


def test_short_clips_are_centered_and_long_ones_cut() -> None:
    click = log_mel(np.ones(80, np.float32), 8000).max(axis=1)
    assert 14 <= int(click.argmax()) <= 17
    assert log_mel(np.ones(20000, np.float32), 8000).shape == (32, 32)


ROW = "39, State-gov, 77516, Bachelors, 13, Single, Clerk, None, White, Male, 2174, 0, 40, {}, {}"


def test_adult_is_read_as_it_is_published_with_countries_as_clients(tmp_path: Path) -> None:
    rows = [ROW.format(country, income) for country in ("Cuba", "Peru") for income in ("<=50K", ">50K") * 5]
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult/adult.data").write_text("\n".join([*rows, "", ""]))
    data = load("adult", tmp_path)
    assert data.name == "adult"
    assert data.classes == ("<=50K", ">50K")
    assert data.clients == ("Cuba", "Peru")
    assert len(data) == 16
    assert len(data.test_y) == 4
    (tmp_path / "adult/adult.data").write_text("\n".join([*rows, "39, State-gov"]))
    with pytest.raises(DataError, match=r"line 22 has 2 fields where"):
        load("adult", tmp_path)


def test_shakespeare_is_read_by_role_from_the_plays_and_from_json(tmp_path: Path) -> None:
    text = "\n\n".join(f"{role}:\n{'To be, or not to be.' * 8}\nThat is it." for role in ("HAM", "LEAR", "HAM"))
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare/input.txt").write_text(text + "\n")
    plays = load("shakespeare", tmp_path)
    assert plays.clients == ("HAM", "LEAR")
    assert plays.objective == "next-token"
    speech = f"{'To be, or not to be.' * 8}\nThat is it."
    (tmp_path / "natural").mkdir()
    by_role = tmp_path / "natural/tinyshakespeare_by_role.json"
    by_role.write_text(json.dumps({"HAM": [speech, speech], "LEAR": [speech]}))
    (tmp_path / "shakespeare/input.txt").unlink()
    assert torch.equal(load("shakespeare", tmp_path).train_x, plays.train_x)
    for wrong in ("[1, 2]", "{", '{"HAM": 3}'):
        by_role.write_text(wrong)
        with pytest.raises(DataError, match="is not Shakespeare by role"):
            load("shakespeare", tmp_path)
