"""Comparisons: the same data, seeds and model for several methods."""

from dagc.comparison.compare import SWEPT, comparison_fields, split_methods
from dagc.comparison.runner import run_all, stopping

__all__ = ["SWEPT", "comparison_fields", "run_all", "split_methods", "stopping"]
