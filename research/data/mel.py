"""Speech as a picture: a WAV file of any sample rate becomes 32 frames of 32 log-mel bands."""

import wave
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagc.errors import DataError

__all__ = ["BANDS", "FRAMES", "log_mel", "read_wav"]

FRAMES = 32
BANDS = 32
_LOWEST, _HIGHEST = 20.0, 8000.0  # Hz; the top is half the sample rate where that is lower
_FLOOR = 1e-6  # lower energies count as silence


def read_wav(path: Path) -> tuple[NDArray[np.float32], int]:
    """The samples (−1 … 1, channels averaged) and the sample rate of a 16-bit PCM WAV file.

    Raises:
        DataError: If the file is none, truncated or empty; it is named.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, frames = file.getparams()[:4]
            raw = file.readframes(frames)
    except (wave.Error, EOFError, OSError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable WAV file ({error or 'it ends too early'})") from None
    if width != 2 or not 1000 <= rate <= 1_000_000:
        raise DataError(f"{path} has {8 * width}-bit samples at {rate} Hz; 16-bit PCM from 1 kHz to 1 MHz is needed")
    if not raw or len(raw) != frames * channels * width:
        raise DataError(f"{path} holds {len(raw):,} of the {frames * channels * width:,} bytes that it announces")
    pcm = np.frombuffer(raw, dtype="<i2").reshape(-1, channels)
    return (pcm.mean(axis=1) / 32768).astype(np.float32), rate


def log_mel(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """The first second as (32 frames, 32 bands) of log energy; shorter clips are centered in silence.

    A frame is a Hann window of 1/16 s every 1/32 s; the bands are triangles, evenly spaced on the mel scale.

    Example:
        >>> tone = np.sin(2 * np.pi * 440 * np.arange(8000) / 8000).astype(np.float32)
        >>> picture = log_mel(tone, 8000)
        >>> picture.shape, bool((picture.argmax(axis=1) == picture[5].argmax())[1:-1].all())
        ((32, 32), True)
    """
    window = rate // 16
    clip = samples[:rate]
    before = (rate - len(clip)) // 2
    padded = np.zeros(rate + window, dtype=np.float32)
    padded[before + window // 4 : before + window // 4 + len(clip)] = clip
    starts = np.arange(FRAMES) * rate // FRAMES
    frames = padded[starts[:, None] + np.arange(window)] * np.hanning(window + 2)[1:-1].astype(np.float32)
    power = np.abs(np.fft.rfft(frames, n=_length(window))) ** 2 / window
    return np.log(power @ _triangles(rate) + _FLOOR).astype(np.float32)


def _length(window: int) -> int:
    """The next power of two: the transform is fastest there."""
    return 1 << (window - 1).bit_length()


@lru_cache(maxsize=8)
def _triangles(rate: int) -> NDArray[np.float64]:
    """One column per band: its weight on each frequency of the transform."""
    top = min(_HIGHEST, rate / 2)
    edges = np.linspace(1127 * np.log1p(_LOWEST / 700), 1127 * np.log1p(top / 700), BANDS + 2)
    hertz = 700 * np.expm1(edges / 1127)
    frequency = np.fft.rfftfreq(_length(rate // 16), 1 / rate)[:, None]
    width = np.maximum(np.diff(hertz), rate / _length(rate // 16))  # a band is never narrower than the transform's step
    rising = (frequency - (hertz[1:-1] - width[:-1])) / width[:-1]
    falling = ((hertz[1:-1] + width[1:]) - frequency) / width[1:]
    weights: NDArray[np.float64] = np.clip(np.minimum(rising, falling), 0, None)
    return weights
