"""Beyond the paper: one budget in bytes for all, spent where it counts. What `docs/beyond.md` is made of."""

from typing import Any

from dagc.experiments.cells import Cell, Variant

__all__ = ["BEYOND"]

_LOGISTIC: dict[str, Any] = {"task": "logistic@fashion-mnist", "learning_rate": 0.1, "frames": "compact"}
_TARGETS = (0.75, 0.78, 0.80)
_TURNS: dict[str, Any] = {"method_options": {"turns": 5}}
_WAITING: dict[str, Any] = {"method_options": {"overhead": 0.125}}
_GLOBAL, _DAGC_R = "dagc-global", "dagc-r"
_DENSE = Variant("no compression", {"method": "none"})
_WORDS = {_GLOBAL: "dagc-global", _DAGC_R: "DAGC-R", "top-k": "uniform Top-k"}


def _variant(method: str, rate: str, note: str = "", **fields: Any) -> Variant:
    options = fields.get("method_options", {})
    how = ", in turns" if "turns" in options else ", waiting" if method == _DAGC_R and "overhead" in options else ""
    return Variant(f"{_WORDS[method]}{how}{note}", {"method": method, "budget_rate": rate, **fields})


def _against_dagc_r() -> tuple[Cell, ...]:
    """The same bytes, about those of 0.1 and of 1 % of the entries as fp32, outlines included; and no compression."""
    budgets = {"0.001": ("480/round", 1_000), "0.01": ("4000/round", 400)}
    splits = {
        "sr100": {"skew_ratio": 100.0},
        "sr1000": {"skew_ratio": 1000.0},
        "alpha0.25": {"skew_ratio": 100.0, "label_alpha": 0.25},
    }
    words = {"sr100": "SR 100", "sr1000": "SR 1,000", "alpha0.25": "SR 100, labels Dirichlet(0.25)"}
    return tuple(
        Cell(
            f"equal/{split}/{ratio}",
            f"Logistic@FMNIST, {words[split]}, {rate.replace('/', ' bytes a ')}, fp32",
            {**_LOGISTIC, **fields, "rounds": rounds},
            (_variant(_GLOBAL, rate), _variant(_DAGC_R, rate), _variant(_DAGC_R, rate, **_WAITING), _DENSE),
            _TARGETS,
            60,
        )
        for ratio, (rate, rounds) in budgets.items()
        for split, fields in splits.items()
    )


def _fewest_bytes() -> tuple[Cell, ...]:
    """What a user should take: bytes to an accuracy, against what is usual."""
    small, large = "130/round", "200/round"
    signs = {"values": "sign16"}
    variants = (
        _variant(_GLOBAL, small, ", 130 bytes", **signs),
        _variant(_GLOBAL, large, ", 200 bytes", **signs),
        _variant(_DAGC_R, small, ", 130 bytes", **signs, **_WAITING),
        _variant(_DAGC_R, small, ", 130 bytes", **signs, **_TURNS),
        _variant(_DAGC_R, small, ", 130 bytes", **signs),
        Variant("uniform Top-k, int32 + fp32", {"method": "top-k", "ratio": 0.001}, bytes_per_entry=8),
        _DENSE,
    )
    fields = {**_LOGISTIC, "skew_ratio": 100.0, "rounds": 1_100}
    notes = ("int32 + fp32: counted as 8 bytes for each entry sent, no header; all others: the bytes of our messages",)
    return (
        Cell("fewest", "Logistic@FMNIST, SR 100: bytes to an accuracy", fields, variants, _TARGETS, 120, "", notes),
    )


def _studied(name: str, title: str, rounds: int, variants: tuple[Variant, ...]) -> Cell:
    fields = {**_LOGISTIC, "skew_ratio": 100.0, "rounds": rounds}
    return Cell(f"study/{name}", f"Logistic@FMNIST, SR 100, {title}", fields, variants, _TARGETS, 60)


def _studies() -> tuple[Cell, ...]:
    rate, signs = "130/round", {"values": "sign16"}
    exponents = tuple(
        _variant(_GLOBAL, rate, f", s = {s}", **signs, exponent=value)
        for s, value in (("0", 0.0), ("1/3", 1 / 3), ("2/3", 2 / 3), ("1", 1.0), ("4/3", 4 / 3))
    )
    bins = tuple(_variant(_GLOBAL, rate, f", {b} bins", **signs, method_options={"bins": b}) for b in (1, 2, 4, 8))
    overheads = tuple(
        _variant(method, rate, f", overhead {part:g}", **signs, method_options={"overhead": part})
        for method in (_GLOBAL, _DAGC_R)
        for part in (1.0, 0.25, 0.125, 0.08)
    )
    turns = tuple(_variant(_DAGC_R, rate, f" of {n}", **signs, method_options={"turns": n}) for n in (1, 2, 5, 10))
    schedules = tuple(
        _variant(_DAGC_R, f"78 kB/training^{power:g}", f", t^{power:g}", **signs, **_WAITING)
        for power in (0.5, 0.75, 1.0, 1.5)
    )
    codecs = [
        _studied(
            f"codec/{name}",
            f"value codecs at {rate}",
            rounds,
            tuple(_variant(_DAGC_R, rate, f", {v}", values=v, **_WAITING) for v in ("fp32", "fp16", "int8", "sign16")),
        )
        for name, rate, rounds in (
            ("small", "130/round", 800),
            ("middle", "640/round", 600),
            ("large", "4000/round", 400),
        )
    ]
    return (
        _studied("exponent", "the power s of the weights", 600, exponents),
        _studied("bins", "bins of the histogram to a doubling", 600, bins),
        _studied("overhead", "the largest part of a frame that may be overhead", 600, overheads),
        _studied("turns", "rounds between a client's turns", 600, turns),
        _studied("schedule", "78 kB in 600 rounds, by when", 600, schedules),
        *codecs,
    )


def _cnn() -> tuple[Cell, ...]:
    """0.1 % of 235,690 entries as fp32 are up to 1,312 bytes a client."""
    return tuple(
        Cell(
            f"cnn/sr{skew}",
            f"CNN@CIFAR-10, SR {skew:,}, 13,120 bytes a round, fp32",
            {
                "task": "cnn@cifar-10",
                "learning_rate": 0.05,
                "frames": "compact",
                "skew_ratio": float(skew),
                "rounds": 2_000,
            },
            (_variant(_GLOBAL, "13120/round"), _variant(_DAGC_R, "13120/round"), _variant("top-k", "13120/round")),
            (0.50, 0.60),
            40,
        )
        for skew in (100, 1000)
    )


BEYOND = (*_against_dagc_r(), *_fewest_bytes(), *_studies(), *_cnn())
"""Every cell."""
