"""Rivals: `dagc` and what others do, each at its best. The source of `docs/studies/dagc.md`."""

from typing import Any

from dagc.experiments.cells import Cell, Variant

__all__ = ["RIVALS"]

_NOTES = ("the first model is drawn from the seed by every client, so nobody downloads it",)


_RAW = {"method": "top-k", "frames": "raw", "ratio": 0.001}
_LOGISTIC = "logistic@fashion-mnist"


def _cell(
    name: str,
    title: str,
    rounds: int,
    every: int,
    variants: tuple[Variant, ...],
    targets: tuple[float, ...] = (0.78, 0.80, 0.82),
    **fields: Any,
) -> Cell:
    shared = {"task": _LOGISTIC, "rounds": rounds, "first_model": "drawn", **fields}
    return Cell(name, title, shared, variants, targets, max(rounds, 400) // every, "", _NOTES)


def _defaults(stc: tuple[float, ...]) -> tuple[Variant, ...]:
    """`dagc` with its defaults, DAGC-R with the same bytes up, and STC at the given ratios."""
    return (
        Variant("dagc", {"method": "dagc"}),
        *(Variant(f"STC, {100 * ratio:g} %", {"method": "stc", "ratio": ratio}) for ratio in stc),
        Variant("DAGC-R", {"method": "dagc-r"}),
        Variant("Top-k, int32 + fp32, 0.1 %", _RAW),
        Variant("no compression", {"method": "none"}),
    )


RIVALS = (
    _cell(
        "logistic/60",
        "Logistic@FMNIST, SR 100, ten clients, 60 local steps",
        160,
        2,
        (
            Variant("dagc", {"method": "dagc"}),
            Variant("dagc, 45 bytes", {"method": "dagc", "bytes": 45}),
            Variant("STC, 0.8 %", {"method": "stc", "ratio": 0.008}),
            Variant("STC, 0.4 %", {"method": "stc", "ratio": 0.004}),
            Variant("Top-k, int32 + fp32, 0.1 %", _RAW),
            Variant("Top-k, int32 + fp32, 0.4 %", {**_RAW, "ratio": 0.004}),
            Variant("FedAvg", {"method": "none"}),
            Variant("FedAdam", {"method": "none", "optimizer": "Adam", "server_rate": 0.03}),
        ),
        local_steps=60,
        learning_rate=0.1,
    ),
    _cell(
        "logistic/1",
        "Logistic@FMNIST, SR 100, ten clients, one local step",
        800,
        5,
        (
            Variant("dagc", {"method": "dagc", "learning_rate": 0.2}),
            Variant("dagc, 20 bytes", {"method": "dagc", "bytes": 20, "learning_rate": 0.2}),
            Variant("STC, 0.4 %", {"method": "stc", "ratio": 0.004, "learning_rate": 0.2}),
            Variant("Top-k, int32 + fp32, 0.1 %", {**_RAW, "learning_rate": 0.2}),
            Variant("no compression", {"method": "none", "learning_rate": 0.5}),
            Variant("no compression, Adam", {"method": "none", "optimizer": "Adam", "learning_rate": 0.01}),
        ),
    ),
    _cell(
        "digits",
        "MLP@digits, SR 100, ten clients, 10 local steps",
        100,
        2,
        _defaults((0.004, 0.008)),
        (0.90, 0.92, 0.94),
        task="mlp@digits",
        local_steps=10,
    ),
    _cell(
        "fifty",
        "Logistic@FMNIST, SR 100, 50 clients at 20 %, 20 local steps",
        300,
        5,
        _defaults((0.004, 0.008)),
        (0.75, 0.78, 0.80),
        workers=50,
        participation=0.2,
        local_steps=20,
        learning_rate=0.2,
    ),
    _cell(
        "cnn",
        "CNN@CIFAR-10, SR 100, ten clients, 10 local steps",
        160,
        5,
        _defaults((0.001, 0.002)),
        (0.40, 0.45, 0.50),
        task="cnn@cifar-10",
        local_steps=10,
        learning_rate=0.05,
    ),
)
"""Every cell. Rates, local steps and budgets are the best of a grid on seeds 10 and 11."""
