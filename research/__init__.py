"""The experiments behind the figures: the paper's and ours, their records, and the tables made of them.

Not part of the package: `python -m research --help` in a copy of the repository.
"""

from research.cells import Cell, Variant, choose
from research.paper import EXPERIMENTS, TITLES
from research.records import Record, Store, Tuned
from research.reproduce import Laboratory
from research.stand_in import STAND_INS, with_data

__all__ = [
    "EXPERIMENTS",
    "STAND_INS",
    "TITLES",
    "Cell",
    "Laboratory",
    "Record",
    "Store",
    "Tuned",
    "Variant",
    "choose",
    "with_data",
]
