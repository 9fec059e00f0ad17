"""From Top-k as others send it to `dagc`, one step at a time. What `docs/studies/ablation.md` is made of."""

from typing import Any

from dagc.experiments.cells import Cell, Variant

__all__ = ["ABLATION"]

_STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Top-k, int32 + fp32", {"method": "top-k", "frames": "raw"}),
    ("+ allocation by data", {"method": "dagc-r"}),
    ("+ signs", {"values": "sign"}),
    ("+ Rice codes for indices", {"frames": "plain"}),
    ("+ compact frames", {"frames": "compact"}),
    ("+ waiting", {"overhead": 0.125}),
    ("+ the coder", {"frames": "coded"}),
)
"""Each changes something, and all that were changed before it stay so."""
_LATER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("+ step-ahead", {"step_ahead": 0.5}),
    ("+ a budget down", {"down": "same"}),
)


def _variants(ratio: float, local: dict[str, Any]) -> tuple[Variant, ...]:
    """All steps at the same ratio; with `local`, clients take several steps. The last is `dagc` with its own budget."""
    fields: dict[str, Any] = {"ratio": ratio}
    found = []
    for label, change in (*_STEPS, (f"+ {local['local_steps']} local steps", local), *_LATER):
        fields = {**fields, **change}
        found.append(Variant(label, fields))
    return (*found, Variant("dagc, its own budget", {"method": "dagc", **local}))


ABLATION = (
    Cell(
        "logistic",
        "Logistic@FMNIST, SR 100, ten clients, ratio 0.4 %",
        {
            "task": "logistic@fashion-mnist",
            "rounds": 600,
            "learning_rate": 0.2,
            "skew_ratio": 100.0,
            "first_model": "drawn",
        },
        _variants(0.004, {"local_steps": 20, "rounds": 160, "evaluate_every": 2}),
        (0.75, 0.78, 0.80),
        120,
    ),
    Cell(
        "cnn",
        "CNN@CIFAR-10, SR 100, ten clients, ratio 0.1 %",
        {
            "task": "cnn@cifar-10",
            "rounds": 800,
            "learning_rate": 0.05,
            "skew_ratio": 100.0,
            "first_model": "drawn",
        },
        _variants(0.001, {"local_steps": 10, "rounds": 160, "evaluate_every": 5}),
        (0.40, 0.45, 0.50),
        40,
    ),
)
"""Both cells. All variants have one learning rate, so a step is worth what it saves at that rate."""
