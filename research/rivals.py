"""Rivals: `thrifty` and what others do, each at its best. What `docs/studies/thrifty.md` is made of."""

from typing import Any

from research.cells import THRIFTY, Cell, Variant

__all__ = ["RIVALS"]

_NOTES = ("the first model is drawn from the seed by every client, so nobody downloads it",)
_LOGISTIC = "logistic@fashion-mnist"


def _cell(
    name: str,
    title: str,
    rounds: int,
    every: int,
    targets: tuple[float, ...],
    variants: tuple[Variant, ...],
    tune: dict[str, tuple[Any, ...]],
    **fields: Any,
) -> Cell:
    shared = {"task": _LOGISTIC, "rounds": rounds, "evaluate_every": every, "first_model": "drawn", **fields}
    return Cell(name, title, shared, variants, targets, notes=_NOTES, tune=tune)


def _variants(
    stc: tuple[float, ...],
    top_k: tuple[float, ...],
    dense: int,
    adam: dict[str, tuple[Any, ...]],
    *also: Variant,
    rates: tuple[float, ...] = (),
) -> tuple[Variant, ...]:
    """`thrifty` without a setting, beside the others at their best.

    Args:
        stc: Ratios of entries that STC chooses from.
        top_k: Ratios that Top-k chooses from.
        dense: Rounds that are enough without compression.
        adam: What is tuned of the server's Adam.
        also: STC with other settings, as rows of their own.
        rates: Learning rates of FedAvg and FedAdam, where they are not the cell's.
    """
    own = {"learning_rate": rates} if rates else {}
    return (
        Variant("thrifty", THRIFTY),
        Variant("STC", {"method": "stc"}, tune={"ratio": stc}),
        *also,
        Variant("DAGC-R, 0.1 %", {"method": "dagc-r", "ratio": 0.001}),
        Variant("Top-k, int32 + fp32", {"method": "top-k", "values": "int32+fp32"}, tune={"ratio": top_k}),
        Variant("FedAvg", {"method": "none", "rounds": dense}, tune=own),
        Variant("FedAdam", {"method": "none", "optimizer": "Adam", "rounds": dense}, tune={**own, **adam}),
    )


_RARELY = (
    Variant("thrifty", THRIFTY),
    Variant("thrifty, 200 bytes up, 600 down", {**THRIFTY, "bytes": 200, "down": 600}),
    Variant("STC", {"method": "stc"}, tune={"ratio": (0.01, 0.02, 0.04)}),
    Variant("STC, 2 %, rate 0.2", {"method": "stc", "ratio": 0.02, "learning_rate": 0.2}),
    Variant("STC, 2 % up, 4,000 bytes down", {"method": "stc", "ratio": 0.02, "down": 4000}),
    Variant("DAGC-R, 0.1 %", {"method": "dagc-r", "ratio": 0.001}),
    Variant("Top-k, int32 + fp32", {"method": "top-k", "values": "int32+fp32"}, tune={"ratio": (0.001, 0.004)}),
    Variant("FedAvg", {"method": "none", "rounds": 60}),
    Variant("FedAdam", {"method": "none", "optimizer": "Adam", "rounds": 60}, tune={"server_rate": (0.01, 0.03, 0.1)}),
)
"""For clients that rarely take part: `thrifty` also with the budget that was chosen for them.

And STC as it was before tuning: with two seeds, tuning chose something that took more bytes with the others.
"""

