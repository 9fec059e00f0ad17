"""Both ways: what a budget for the downlink is worth. The source of `docs/studies/parts.md`."""

from typing import Any

from research.cells import THRIFTY, Cell, Variant

__all__ = ["BOTH_WAYS"]

_WIRE: dict[str, Any] = {"values": "sign", "overhead": 0.125}


def _variants(
    bytes: int,
    rates: tuple[float, float, float, float],
    down: int | str = "same",
    coded: int | None = None,
    **more: Any,
) -> tuple[Variant, ...]:
    """The same uplink with and without a budget for the downlink, uniform Top-k both ways, and no compression.

    Args:
        bytes: Per client and round, up.
        rates: The learning rate of each, the best of a grid on seeds 10 and 11.
        down: The downlink's budget.
        coded: Bytes per client and round with coded frames; if given, those and `thrifty` are compared, too.
        more: Further settings that they share.
    """
    ours, top_k, lossless, dense = rates
    up = {"bytes": bytes, **_WIRE, **more}
    fewer = {**up, "bytes": coded, "frames": "coded", "learning_rate": ours}
    newer = (
        Variant("thrifty", {**fewer, **THRIFTY, "step_ahead": 0.5, "down": down}),
        Variant("DAGC-R, both ways, coded", {**fewer, "method": "dagc-r", "down": down}),
    )
    return (
        *(newer if coded else ()),
        Variant("DAGC-R, both ways", {"method": "dagc-r", **up, "down": down, "learning_rate": ours}),
        Variant("Top-k, both ways", {"method": "top-k", **up, "down": down, "learning_rate": top_k}),
        Variant("DAGC-R, lossless downlink", {"method": "dagc-r", **up, "learning_rate": lossless}),
        Variant("no compression", {"method": "none", **more, "learning_rate": dense}),
    )


def _cell(
    name: str,
    title: str,
    rounds: int,
    variants: tuple[Variant, ...],
    targets: tuple[float, ...],
    every: int,
    **fields: Any,
) -> Cell:
    shared = {"task": "logistic@fashion-mnist", "rounds": rounds, "first_model": "drawn", **fields}
    notes = ("the first model is drawn from the seed by every client, so nobody downloads it",)
    return Cell(name, title, shared, variants, targets, rounds // every, "", notes)


def _optimizers() -> tuple[Cell, ...]:
    """Adam and momentum change every entry of the server's model."""
    ways = {"adam": ("Adam", {}, 0.01), "momentum": ("SGD", {"momentum": 0.9}, 0.02)}
    return tuple(
        _cell(
            f"optimizer/{name}",
            f"Logistic@FMNIST, ten clients, one local step, 30 bytes per client and round, the server with {name}",
            400,
            tuple(
                Variant(label, {"method": "dagc-r", "bytes": 30, **_WIRE, "learning_rate": rate, **how})
                for label, how in (("both ways", {"down": "same"}), ("lossless downlink", {}))
            ),
            (0.70,),
            10,
            optimizer=kind,
            optimizer_options=options,
        )
        for name, (kind, options, rate) in ways.items()
    )


BOTH_WAYS = (
    _cell(
        "logistic/1",
        "Logistic@FMNIST, SR 100, ten clients, one local step, 30 bytes per client and round",
        800,
        _variants(30, (0.2, 0.2, 0.2, 0.5), coded=20),
        (0.75, 0.78, 0.80),
        5,
    ),
    _cell(
        "logistic/20",
        "Logistic@FMNIST, SR 100, ten clients, 20 local steps, 64 bytes per client and round",
        200,
        _variants(64, (0.3, 0.3, 0.3, 0.2), coded=45, local_steps=20),
        (0.78, 0.80, 0.82),
        2,
    ),
    _cell(
        "many/50",
        "Logistic@FMNIST, SR 100, 50 clients at 20 %, 20 local steps, 64 bytes per client and round",
        300,
        _variants(64, (0.2, 0.2, 0.2, 0.2), local_steps=20),
        (0.75, 0.78),
        3,
        clients=50,
        participation=0.2,
    ),
    _cell(
        "many/500",
        "Logistic@FMNIST, SR 100, 500 clients at 2 %, 20 local steps, 200 bytes up and 600 down per client and round",
        300,
        _variants(200, (0.1, 0.1, 0.2, 0.2), down=600, local_steps=20),
        (0.75, 0.78),
        3,
        clients=500,
        participation=0.02,
    ),
    *_optimizers(),
)
"""Every cell. The rates are the best of a grid on other seeds."""
