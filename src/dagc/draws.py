"""Random numbers that are the same on every machine: SplitMix64, which hashes a counter and so needs no state."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dagc.errors import InvalidInput

Word = TypeVar("Word", int, NDArray[np.uint64])

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # the counter's increment from one number to the next


def scramble(seed: int, number: int) -> int:
    """Output `number`, counted from 0, of SplitMix64 started at `seed`: gives each client a seed of its own."""
    return _mixed((seed + (number + 1) * _STEP) & _MASK)


def splitmix64(seed: int, count: int) -> NDArray[np.uint64]:
    """The first `count` outputs of SplitMix64 started at `seed`, an integer from 0 to 2⁶⁴ − 1."""
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= _STEP
    words += np.uint64(seed)
    return _mixed(words)


def draw(seed: int, size: int, count: int) -> NDArray[np.int64]:
    """`count` different indices below `size`, ascending: the first different outputs of SplitMix64 modulo `size`.

    If more than half are wanted, those to leave out are drawn instead. Time and memory are in proportion to `count`.
    """
    if not 0 <= count <= size:
        raise InvalidInput(f"cannot draw {count} different indices below {size}: draw between 0 and {size}")
    if 2 * count > size:
        kept = np.ones(size, dtype=bool)
        kept[draw(seed, size, size - count)] = False
        return np.flatnonzero(kept)
    drawn, done = np.zeros(0, dtype=np.int64), 0
    while len(drawn) < count:
        # Only as many as are missing are drawn: that can never be too many, so their order does not matter.
        words = splitmix64((seed + done * _STEP) & _MASK, count - len(drawn))
        words %= np.uint64(size)
        drawn = np.concatenate((drawn, words.view(np.int64)))
        drawn.sort(kind="stable" if done else None)  # stable is fast if most of it is sorted already
        drawn = drawn[np.diff(drawn, prepend=-1) > 0]
        done += len(words)
    return drawn


def _mixed(word: Word) -> Word:
    """SplitMix64's hash of a number, or of each number of an array, in place."""
    word ^= word >> 30
    word *= 0xBF58476D1CE4E5B9
    word &= _MASK
    word ^= word >> 27
    word *= 0x94D049BB133111EB
    word &= _MASK
    word ^= word >> 31
    return word
