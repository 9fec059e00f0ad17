"""What a plan may hold: every setting is checked here, once, with the same words in every engine."""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING

from dagc.errors import InvalidInput, shown, unknown
from dagc.feedback import SMALLEST_CLIP
from dagc.policies.rate import MOST_BYTES, make_rate
from dagc.wire import VALUE_CODECS

if TYPE_CHECKING:
    from dagc.policies.plan import Plan

__all__ = ["FIRST_MODEL", "FRAMES", "check"]

FRAMES = ("plain", "compact", "coded", "auto", "raw")
FIRST_MODEL = ("sent", "drawn")
EXAMPLES = {"ratio": "ratio 0.001", "threshold": "threshold 0.05"}


def check(plan: "Plan") -> None:
    """Refuse a plan that cannot work; the message names the setting and its value."""
    _check_numbers(plan)
    _check_names(plan)
    _check_budget(plan)
    _check_method(plan)


def _check_numbers(plan: "Plan") -> None:
    limits: dict[str, tuple[float, float, str]] = {
        "ratio": (0.0, 1.0, "above 0 and at most 1"),
        "threshold": (0.0, math.inf, "above 0 and finite"),
        "bytes": (0.0, MOST_BYTES, "above 0 and at most 2^48"),
        "clip": (math.nextafter(SMALLEST_CLIP, 0.0), math.inf, f"at least {SMALLEST_CLIP:.3g} and finite"),
        "norm_bound": (1.0, math.inf, "above 1 and finite"),
        "most_examples": (0.0, 1 << 53, "above 0 and at most 2^53"),
    }
    for name, (low, high, words) in limits.items():
        value = getattr(plan, name)
        if value is not None and not (_is_number(value) and low < value <= high and value < math.inf):
            raise InvalidInput(f"{name} is {_shown(value)}: it must be a number {words}")
    if plan.overhead is not None and not (_is_number(plan.overhead) and 0 <= plan.overhead <= 1):
        raise InvalidInput(f"overhead is {_shown(plan.overhead)}: it must be a number from 0 (nobody waits) to 1")
    if plan.exponent is not None and not (_is_number(plan.exponent) and 0 <= plan.exponent <= 4):
        raise InvalidInput(f"exponent is {_shown(plan.exponent)}: it must be a number from 0 (uniform) to 4")
    if not _is_number(plan.step_ahead) or not 0 <= plan.step_ahead <= 1:
        raise InvalidInput(f"step_ahead is {_shown(plan.step_ahead)}: it must be a number from 0 (off) to 1")
    if not isinstance(plan.seed, Integral) or isinstance(plan.seed, bool) or not 0 <= plan.seed < 1 << 63:
        raise InvalidInput(f"seed is {shown(plan.seed)}: it must be an integer from 0 to 2^63 - 1")
    if plan.rate is not None:
        make_rate(plan.rate)
    for name in ("caps", "options"):
        given = getattr(plan, name)
        if not isinstance(given, Mapping) or not all(
            isinstance(key, str) and _is_number(given[key]) and abs(given[key]) < math.inf for key in given
        ):
            raise InvalidInput(f"{name} is {shown(given)}: it must map names to finite numbers")
    for name, cap in plan.caps.items():
        if not 0 < cap <= 1:
            raise InvalidInput(f"caps: the cap of {name!r} is {cap:g}: it must be above 0 and at most 1")


def _check_names(plan: "Plan") -> None:
    if plan.values not in (*VALUE_CODECS, "auto"):
        raise unknown("value codec", plan.values, (*VALUE_CODECS, "auto"))
    if plan.frames not in FRAMES:
        raise unknown("kind of frames", plan.frames, FRAMES)
    if plan.first_model not in FIRST_MODEL:
        raise unknown("way to get the first_model", plan.first_model, FIRST_MODEL)
    if not isinstance(plan.per_tensor, bool):
        raise InvalidInput(f"per_tensor is {shown(plan.per_tensor)}: it must be true or false")


def _check_budget(plan: "Plan") -> None:
    takes = plan.kind.budgets
    given = plan.given
    wrong = [name for name in given if name not in takes]
    if wrong and not takes:
        raise InvalidInput(f"method {plan.method!r} takes no budget, but {_words(wrong)} is given: leave it out")
    if wrong:
        raise InvalidInput(f"method {plan.method!r} takes no {_words(wrong)}: give its budget as {_words(takes, 'or')}")
    if takes and not given and "bytes" not in takes:
        raise InvalidInput(
            f"method {plan.method!r} needs a budget: give {_words(takes, 'or')}, e.g. {EXAMPLES[takes[0]]}"
        )
    if plan.down not in (None, "lossless", "same"):
        try:
            right = not isinstance(plan.down, bool) and 0 < float(plan.down) <= MOST_BYTES
        except (TypeError, ValueError, OverflowError):
            right = False
        if not right:
            raise InvalidInput(f"down is {shown(plan.down)}: it must be lossless, same, or a number of bytes above 0")
    if plan.down == "same" and not plan.in_bytes and plan.ratio is None:
        raise InvalidInput("down is 'same', but clients have no budget in entries or bytes: give down in bytes")
    if given == ["bytes", "rate"] and plan.per_hour:
        return
    if len(given) > 1:
        raise InvalidInput(f"give one budget, not {_words(given)} (a rate per hour goes with bytes)")
    if plan.per_hour:
        raise InvalidInput(f"rate is {plan.rate!r}: a rate per hour also needs bytes, for a typical round")


def _check_method(plan: "Plan") -> None:
    kind = plan.kind
    for name in plan.options:
        if name not in kind.options:
            if not kind.options:
                raise InvalidInput(f"method {plan.method!r} takes no options, but {name!r} is given: leave it out")
            raise unknown(f"option of {plan.method}", name, kind.options)
    if plan.exponent is not None and plan.method != "power":
        raise InvalidInput(f"exponent belongs to the method 'power', not to {plan.method!r}: leave it out")
    if plan.overhead and (not kind.waits or plan.threshold is not None):
        raise InvalidInput(f"clients of method {plan.method!r} cannot wait: leave overhead out")
    if plan.caps and (plan.threshold is not None or not kind.budgets):
        raise InvalidInput(
            "caps limit how many entries are sent, but a threshold or no compression does not fix that number: "
            "leave caps out, or give the budget as ratio or bytes"
        )


def _is_number(value: object) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer too large for a float
        return False


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _words(names: tuple[str, ...] | list[str], last: str = "and") -> str:
    *some, end = names
    return f"{', '.join(some)} {last} {end}" if some else end
