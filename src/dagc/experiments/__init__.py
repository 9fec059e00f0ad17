"""Experiments: several runs, compared with each other."""

from dagc.experiments.allocators import register
from dagc.experiments.cells import Cell, Variant, choose
from dagc.experiments.compare import SWEPT, comparison_configs, comparison_fields, split_methods
from dagc.experiments.paper import EXPERIMENTS, TITLES
from dagc.experiments.records import Record, Store, Tuned
from dagc.experiments.reproduce import Laboratory
from dagc.experiments.runner import run_all, stopping
from dagc.experiments.stand_in import STAND_INS, with_data
from dagc.experiments.tuning import TUNING_SEEDS, Choice, question, tune

__all__ = [
    "EXPERIMENTS",
    "STAND_INS",
    "SWEPT",
    "TITLES",
    "TUNING_SEEDS",
    "Cell",
    "Choice",
    "Laboratory",
    "Record",
    "Store",
    "Tuned",
    "Variant",
    "choose",
    "comparison_configs",
    "comparison_fields",
    "question",
    "register",
    "run_all",
    "split_methods",
    "stopping",
    "tune",
    "with_data",
]
