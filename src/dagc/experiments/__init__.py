"""Experiments: several runs, and what they say together."""

from dagc.experiments.compare import compared, comparison_configs, write_curves
from dagc.experiments.runner import run_all, stopping

__all__ = ["compared", "comparison_configs", "run_all", "stopping", "write_curves"]
