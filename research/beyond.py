"""Beyond the paper: one budget in bytes for all, spent where it counts; and what the paper left open."""

from dataclasses import replace
from typing import Any

from dagc.policies import METHODS
from dagc.policies.plan import usual_bytes
from research.cells import THRIFTY, Cell, Variant
from research.rivals import RIVALS

__all__ = ["BEYOND"]

_LOGISTIC: dict[str, Any] = {"task": "logistic@fashion-mnist", "learning_rate": 0.1}
_TARGETS = (0.75, 0.78, 0.80)
_WAITING: dict[str, Any] = {"overhead": 0.125}
_SIGNS: dict[str, Any] = {"values": "sign"}
_DENSE = Variant("no compression", {"method": "none"})
_WORDS = {"dagc-r": "DAGC-R", "top-k": "uniform Top-k", "power": "power"}


def _variant(method: str, budget: int, note: str = "", **fields: Any) -> Variant:
    """A method with a budget in bytes per client and round."""
    how = ", waiting" if "overhead" in fields else ""
    return Variant(f"{_WORDS[method]}{how}{note}", {"method": method, "bytes": budget, **fields})


def _larger_budgets() -> tuple[Cell, ...]:
    """With and without waiting at about the bytes of 0.1 and of 1 % of the entries as fp32; and no compression."""
    return tuple(
        Cell(
            f"equal/{ratio}",
            f"Logistic@FMNIST, SR 100, {budget} bytes per client and round, fp32",
            {**_LOGISTIC, "skew_ratio": 100.0, "rounds": rounds},
            (
                _variant("dagc-r", budget, **_WAITING),
                _variant("dagc-r", budget),
                _variant("top-k", budget, **_WAITING),
                _DENSE,
            ),
            _TARGETS,
            60,
        )
        for ratio, budget, rounds in (("0.001", 48, 1_000), ("0.01", 400, 400))
    )


def _fewest_bytes() -> tuple[Cell, ...]:
    """What we recommend, compared with common choices: bytes to an accuracy."""
    variants = (
        _variant("dagc-r", 13, ", 13 bytes", **_SIGNS, **_WAITING),
        _variant("dagc-r", 20, ", 20 bytes", **_SIGNS, **_WAITING),
        _variant("dagc-r", 13, ", 13 bytes", **_SIGNS),
        _variant("top-k", 13, ", 13 bytes", **_SIGNS, **_WAITING),
        Variant("uniform Top-k, int32 + fp32", {"method": "top-k", "ratio": 0.001, "values": "int32+fp32"}),
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
        *codecs,
    )


def _allocations() -> tuple[Cell, ...]:
    """What an allocation is worth with more and less equal clients, and with more and less different labels."""
    splits = {
        "sr100": ("SR 100", {"skew_ratio": 100.0}),
        "sr1000": ("SR 1,000", {"skew_ratio": 1000.0}),
        "alpha0.25": ("SR 100, label α 0.25", {"skew_ratio": 100.0, "label_alpha": 0.25}),
        "alpha5": ("SR 100, label α 5", {"skew_ratio": 100.0, "label_alpha": 5.0}),
    }
    methods = {"DAGC-R": "dagc-r", "uniform Top-k": "top-k", "power": "power"}
    variants = (*(Variant(label, {"method": name, "ratio": 0.001}) for label, name in methods.items()), _DENSE)
    fields = {"task": "logistic@fashion-mnist", "learning_rate": 0.1, "rounds": 1_000}
    return tuple(
        Cell(f"allocation/{name}", f"Logistic@FMNIST, {words}, 0.1 %", {**fields, **split}, variants, (0.75,), 50)
        for name, (words, split) in splits.items()
    )


def _slow_thresholds() -> tuple[Cell, ...]:
    """The paper's largest threshold at a tenth of the rate of Table V, where it lets few entries pass."""
    methods = {"DAGC-A": "dagc-a", "Ht": "hard-threshold"}
    variants = tuple(Variant(label, {"method": name, "threshold": 0.05}) for label, name in methods.items())
    return tuple(
        Cell(
            f"thresholds/sr{skew}",
            f"Logistic@FMNIST, SR {skew:,}, threshold 0.05, learning rate 0.01",
            {"task": "logistic@fashion-mnist", "learning_rate": 0.01, "rounds": 5_000, "skew_ratio": float(skew)},
            variants,
            (0.70, 0.75),
            250,
        )
        for skew in (100, 1000)
    )