RIVALS = (
    _cell(
        "logistic",
        "Logistic@FMNIST, SR 100, ten clients, 60 local steps",
        140,
        2,
        (0.78, 0.80, 0.82),
        _variants(
            (0.002, 0.004, 0.008),
            (0.001, 0.004, 0.008),
            60,
            {"server_rate": (0.01, 0.03, 0.1)},
            Variant("STC, 0.8 %, rate 0.5", {"method": "stc", "ratio": 0.008, "learning_rate": 0.5}),
        ),
        {"learning_rate": (0.1, 0.2, 0.3, 0.5, 1.0)},
        local_steps=60,
    ),
    _cell(
        "logistic-linear",
        "Logistic@FMNIST, SR 100, ten clients, 60 local steps, rates that fall linearly to 0",
        140,
        2,
        (0.78, 0.80, 0.82),
        (
            *_variants(
                (0.004, 0.008), (0.001, 0.004), 60, {"server_rate": (0.03, 0.1), "server_schedule": ("linear",)}
            ),
            Variant("thrifty, from rate 0.5", {**THRIFTY, "learning_rate": 0.5}),
        ),
        {"learning_rate": (0.5, 1.0, 2.0)},
        local_steps=60,
        schedule="linear",
    ),
    _cell(
        "logistic-20",
        "Logistic@FMNIST, SR 100, ten clients, 20 local steps",
        300,
        5,
        (0.78, 0.80, 0.82),
        _variants((0.002, 0.004, 0.008, 0.016), (0.001, 0.004), 150, {"server_rate": (0.01, 0.03, 0.1)}),
        {"learning_rate": (0.1, 0.2, 0.5, 1.0)},
        local_steps=20,
    ),
    _cell(
        "logistic-1",
        "Logistic@FMNIST, SR 100, ten clients, one local step",
        1000,
        5,
        (0.75, 0.78, 0.80),
        _variants((0.002, 0.004, 0.008, 0.016), (0.001, 0.004), 500, {"learning_rate": (0.003, 0.01, 0.03, 0.1)}),
        {"learning_rate": (0.1, 0.2, 0.5, 1.0)},
    ),
    _cell(
        "digits",
        "MLP@digits, SR 100, ten clients, 10 local steps",
        120,
        2,
        (0.90, 0.92, 0.94),
        _variants((0.0005, 0.001, 0.002, 0.004), (0.001, 0.004), 120, {"server_rate": (0.01, 0.03, 0.1)}),
        {"learning_rate": (0.05, 0.1, 0.2, 0.5)},
        task="mlp@digits",
        local_steps=10,
    ),
    _cell(
        "digits-linear",
        "MLP@digits, SR 100, ten clients, 10 local steps, rates that fall linearly to 0",
        120,
        2,
        (0.90, 0.92, 0.94),
        _variants(
            (0.0005, 0.001, 0.002), (0.001, 0.004), 120, {"server_rate": (0.03, 0.1), "server_schedule": ("linear",)}
        ),
        {"learning_rate": (0.2, 0.5, 1.0)},
        task="mlp@digits",
        local_steps=10,
        schedule="linear",
    ),
    _cell(
        "fifty",
        "Logistic@FMNIST, SR 100, 50 clients at 20 %, 20 local steps",
        300,
        5,
        (0.75, 0.78, 0.80),
        _variants((0.002, 0.004, 0.008, 0.016), (0.001, 0.004), 60, {"server_rate": (0.01, 0.03)}),
        {"learning_rate": (0.1, 0.2, 0.5)},
        clients=50,
        participation=0.2,
        local_steps=20,
    ),
    _cell(
        "five-hundred",
        "Logistic@FMNIST, SR 100, 500 clients at 2 %, 20 local steps",
        300,
        5,
        (0.70, 0.75, 0.78),
        _RARELY,
        {"learning_rate": (0.1, 0.2, 0.5)},
        clients=500,
        participation=0.02,
        local_steps=20,
    ),
    _cell(
        "hospitals",
        "Logistic@FMNIST, six clients with the sizes of Fed-ISIC's hospitals, 20 local steps",
        200,
        4,
        (0.78, 0.80, 0.82),
        _variants((0.002, 0.004, 0.008, 0.016), (0.001, 0.004), 100, {"server_rate": (0.01, 0.03, 0.1)}),
        {"learning_rate": (0.2, 0.5, 1.0)},
        partition="from-sizes:sizes=12413/3954/3363/2259/819/439,scale=true,label_alpha=0.5",
        local_steps=20,
    ),
    _cell(
        "adult",
        "Logistic@Adult by country, 41 clients, 10 local steps",
        100,
        2,
        (0.80, 0.82, 0.83),
        _variants((0.05, 0.1), (0.01, 0.05), 100, {"server_rate": (0.01, 0.03, 0.1)}),
        {"learning_rate": (0.03, 0.1, 0.3)},
        task="logistic@adult",
        partition="by-client:min_size=10",
        local_steps=10,
    ),
    _cell(
        "mlp",
        "MLP@FMNIST, SR 100, ten clients, 20 local steps",
        150,
        4,
        (0.78, 0.80, 0.82),
        _variants((0.0005, 0.001, 0.002), (0.001,), 60, {"learning_rate": (0.1, 0.2), "server_rate": (0.003, 0.01)}),
        {"learning_rate": (0.1, 0.2, 0.5)},
        task="mlp@fashion-mnist",
        local_steps=20,
    ),
    _cell(
        "cnn",
        "CNN@CIFAR-10, SR 100, ten clients, label α 0.5, 10 local steps",
        160,
        5,
        (0.40, 0.45, 0.50),
        _variants(
            (0.0005, 0.001),
            (0.001,),
            80,
            {"server_rate": (0.003, 0.01, 0.03)},
            Variant("STC, 0.05 %", {"method": "stc", "ratio": 0.0005, "learning_rate": 0.05}),
        ),
        {"learning_rate": (0.05, 0.1)},
        task="cnn@cifar-10",
        local_steps=10,
    ),
    _cell(
        "cnn-labels",
        "CNN@CIFAR-10, SR 100, ten clients, label α 0.1, 10 local steps",
        160,
        5,
        (0.30, 0.35, 0.40),
        _variants((0.001,), (0.001,), 80, {"server_rate": (0.003,)}),  # as tuned with label α 0.5
        {"learning_rate": (0.05,)},
        task="cnn@cifar-10",
        local_steps=10,
        label_alpha=0.1,
    ),
    _cell(
        "shakespeare",
        "LSTM@Shakespeare, the ten largest roles, 10 local steps",
        100,
        4,
        (0.20, 0.25, 0.30),
        _variants((0.0005, 0.001, 0.004), (0.001,), 80, {"server_rate": (0.01, 0.03)}),
        {"learning_rate": (1.0, 2.0, 4.0, 8.0)},
        task="token-lstm@shakespeare",
        partition="by-client:clients=10",
        local_steps=10,
    ),
    _cell(
        "shakespeare-roles",
        "LSTM@Shakespeare, 198 roles at 5 %, 10 local steps",
        150,
        5,
        (0.20, 0.25, 0.30),
        (
            *_variants(
                (0.004, 0.016),
                (0.001,),
                80,
                {"server_rate": (0.01, 0.03)},
                rates=(2.0, 4.0, 8.0),  # 4 and 8 ruin thrifty here
            ),
            Variant("thrifty, 600 bytes", {**THRIFTY, "bytes": 600}),  # about four times the default
        ),
        {"learning_rate": (1.0, 2.0, 4.0)},
        task="token-lstm@shakespeare",
        partition="by-client:min_size=5",
        participation=0.05,
        local_steps=10,
    ),
)
"""Every cell. What is tuned is chosen on seeds 1000 and 1001, by the fewest bytes to the last target."""
