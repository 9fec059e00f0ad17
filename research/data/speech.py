"""Speech Commands, or any folder of the same shape: a folder per word, WAV files in it, the speaker in the name."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.dataset import Dataset, statistics
from dagc.errors import DataError
from research.data.cache import cached, fingerprint
from research.data.download import Source
from research.data.entry import Entry
from research.data.mel import BANDS, FRAMES, log_mel, read_wav

__all__ = ["ENTRY", "is_speech_folder", "locate", "read", "read_folder"]

WORDS, TRAIN, TEST = 10, 3000, 1000
_FEATURES_VERSION = 1  # increase it when log_mel changes, so that old caches are not used


def locate(root: Path) -> Path | None:
    """The folder of words: the official one below SpeechCommands, or the first that has its structure."""
    top = root / "SpeechCommands"
    official = [top / "speech_commands_v0.02", top / "speech_commands_v0.01", top]
    others = sorted(top.iterdir()) if top.is_dir() else []
    return next((folder for folder in official + others if is_speech_folder(folder)), None)


def is_speech_folder(folder: Path) -> bool:
    """Whether a folder holds folders that hold WAV files."""
    return folder.is_dir() and any(_clips(word) for word in sorted(folder.iterdir()) if word.is_dir())


def read(folder: Path, root: Path) -> Dataset:
    """Load the ten largest words of the folder as log-mel images; they are cached below `root`."""
    return read_folder(folder, root, "speech-commands")


def read_folder(folder: Path, root: Path, name: str) -> Dataset:
    """Load a folder of words: the ten largest, 3,000 clips each to train and 1,000 to test, or 3 to 1."""
    words = {word.name: _clips(word) for word in sorted(folder.iterdir()) if word.is_dir() and word.name[0] != "_"}
    largest = sorted((word for word in words if words[word]), key=lambda word: (-len(words[word]), word))[:WORDS]
    if len(largest) < 2:
        raise DataError(f"{folder} has {len(largest)} folders with WAV files; two words or more are needed")
    classes = tuple(sorted(largest))
    train: list[Path] = []
    test: list[Path] = []
    for word in classes:
        clips = sorted(
            words[word], key=lambda path: hashlib.sha256(f"{path.parent.name}/{path.name}".encode()).digest()
        )
        held = min(TEST, max(1, len(clips) // 4))
        test += clips[:held]
        train += clips[held : held + TRAIN]
        if len(clips) < 2:
            raise DataError(f"{folder / word} has one WAV file; at least two are needed, to train and to test")
    features, cached = _cached_features(train + test, folder, root)
    x = torch.from_numpy(features)
    mean, std = statistics(x[: len(train)])
    speakers = sorted({_speaker(path) for path in train})
    number = {speaker: index for index, speaker in enumerate(speakers)}
    return Dataset(
        name,
        x[: len(train)],
        torch.tensor([classes.index(path.parent.name) for path in train]),
        x[len(train) :],
        torch.tensor([classes.index(path.parent.name) for path in test]),
        classes,
        client=torch.tensor([number[_speaker(path)] for path in train]),
        clients=tuple(speakers),
        mean=mean,
        std=std,
        notes=_notes(words, classes) + cached,
    )


def _notes(words: dict[str, list[Path]], classes: tuple[str, ...]) -> tuple[str, ...]:
    short = [f"{word} {len(words[word]):,}" for word in classes if len(words[word]) < TRAIN + TEST]
    notes = []
    if len(classes) < WORDS:
        notes.append(f"{len(classes)} words, while the paper has {WORDS}")
    if short:
        notes.append(f"fewer than {TRAIN + TEST:,} clips, so a quarter of them is the test set: {', '.join(short)}")
    return tuple(notes)


def _clips(word: Path) -> list[Path]:
    with os.scandir(word) as entries:
        return [Path(entry.path) for entry in entries if entry.name.lower().endswith(".wav") and entry.name[0] != "."]


def _speaker(path: Path) -> str:
    return path.name.split("_nohash_")[0] if "_nohash_" in path.name else path.stem


def _cached_features(clips: list[Path], folder: Path, root: Path) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    key = [f"{_FEATURES_VERSION} {FRAMES} {BANDS}", *(fingerprint(path, folder) for path in clips)]
    arrays, notes = cached(root, "speech", key, lambda: {"features": _features(clips)})
    return arrays["features"], notes


def _features(clips: list[Path]) -> NDArray[np.float32]:
    features = np.empty((len(clips), FRAMES, BANDS), dtype=np.float32)
    broken: list[str] = []
    for row, path in enumerate(clips):
        try:
            features[row] = log_mel(*read_wav(path))
        except DataError as error:
            broken.append(str(error))
    if broken:
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        raise DataError(f"{'; '.join(broken[:5])}{more}: replace or delete these files")
    return features


ENTRY = Entry(
    "speech-commands",
    "40,000 spoken words, log-mel 32×32",
    "2.4 GB",
    "CC BY 4.0",
    (
        Source(
            "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
            "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",  # as torchaudio publishes it
            "SpeechCommands/speech_commands_v0.02",
        ),
    ),
    locate,
    read,
)
