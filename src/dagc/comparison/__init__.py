"""Comparisons: the same data, seeds and model for several methods, each tuned first if that is asked for."""

from dagc.comparison.compare import SWEPT, comparison_fields, split_methods
from dagc.comparison.runner import run_all, stopping
from dagc.comparison.tuning import TUNING_SEEDS, Choice, candidates_hash, tune

__all__ = [
    "SWEPT",
    "TUNING_SEEDS",
    "Choice",
    "candidates_hash",
    "comparison_fields",
    "run_all",
    "split_methods",
    "stopping",
    "tune",
]
