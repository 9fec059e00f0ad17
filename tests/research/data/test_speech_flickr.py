"""Speech Commands and Flickr-Mammal on tiny files in the official formats, whole and damaged."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from dagc.data import load, make_partition
from dagc.errors import DataError, MissingData
from research.__main__ import app
from research.data import speech
from tests.research.data.files import write_speech, write_wav
from tests.research.data.test_download import Server, archive, server
from tests.research.data.test_real import real

__all__ = ["server"]


@pytest.mark.parametrize("name", ["speech-commands", "flickr-mammal"])
def test_a_missing_set_says_the_command(name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=f"research data get {name} --data-dir .*{tmp_path.name}"):
        load(name, tmp_path)


def test_speech_takes_the_largest_words_and_says_where_there_are_fewer(tmp_path: Path) -> None:
    write_speech(tmp_path, {f"word{n:02}": 12 - n for n in range(11)} | {"_background_noise_": 20})
    data = load("speech-commands", tmp_path)
    assert data.classes == tuple(f"word{n:02}" for n in range(10))  # word10 has the fewest
    assert data.shape == (32, 32)
    assert len(data) + len(data.test_y) == sum(12 - n for n in range(10))
    assert torch.bincount(data.test_y).tolist() == [max(1, (12 - n) // 4) for n in range(10)]
    assert data.clients == ("speaker0", "speaker1", "speaker2")
    assert any("fewer than 4,000" in note for note in data.notes)


def test_speech_features_are_cached_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_speech(tmp_path, {"no": 4, "yes": 4})
    first = load("speech-commands", tmp_path)
    caches = list((tmp_path / "cache").iterdir())
    assert len(caches) == 1

    def fail(*_: object) -> None:
        raise AssertionError("computed again")

    with monkeypatch.context() as patch:
        patch.setattr(speech, "log_mel", fail)
        assert torch.equal(load("speech-commands", tmp_path).train_x, first.train_x)
    caches[0].write_bytes(b"PK\x03\x04 damaged")
    assert torch.equal(load("speech-commands", tmp_path).train_x, first.train_x)
    changed = folder / "yes" / "speaker0_nohash_0.wav"
    write_wav(changed, np.zeros(4000))
    os.utime(changed, ns=(1, 1))
    again = load("speech-commands", tmp_path)
    assert not torch.equal(torch.cat([again.train_x, again.test_x]), torch.cat([first.train_x, first.test_x]))


def test_features_that_cannot_be_cached_are_said(tmp_path: Path) -> None:
    write_speech(tmp_path, {"no": 4, "yes": 4})
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert any("could not be written" in note for note in load("speech-commands", tmp_path).notes)


def test_corrupt_wavs_are_named(tmp_path: Path) -> None:
    folder = write_speech(tmp_path, {"no": 4, "yes": 4})
    (folder / "no" / "speaker0_nohash_0.wav").write_bytes(b"RIFF")
    whole = (folder / "no" / "speaker1_nohash_1.wav").read_bytes()
    (folder / "no" / "speaker1_nohash_1.wav").write_bytes(whole[:-7])
    write_wav(folder / "yes" / "speaker2_nohash_2.wav", np.zeros(0))
    write_wav(folder / "yes" / "speaker0_nohash_3.wav", np.zeros(100), width=1)
    with pytest.raises(DataError) as caught:
        load("speech-commands", tmp_path)
    for name in ("no/speaker0_nohash_0", "no/speaker1_nohash_1", "yes/speaker2_nohash_2", "yes/speaker0_nohash_3"):
        assert name in str(caught.value)
    assert "8-bit samples" in str(caught.value)


def _flickr(root: Path, rows: list[str]) -> Path:
    folder = root / "flickr-mammal"
    (folder / "images").mkdir(parents=True)
    for number in range(30):
        color = (250, 0, 0) if number % 2 else (0, 0, 250)
        Image.new("RGB", (40 + number, 50), color).save(folder / "images" / f"{number}.png")
    (folder / "metadata.csv").write_text("\n".join(["file,label,subcontinent", *rows]))
    return folder


def test_flickr_skips_and_counts_broken_images(tmp_path: Path) -> None:
    rows = [
        f"images/{n}.png,{'cat' if n % 2 else 'dog'},{'Northern Europe' if n < 20 else 'Melanesia'}" for n in range(30)
    ]
    folder = _flickr(tmp_path, [*rows, "images/missing.png,cat,Melanesia"])
    (folder / "images" / "3.png").write_bytes(b"\x89PNG damaged")
    for _ in range(2):  # computed, then from the cache
        data = load("flickr-mammal", tmp_path)
        assert len(data) + len(data.test_y) == 29
        assert data.shape == (3, 32, 32)
        assert data.clients == ("Melanesia", "Northern Europe")
        assert data.classes == ("cat", "dog")
        assert data.notes == ("1 images are missing and 1 are broken, of 31; they are left out",)
        assert (data.train_x[data.train_y == 0][:, 0] == 250).all()
        assert (data.train_x[data.train_y == 1][:, 2] == 250).all()


def test_flickr_keeps_the_ten_most_frequent_labels(tmp_path: Path) -> None:
    rows = [f"images/{n}.png,animal{min(n // 2, 11):02},Asia" for n in range(30)]
    _flickr(tmp_path, rows)
    assert load("flickr-mammal", tmp_path).classes == (*(f"animal{n:02}" for n in range(9)), "animal11")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("file,label\n", "has no column 'subcontinent'"),
        ("file,label,subcontinent\nimages/1.png,,Asia\n", "line 2"),
        ("file,label,subcontinent\n../1.png,cat,Asia\n", "outside of the folder"),
        ("file,label,subcontinent\nno.png,cat,Asia\n", "0 of the 1 images"),
        ("", "has no column 'file'"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, text: str, reason: str) -> None:
    (_flickr(tmp_path, []) / "metadata.csv").write_text(text)
    with pytest.raises(DataError, match=f"flickr-mammal.*{reason}"):
        load("flickr-mammal", tmp_path)


def test_flickr_says_that_it_needs_its_images(server: Server, tmp_path: Path) -> None:
    server.files["geo_animal.tar.gz"] = archive({"list.txt": b"addresses"})
    arguments = ["data", "get", "flickr-mammal", "--data-dir", str(tmp_path), "--mirror", server.url]
    told = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert told.exit_code == 1
    assert "No checksum is published" in told.output
    assert "still needs its images and metadata.csv" in " ".join(told.output.split())
    assert (tmp_path / "flickr-mammal-zenodo" / "list.txt").read_bytes() == b"addresses"


def test_spoken_words_are_all_there() -> None:
    data = real("speech-commands")
    assert data.shape == (32, 32)
    assert len(data.classes) == 10
    if data.clients == ("george", "jackson", "lucas", "nicolas", "theo", "yweweler"):  # the Free Spoken Digit Dataset
        assert (len(data), len(data.test_y)) == (2250, 750)
        assert torch.bincount(data.train_y).tolist() == [225] * 10
        assert make_partition("by-client", data).workers == 6
    else:
        assert torch.bincount(data.train_y).max() <= 3000
        assert torch.bincount(data.test_y).max() <= 1000
