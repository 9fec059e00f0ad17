"""Step-ahead, on and off: small models and larger ones, one local step and many. Part of `docs/studies/thrifty.md`."""

from typing import Any

from research.cells import THRIFTY, Cell, Variant

__all__ = ["STEP_AHEAD"]

_VARIANTS = (Variant("with step-ahead", THRIFTY), Variant("without", {**THRIFTY, "step_ahead": 0.0}))

_ROLES = "token-lstm@shakespeare"


def _cell(
    name: str, title: str, task: str, rounds: int, every: int, targets: tuple[float, ...], rate: float, **fields: Any
) -> Cell:
    shared = {"task": task, "rounds": rounds, "learning_rate": rate, "first_model": "drawn", **fields}
    return Cell(name, title, shared, _VARIANTS, targets, max(rounds, 400) // every)


STEP_AHEAD = (
    _cell("mlp-1", "MLP@digits, one local step", "mlp@digits", 400, 4, (0.90, 0.92, 0.94), 0.1),
    _cell("mlp-10", "MLP@digits, 10 local steps", "mlp@digits", 120, 2, (0.90, 0.92, 0.94), 0.1, local_steps=10),
    _cell("cnn-1", "CNN@CIFAR-10, one local step", "cnn@cifar-10", 600, 10, (0.30, 0.35, 0.40), 0.05),
    _cell("cnn-10", "CNN@CIFAR-10, 10 local steps", "cnn@cifar-10", 160, 5, (0.40, 0.45, 0.50), 0.05, local_steps=10),
    _cell(
        "lstm-1",
        "LSTM@Shakespeare, the ten largest roles, one local step",
        _ROLES,
        400,
        10,
        (0.20, 0.25, 0.30),
        1.0,
        partition="by-client:clients=10",
    ),
    _cell(
        "lstm-10",
        "LSTM@Shakespeare, the ten largest roles, 10 local steps",
        _ROLES,
        100,
        4,
        (0.20, 0.25, 0.30),
        1.0,
        partition="by-client:clients=10",
        local_steps=10,
    ),
)
"""Every cell. Both variants have the same rate, and the budget that `dagc` has by default."""
