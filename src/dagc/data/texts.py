"""Texts as sequences of characters: a file per client, and the next character to predict."""

from collections.abc import Mapping
from pathlib import Path

import torch

from dagc.data.assemble import Samples, joined
from dagc.errors import DataError

__all__ = ["LENGTH", "read_text", "samples_of_texts"]

LENGTH = 64
"""Characters per sequence, not counting the one that follows its last."""


def samples_of_texts(name: str, texts: Mapping[str, str]) -> Samples:
    """Cut the text of every client into sequences of 64 characters that do not overlap.

    Texts with fewer than two sequences are left out, with a note.
    """
    characters = sorted(set().union(*texts.values()))
    place = {character: number for number, character in enumerate(characters)}
    pieces: dict[str, Samples] = {}
    for client, text in texts.items():
        count = (len(text) - 1) // LENGTH
        if count >= 2:
            tokens = torch.tensor([place[character] for character in text[: count * LENGTH + 1]])
            x, y = tokens[:-1].reshape(count, LENGTH), tokens[1:].reshape(count, LENGTH)
            pieces[client] = Samples(x, y.numpy(), classes=tuple(characters), exact=True, normalize=False)
    if not pieces:
        raise DataError(f"{name}: no text has {2 * LENGTH + 1} characters; two sequences of {LENGTH} are needed")
    left_out = len(texts) - len(pieces)
    note = f"{left_out} of {len(texts)} texts are shorter than {2 * LENGTH + 1} characters and left out"
    return joined([*pieces.values()], [*pieces])._replace(notes=(note,) if left_out else ())


def read_text(file: Path) -> str:
    """A file in UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as UTF-8 text ({error})") from None
