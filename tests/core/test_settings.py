"""Settings: each accepts what it says, in any form of number or text, and refuses everything else with words."""

import json
import math
import pickle
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagc import InvalidInput
from dagc.policies import ClientPlan, Plan
from dagc.settings import Setting, Settings, setting
from dagc.training import Config

SCHEMA = Config.schema()
NUMBERS = [name for name, each in SCHEMA.items() if each.kind == "number"]
INTEGERS = [name for name, each in SCHEMA.items() if each.kind == "integer"]
MAPPINGS = [name for name, each in SCHEMA.items() if each.kind in ("numbers", "options")]
SWITCHES = [name for name, each in SCHEMA.items() if each.kind == "switch"]
TEXTS = [name for name, each in SCHEMA.items() if each.kind == "text"]


def accepted(name, value):
    """The value as the setting holds it; None if it is refused, and then the words are checked."""
    try:
        return SCHEMA[name].check(name, value)
    except InvalidInput as error:
        words = str(error)
    assert (SCHEMA[name].noun or name) in words
    assert len(words) < 1000
    return None


def inside(each, number):
    """Whether a number is within the limits, written down once more."""
    low = (each.above is None or number > each.above) and (each.least is None or number >= each.least)
    high = (each.below is None or number < each.below) and (each.most is None or number <= each.most)
    return low and high and (each.infinite or math.isfinite(number))


@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
@given(data=st.data())
def test_a_number_is_accepted_exactly_within_its_limits_in_every_form(name, data):
    each = SCHEMA[name]
    limits = [float(bound) for bound in (each.above, each.least, each.below, each.most) if bound is not None]
    near = st.sampled_from(
        [0.0, 1.0, *limits, *(math.nextafter(bound, side) for bound in limits for side in (-9e9, 9e9))]
    )
    integers = st.integers(-(1 << 65), 1 << 65)
    number = data.draw(integers if each.kind == "integer" else st.floats(allow_nan=False) | near)
    right = inside(each, number)
    forms = [number, str(number), repr(number), f"  {number} " if each.kind == "number" else str(number)]
    if each.kind == "integer" and -(1 << 63) <= number < 1 << 63:
        forms.append(np.int64(number))
    if each.kind == "number":
        forms += [np.float64(number), np.array(number)[()]]
        forms += [Fraction(number)] if math.isfinite(number) else []
    for form in forms:
        value = accepted(name, form)
        assert (value is not None) == right, form
        if right:
            assert value == number, form
            assert type(value) in (int, float), "Python's own, ready for JSON and TOML"
            assert accepted(name, value) == value
            assert accepted(name, str(value)) == value


@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
def test_what_is_no_number_is_refused(name):
    wrong = [
        float("nan"), np.float32("nan"), "nan", "-inf", float("-inf"), "", " ", "%", "kB", "0x10", "1e", "--1", "1 2",
        True, False, np.True_, None, [], [1], (1,), {}, {"a": 1}, b"1", 1j, object(), np.zeros(2), np.zeros((2, 2)),
        np.array(["a"]), torch.zeros(2), torch.zeros(1), 10**5000, -(10**5000), "9" * 5000, "x" * 10**6, "٣" * 5000,
        Fraction(10**400), Ellipsis, print,
    ]  # fmt: skip
    for value in wrong:
        assert accepted(name, value) is None, repr(value)[:50]
    if not SCHEMA[name].infinite:
        for value in (float("inf"), "inf", "1e400", np.float64("inf")):
            assert accepted(name, value) is None


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_has_no_fraction(name):
    for value in (1.5, "1.5", "50%", np.float64(2.5), Fraction(3, 2)):
        assert accepted(name, value) is None
    assert accepted(name, 5.0) == accepted(name, "5") == accepted(name, np.float32(5)) == accepted(name, "5e0") == 5
    assert type(accepted(name, 5.0)) is int


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_text_is_refused(name):
    for value in (3, 2.5, True, [], ["a"], {}, b"fp32", np.zeros(2), torch.zeros(2), 10**5000, object()):
        assert accepted(name, value) is None, repr(value)[:50]
    each = SCHEMA[name]
    if each.words or each.registry is not None:
        for value in ("", "no-such-name", "x" * 10**6):
            assert accepted(name, value) is None
        for value in (*each.words, *(each.registry or tuple)()):
            assert accepted(name, each.from_text(value)) == value


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false(name):
    for value in (0, 1, "yes", "true", None, [], np.True_, np.zeros(2)):
        assert accepted(name, value) is None
    each = SCHEMA[name]
    assert [each.check(name, each.from_text(text)) for text in ("true", "False", "TRUE")] == [True, False, True]


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_mapping_is_from_names_to_finite_numbers(name):
    for value in (1, "x", [], [("a", 1)], {1: 1}, {"a": "1"}, {"a": None}, {"a": np.zeros(2)}, {"a": float("nan")},
                  {"a": float("inf")}, {"a": 10**400}, {"a": {}}, {"a": [float("nan")]}, {"a": 1j}):  # fmt: skip
        assert accepted(name, value) is None, value
    given_numbers = {"a": np.float32(0.5), "b": np.int64(3), "c": 2.0}
    value = accepted(name, given_numbers)
    assert value == {"a": 0.5, "b": 3, "c": 2}
    assert [type(number) for number in value.values()] == [float, int, int]
    given_numbers["a"] = 7
    assert value["a"] == 0.5, "a copy"
    if SCHEMA[name].kind == "options":
        value = accepted(name, {"betas": (np.float64(0.5), 0.9), "nesterov": True, "deep": [[1.0]]})
        assert json.dumps(value) == '{"betas": [0.5, 0.9], "nesterov": true, "deep": [[1]]}'
    else:
        assert accepted(name, {"a": True}) is None


