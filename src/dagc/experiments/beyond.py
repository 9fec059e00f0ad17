"""Beyond the paper: one budget in bytes for all, spent where it counts. The source of `docs/studies/beyond.md`."""

from typing import Any

from dagc.experiments.cells import Cell, Variant

__all__ = ["BEYOND"]

_LOGISTIC: dict[str, Any] = {"task": "logistic@fashion-mnist", "learning_rate": 0.1, "frames": "compact"}
_TARGETS = (0.75, 0.78, 0.80)
_WAITING: dict[str, Any] = {"overhead": 0.125}
_SIGNS: dict[str, Any] = {"values": "sign"}
_DENSE = Variant("no compression", {"method": "none"})
_WORDS = {"dagc-r": "DAGC-R", "top-k": "uniform Top-k", "power": "power"}


def _variant(method: str, budget: int, note: str = "", **fields: Any) -> Variant:
    """A method with a budget in bytes per client and round."""
    how = ", waiting" if "overhead" in fields else ""
    return Variant(f"{_WORDS[method]}{how}{note}", {"method": method, "bytes": budget, **fields})


def _against_dagc_r() -> tuple[Cell, ...]:
    """The same bytes, about those of 0.1 and of 1 % of the entries as fp32; and no compression."""
    budgets = {"0.001": (48, 1_000), "0.01": (400, 400)}
    splits = {
        "sr100": {"skew_ratio": 100.0},
        "sr1000": {"skew_ratio": 1000.0},
        "alpha0.25": {"skew_ratio": 100.0, "label_alpha": 0.25},
    }
    words = {"sr100": "SR 100", "sr1000": "SR 1,000", "alpha0.25": "SR 100, labels Dirichlet(0.25)"}
    return tuple(
        Cell(
            f"equal/{split}/{ratio}",
            f"Logistic@FMNIST, {words[split]}, {budget} bytes per client and round, fp32",
            {**_LOGISTIC, **fields, "rounds": rounds},
            (
                _variant("dagc-r", budget, **_WAITING),
                _variant("dagc-r", budget),
                _variant("top-k", budget, **_WAITING),
                _DENSE,
            ),
            _TARGETS,
            60,
        )
        for ratio, (budget, rounds) in budgets.items()
        for split, fields in splits.items()
    )


def _fewest_bytes() -> tuple[Cell, ...]:
    """What we recommend, compared with common choices: bytes to an accuracy."""
    variants = (
        _variant("dagc-r", 13, ", 13 bytes", **_SIGNS, **_WAITING),
        _variant("dagc-r", 20, ", 20 bytes", **_SIGNS, **_WAITING),
        _variant("dagc-r", 13, ", 13 bytes", **_SIGNS),
        _variant("top-k", 13, ", 13 bytes", **_SIGNS, **_WAITING),
        Variant("uniform Top-k, int32 + fp32", {"method": "top-k", "ratio": 0.001, "frames": "raw"}),
        _DENSE,
    )
    fields = {**_LOGISTIC, "skew_ratio": 100.0, "rounds": 1_100}
    return (Cell("fewest", "Logistic@FMNIST, SR 100: bytes to an accuracy", fields, variants, _TARGETS, 120),)


def _studied(name: str, title: str, rounds: int, variants: tuple[Variant, ...]) -> Cell:
    fields = {**_LOGISTIC, "skew_ratio": 100.0, "rounds": rounds}
    return Cell(f"study/{name}", f"Logistic@FMNIST, SR 100, {title}", fields, variants, _TARGETS, 60)


def _studies() -> tuple[Cell, ...]:
    exponents = tuple(
        _variant("power", 13, f", s = {s}", **_SIGNS, **_WAITING, exponent=value)
        for s, value in (("0", 0.0), ("1/3", 1 / 3), ("2/3", 2 / 3), ("1", 1.0), ("4/3", 4 / 3))
    )
    overheads = tuple(
        _variant("dagc-r", 13, f", overhead {part:g}", **_SIGNS, overhead=part) for part in (1.0, 0.25, 0.125, 0.08)
    )
    frames = tuple(
        _variant("dagc-r", 13, f", {kind} frames", **_SIGNS, frames=kind, **waiting)
        for kind in ("compact", "plain")
        for waiting in (_WAITING, {})
    )
    codecs = [
        _studied(
            f"codec/{name}",
            f"value codecs at {budget} bytes per client and round",
            rounds,
            tuple(
                _variant("dagc-r", budget, f", {values}", values=values, **_WAITING)
                for values in ("fp32", "fp16", "int8", "sign")
            ),
        )
        for name, budget, rounds in (("small", 13, 800), ("middle", 64, 600), ("large", 400, 400))
    ]
    return (
        _studied("exponent", "the power s of the weights", 600, exponents),
        _studied("overhead", "the largest fraction of a frame that may be overhead", 600, overheads),
        _studied("frames", "compact and plain frames", 600, frames),
        *codecs,
    )


def _cnn() -> tuple[Cell, ...]:
    """0.1 % of 235,690 entries as fp32 take up to 1,312 bytes per client."""
    return tuple(
        Cell(
            f"cnn/sr{skew}",
            f"CNN@CIFAR-10, SR {skew:,}, 1,312 bytes per client and round, fp32",
            {
                "task": "cnn@cifar-10",
                "learning_rate": 0.05,
                "frames": "compact",
                "skew_ratio": float(skew),
                "rounds": 2_000,
            },
            (_variant("dagc-r", 1312), _variant("top-k", 1312)),
            (0.50, 0.60),
            40,
        )
        for skew in (100, 1000)
    )


BEYOND = (*_against_dagc_r(), *_fewest_bytes(), *_studies(), *_cnn())
"""Every cell."""
