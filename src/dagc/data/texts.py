"""Texts as sequences of characters: a file per client, and the next character to predict."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.data.dataset import Dataset, hold_out
from dagc.errors import DataError

__all__ = ["LENGTH", "from_texts", "read_texts"]

LENGTH = 64
"""Characters per sequence, not counting the one that follows its last."""


def read_texts(path: Path, files: list[Path]) -> Dataset:
    """Load text files in UTF-8: each is a client, cut into sequences of 64 characters that do not overlap.

    A fifth of each client's sequences is held out. Files with fewer than two sequences are left out, with a note.
    """
    return from_texts(str(path), {file.stem: _read(file) for file in files})


def from_texts(name: str, texts: Mapping[str, str]) -> Dataset:
    """The same from texts by client."""
    characters = sorted(set().union(*texts.values()))
    place = {character: number for number, character in enumerate(characters)}
    pieces: dict[str, NDArray[np.int64]] = {}
    for client, text in texts.items():
        count = (len(text) - 1) // LENGTH
        if count < 2:
            continue
        tokens = np.array([place[character] for character in text[: count * LENGTH + 1]], dtype=np.int64)
        pieces[client] = np.stack([tokens[LENGTH * i : LENGTH * (i + 1) + 1] for i in range(count)])
    if not pieces:
        raise DataError(f"{name}: no text has {2 * LENGTH + 1} characters; two sequences of {LENGTH} are needed")
    owner = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces.values()])
    sequences = torch.from_numpy(np.concatenate(list(pieces.values())))
    kept, held = (torch.from_numpy(part) for part in hold_out(owner))
    left_out = len(texts) - len(pieces)
    notes = (f"{left_out} of {len(texts)} texts are shorter than {2 * LENGTH + 1} characters and left out",)
    return Dataset(
        name,
        *(sequences[kept][:, :-1].contiguous(), sequences[kept][:, 1:].contiguous()),
        *(sequences[held][:, :-1].contiguous(), sequences[held][:, 1:].contiguous()),
        tuple(characters),
        torch.from_numpy(owner)[kept],
        tuple(pieces),
        notes=notes if left_out else (),
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as UTF-8 text ({error})") from None