def _rival(name: str) -> Cell:
    """A cell of the rivals."""
    return next(cell for cell in RIVALS if cell.name == name)


def _budgets() -> tuple[Cell, ...]:
    """`thrifty` with its own budget and with others, at the rate that was best with its own."""
    found = []
    for name, rate, own, budgets in (("logistic", 1.0, 44, (22, 32, 64, 96)), ("digits", 0.5, 69, (35, 50, 100))):
        variants = [Variant(f"{some} bytes", {**THRIFTY, "bytes": some}) for some in budgets]
        variants.append(Variant(f"{own} bytes, the default", THRIFTY))
        variants.sort(key=lambda variant: int(variant.label.split()[0]))
        cell = _rival(name)
        fields = {**cell.fields, "learning_rate": rate}
        found.append(replace(cell, name=f"budget/{name}", fields=fields, variants=tuple(variants), tune={}))
    return tuple(found)


def _data_aware() -> tuple[Cell, ...]:
    """What allocation by data is worth inside `thrifty`: all of it, and the same with as much for every client."""
    defaults = {name: value for name, value in METHODS["thrifty"].defaults.items() if name != "first_bits"}
    uniform = {"method": "top-k", "bytes": usual_bytes(7850), **defaults}
    variants = Variant("by data", THRIFTY), Variant("the same for all", uniform)
    splits: dict[str, tuple[str, dict[str, Any]]] = {
        "sr100": ("SR 100", {}),
        "sr1000": ("SR 1,000", {"skew_ratio": 1000.0}),
        "alpha0.1": ("SR 100, label α 0.1", {"label_alpha": 0.1}),
    }
    cell = _rival("logistic-20")
    rate = {"learning_rate": 1.0}  # the best one for `thrifty` with SR 100
    return tuple(
        replace(
            cell,
            name=f"data-aware/{name}",
            title=f"Logistic@FMNIST, {words}",
            fields={**cell.fields, **rate, **split},
            variants=variants,
            tune={},
        )
        for name, (words, split) in splits.items()
    )


def _stc_parts() -> tuple[Cell, ...]:
    """What makes the difference between STC and `thrifty`: STC with our coder, and with step-ahead as well."""
    cell = _rival("logistic-20")
    ratios = {"ratio": (0.004, 0.008, 0.016)}
    coded = {"method": "stc", "frames": "coded"}
    variants = (
        Variant("thrifty", {**THRIFTY, "learning_rate": 1.0}),  # this and STC's: as tuned among the rivals
        Variant("STC", {"method": "stc", "ratio": 0.008, "learning_rate": 0.2}),
        Variant("STC, coded frames", coded, tune=ratios),
        Variant("STC, coded frames, step-ahead", {**coded, "step_ahead": 0.5}, tune=ratios),
    )
    tune = {"learning_rate": (0.2, 0.5, 1.0)}
    return (
        replace(cell, name="stc-parts", title="Logistic@FMNIST, parts of thrifty in STC", variants=variants, tune=tune),
    )


def _first_model() -> tuple[Cell, ...]:
    """What the first download changes, if clients cannot draw the first model: settings as tuned among the rivals."""
    found = []
    for name, ours, (ratio, theirs), dense in (
        ("logistic", 1.0, (0.008, 0.5), 1.0),
        ("five-hundred", 0.2, (0.02, 0.2), 0.5),
    ):
        variants = (
            Variant("thrifty", {**THRIFTY, "learning_rate": ours}),
            Variant("STC", {"method": "stc", "ratio": ratio, "learning_rate": theirs}),
            Variant("FedAvg", {"method": "none", "rounds": 60, "learning_rate": dense}),
        )
        cell = _rival(name)
        fields = {**cell.fields, "first_model": "sent"}
        found.append(replace(cell, name=f"first-model/{name}", fields=fields, variants=variants, tune={}, notes=()))
    return tuple(found)


BEYOND = (
    *_fewest_bytes(),
    *_larger_budgets(),
    *_studies(),
    *_allocations(),
    *_slow_thresholds(),
    *_budgets(),
    *_data_aware(),
    *_stc_parts(),
    *_first_model(),
)
"""Every cell."""
