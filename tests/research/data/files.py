"""Tiny data files in the official formats, for the tests of the loaders."""

import gzip
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FASHION = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: NDArray[np.uint8]) -> bytes:
    axes = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + axes + array.tobytes()


def write_fashion(folder: Path, train: int = 20, test: int = 5, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for (images, labels), count in ((FASHION[:2], train), (FASHION[2:], test)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for name, array in ((images, pixels), (labels, (np.arange(count) % 10).astype(np.uint8))):
            raw = idx(array)
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(raw) if zipped else raw)
    return folder


def cifar_records(labels: list[list[int]], seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.concatenate([np.array(labels, dtype=np.uint8), pixels], axis=1).tobytes()


def write_cifar10(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for part in range(1, 6):
        (folder / f"data_batch_{part}.bin").write_bytes(cifar_records([[label] for label in range(10)], seed=part))
    (folder / "test_batch.bin").write_bytes(cifar_records([[9], [0]]))
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    return folder


def write_cifar100(root: Path) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(cifar_records([[label // 5, label] for label in range(100)]))
    (folder / "test.bin").write_bytes(cifar_records([[1, 99], [2, 7]]))
    return folder


def write_wav(path: Path, samples: NDArray[np.float64], rate: int = 8000, channels: int = 1, width: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2")
        file.writeframes(np.repeat(pcm, channels).tobytes() if width == 2 else bytes(len(pcm)))


def write_speech(root: Path, words: dict[str, int], rate: int = 8000) -> Path:
    folder = root / "SpeechCommands" / "little"
    for pitch, (word, count) in enumerate(words.items(), start=2):
        for take in range(count):
            time = np.arange(rate // 2) / rate
            write_wav(
                folder / word / f"speaker{take % 3}_nohash_{take}.wav", np.sin(2 * np.pi * 100 * pitch * time), rate
            )
    return folder
