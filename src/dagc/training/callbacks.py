"""Callbacks for every round: stop early, and log to TensorBoard."""

import math
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from dagc.errors import InvalidInput, MissingExtra
from dagc.training.result import Round


class EarlyStopping:
    """Stops a training whose score no longer rises.

    Args:
        patience: How many evaluations in a row may pass without a new best score.
        least: By how much a score must be above the best one to count.

    Example:
        >>> import dagc
        >>> config = dagc.Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=500, evaluate_every=1)
        >>> len(dagc.train(config, callbacks=[EarlyStopping(patience=5)]).rounds) < 500
        True
    """

    def __init__(self, patience: int, least: float = 0.0) -> None:
        if patience < 1:
            raise InvalidInput(f"patience is {patience}: give a number of evaluations, at least 1")
        self.patience, self.least = patience, least
        self.best, self.waited = -math.inf, 0

    def __call__(self, federation: object, result: Round) -> bool:
        """After a round; whether to stop."""
        if result.score is None:
            return False
        better = result.score > self.best + self.least
        self.best, self.waited = (result.score, 0) if better else (self.best, self.waited + 1)
        return self.waited >= self.patience


class TensorBoard:
    """A callback that writes TensorBoard logs: a scalar for every number of a round. It needs the package tensorboard.

    Args:
        folder: Where to write. When a run is resumed, steps after its checkpoint are replaced.
        target: A score; `rounds_to_target`, `bytes_to_target` and `seconds_to_target` are written when it is reached.
    """

    def __init__(self, folder: str | Path, target: float | None = None) -> None:
        try:
            self._make = import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise MissingExtra("such logs need the package tensorboard: pip install tensorboard") from error
        self.folder, self.target = Path(folder), target
        self._writer: Any = None
        self._began = 0.0

    def __call__(self, federation: object, result: Round) -> None:
        if self._writer is None:
            self._began = time.perf_counter()
            self._writer = self._make(str(self.folder), purge_step=result.round if result.round > 1 else None)
        elapsed, total = time.perf_counter() - self._began, result.bytes_up + result.bytes_down
        numbers = {**vars(result), "bytes_total": total, "elapsed": elapsed}
        if self.target is not None and result.score is not None and result.score >= self.target:
            self.target = None  # this is the first time
            amounts = {"rounds": result.round, "bytes": total, "seconds": result.seconds}
            numbers |= {f"{name}_to_target": amount for name, amount in amounts.items()}
        for name, number in numbers.items():
            if name != "round" and number is not None:
                self._writer.add_scalar(name, float(number), result.round)
        if result.score is not None:
            self._writer.flush()
