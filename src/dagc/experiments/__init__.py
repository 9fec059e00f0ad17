"""Experiments: several runs, and what they say together."""

from dagc.experiments.allocators import register
from dagc.experiments.cells import Cell, Variant, choose
from dagc.experiments.compare import comparison_configs
from dagc.experiments.paper import EXPERIMENTS, TITLES
from dagc.experiments.reproduce import run_cells
from dagc.experiments.runner import run_all, stopping
from dagc.experiments.stand_in import STAND_INS, with_data

__all__ = [
    "EXPERIMENTS",
    "STAND_INS",
    "TITLES",
    "Cell",
    "Variant",
    "choose",
    "comparison_configs",
    "register",
    "run_all",
    "run_cells",
    "stopping",
    "with_data",
]
