"""From Top-k as others send it to `thrifty`, one step at a time. What `docs/studies/parts.md` is made of."""

from typing import Any

from research.cells import THRIFTY, Cell, Variant

__all__ = ["ABLATION"]

_STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Top-k, int32 + fp32", {"method": "top-k", "values": "int32+fp32"}),
    ("+ allocation by data", {"method": "dagc-r"}),
    ("+ signs", {"values": "int32+sign"}),
    ("+ Rice codes for indices", {"values": "sign"}),
    ("+ waiting", {"overhead": 0.125}),
    ("+ the coder", {"frames": "coded"}),
)
"""Each changes something, and all that were changed before it stay so."""
_LATER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("+ step-ahead", {"step_ahead": 0.5}),
    ("+ a budget down", {"down": "same"}),
)


def _variants(ratio: float, local: dict[str, Any]) -> tuple[Variant, ...]:
    """All steps at the same ratio; with `local`, clients take several steps. The last is `thrifty` itself."""
    fields: dict[str, Any] = {"ratio": ratio}
    found = []
    for label, change in (*_STEPS, (f"+ {local['local_steps']} local steps", local), *_LATER):
        fields = {**fields, **change}
        found.append(Variant(label, fields))
    return (*found, Variant("thrifty, its own budget", {**THRIFTY, **local}))


def _cell(name: str, title: str, task: str, rounds: int, rate: float, evaluations: int, **more: Any) -> Cell:
    fields = {"task": task, "rounds": rounds, "learning_rate": rate, "skew_ratio": 100.0, "first_model": "drawn"}
    return Cell(name, f"{title}, SR 100, ten clients", fields, evaluations=evaluations, **more)


ABLATION = (
    _cell(
        *("logistic", "Logistic@FMNIST, ratio 0.4 %", "logistic@fashion-mnist", 600, 0.2, 120),
        variants=_variants(0.004, {"local_steps": 20, "rounds": 160, "evaluate_every": 2}),
        targets=(0.75, 0.78, 0.80),
    ),
    _cell(
        *("cnn", "CNN@CIFAR-10, ratio 0.1 %", "cnn@cifar-10", 800, 0.05, 40),
        variants=_variants(0.001, {"local_steps": 10, "rounds": 160, "evaluate_every": 5}),
        targets=(0.40, 0.45, 0.50),
    ),
)
"""Both cells. All variants have one learning rate, so a step is worth what it saves at that rate."""