@given(st.floats(1e-6, 100, allow_subnormal=False))
def test_a_percentage_is_a_hundredth_of_its_number(percent):
    each = Setting("number", "")
    for text in (f"{percent}%", f"{percent} %"):
        assert each.check("it", text) == pytest.approx(percent / 100, rel=1e-12)


@pytest.mark.parametrize(("text", "value"), [("16 kB", 16_000), ("16kB", 16_000), ("1.5 MB", 1_500_000), ("2GB", 2e9)])
def test_bytes_may_have_a_unit(text, value):
    for name in ("bytes", "down"):
        assert accepted(name, text) == value
        assert accepted(name, "64 B") == 64
        for wrong in ("16 kb", "16 KB", "kB", "1 k", "-1 kB", "1 kB kB", "1e300 GB", "nan kB"):
            assert accepted(name, wrong) is None
    assert accepted("learning_rate", text) is None, "only bytes are"


def test_a_wrong_unit_is_answered_with_a_right_one():
    with pytest.raises(InvalidInput, match=r"bytes is .16 KB.: .*, or bytes with a unit, e\.g\. 16 kB"):
        Config(bytes="16 KB")
    with pytest.raises(InvalidInput, match=r"ratio is '16 kB': it must be a number above 0 and at most 1$"):
        Config(ratio="16 kB")


def test_an_integer_written_as_text_keeps_all_its_digits():
    assert accepted("seed", str((1 << 63) - 1)) == (1 << 63) - 1
    assert accepted("seed", str((1 << 53) + 1)) == (1 << 53) + 1
    assert accepted("seed", str(1 << 63)) is None


def test_a_class_lists_its_settings_before_those_it_inherits():
    names = list(SCHEMA)
    assert names.index("task") < names.index("method") < names.index("values")
    assert list(Plan.schema())[-len(ClientPlan.schema()) :] == list(ClientPlan.schema())
    assert all(each.help for each in SCHEMA.values())
    for name, each in SCHEMA.items():
        default = Config.default(name)
        assert default is None or each.check(name, default) == default, name


PLAN = {"method": "power", "bytes": 64.0, "caps": {"a": np.float32(0.5)}, "exponent": 0.5, "seed": np.int64(3)}


def test_settings_come_back_from_json_pickle_and_copies():
    plan = Plan(**PLAN)
    assert Plan(**json.loads(json.dumps(plan.as_dict()))) == plan
    assert Plan(**json.loads(json.dumps(plan.changed()))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.explicit() == {"method": "power", "bytes": 64, "caps": {"a": 0.5}, "exponent": 0.5, "seed": 3}
    other = plan.replaced(bytes=32, overhead=0.5)
    assert (other.bytes, other.overhead, other.seed, plan.bytes) == (32, 0.5, 3, 64)
    assert "overhead" in other.explicit()
    assert repr(Plan(**PLAN)) == repr(plan)
    plan.as_dict()["caps"]["a"] = 1
    assert plan.caps == {"a": 0.5}
    with pytest.raises(AttributeError):
        plan.bytes = 3


def test_none_stands_for_the_default():
    assert Plan(ratio=0.1, values=None, frames=None, caps=None, seed=None) == Plan(ratio=0.1)
    assert "values" not in Plan(ratio=0.1, values=None).explicit()


def test_a_class_of_settings_of_ones_own():
    @dataclass(frozen=True, init=False)
    class Brew(Settings):
        grams: float = setting(60.0, "coffee per liter", above=0, most=100)
        pour: str = setting("slow", "how", "text", words=("slow", "fast"))
        spices: dict = setting({}, "grams of each", "numbers")  # noqa: RUF009

    brew = Brew(grams="80%", pour="fast")
    assert (brew.grams, brew.changed()) == (0.8, {"grams": 0.8, "pour": "fast"})
    for wrong, words in (
        ({"gramms": 5}, "there is no setting 'gramms': did you mean 'grams'?"),
        ({"grams": 0}, "grams is 0: it must be a number above 0 and at most 100"),
        ({"pour": "fats"}, "pour is 'fats': did you mean 'fast'? It must be slow or fast"),
        ({"spices": {"salt": "much"}}, "spices is {'salt': 'much'}: it must map names to finite numbers"),
    ):
        with pytest.raises(InvalidInput) as refused:
            Brew(**wrong)
        assert words in str(refused.value)
