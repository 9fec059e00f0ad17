"""The data sets of the experiments in their official formats, and their download."""

from research.data import cifar, fashion_mnist, flickr, natural, speech
from research.data.entry import Entry

__all__ = ["ENTRIES", "Entry"]

_ALL = (fashion_mnist.ENTRY, *cifar.ENTRIES, natural.ADULT, natural.SHAKESPEARE, speech.ENTRY, flickr.ENTRY)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}
"""By name, for `dagc.data.CATALOGUE`."""
