"""The lines of a comparison: every method gets the settings that it takes, a variant those of its own."""

import pytest

from dagc import InvalidInput
from dagc.comparison import split_methods
from tests.comparison.test_compare import BASE, configs_of


@pytest.mark.parametrize(
    ("methods", "settings", "says"),
    [
        (["dagc-r", "dagc-a"], {"ratio": 0.1}, "'dagc-a' needs a budget: give threshold, e.g. threshold 0.05"),
        (["best"], {"ratio": 0.1}, "'best': choose one of"),
        (["top_k"], {"ratio": 0.1}, "it is called top-k"),
        (["accordion"], {"rate": "3 kB/training"}, "'accordion' needs a budget: give ratio or threshold"),
        (["dagc-r", "none"], {"ratio": 0.1, "bytes": 5}, "give one budget, not ratio and bytes"),
        (["accordion", "none"], {"ratio": 0.1, "overhead": 0.1}, "none of the methods accordion, none takes overhead"),
        (["dagc-a", "none"], {"threshold": 0.1, "caps": {"3": 0.1}}, "takes caps"),
        (["top-k"], {"ratio": 0.1, "exponent": 0.0}, "takes exponent 0.0"),
        (["top-k", "accordion"], {"ratio": 0.1, "options": {"interval": 3, "sped": 1}}, "takes options sped"),
        (["stc", "none"], {"ratio": 0.1, "values": "int8"}, "none of the methods stc, none takes values int8"),
        (["dagc-r", "accordion"], {}, "'accordion' needs a budget: give ratio or threshold"),
        (["top-k", "top-k"], {"ratio": 0.1}, "'top-k' is named twice"),
        (["top-k", "top-k:frames=compact"], {"ratio": 0.1}, "'top-k:frames=compact' is the same as 'top-k'"),
        (["top-k:frame=raw"], {"ratio": 0.1}, "no setting of a variant 'frame': did you mean 'frames'"),
        (["top-k:clients=3"], {"ratio": 0.1}, "no setting of a variant 'clients'"),
        (["top-k:raw"], {"ratio": 0.1}, "'raw' is not key=value: write e.g. top-k:values=int8"),
        (["top-k:caps={3"], {"ratio": 0.1}, "caps is '{3': write JSON"),
        (["none:overhead=0.1"], {}, "clients of method 'none' cannot wait"),
        (["top-k"], {"ratio": 0.1, "clients": [2, 3]}, "no setting with several values 'clients'"),
        (
            ["dagc", "dagc-a", "none"],
            {"threshold": 0.1},
            "'dagc' does not take threshold: leave it out, or .* dagc:ratio=",
        ),
        (["none"], {"ratio": 0.1}, "none of the methods none takes ratio 0.1: leave it out"),
    ],
)
def test_a_comparison_that_cannot_work_is_refused(methods, settings, says):
    with pytest.raises(InvalidInput, match=says):
        configs_of({**BASE, **settings}, methods, [0])


def test_every_method_gets_the_budget_and_the_settings_that_it_takes():
    settings = {"rate": "3 kB/training", "threshold": 0.1, "overhead": 0.125, "down": "same", "caps": {"3": 0.1}}
    settings |= {"exponent": 0.0, "options": {"interval": 3}, "values": "sign"}
    methods = ["dagc-r", "power", "accordion", "dagc-a", "none"]
    fields = ("rate", "threshold", "overhead", "down", "caps", "exponent", "options", "values")
    found = configs_of({**BASE, **settings}, methods, [0])
    assert {config.method: [getattr(config, name) for name in fields] for config in found} == {
        "dagc-r": ["3 kB/training", None, 0.125, "same", {"3": 0.1}, None, {}, "sign"],
        "power": ["3 kB/training", None, 0.125, "same", {"3": 0.1}, 0.0, {}, "sign"],
        "accordion": [None, 0.1, None, None, {}, None, {"interval": 3}, "sign"],
        "dagc-a": [None, 0.1, None, None, {}, None, {}, "sign"],
        "none": [None, None, None, None, {}, None, {}, "fp32"],  # no compression stays what it is
    }
    shared = configs_of({**BASE, "exponent": 1.0}, ["dagc", "power", "thrifty"], [0])
    assert [config.exponent for config in shared] == [1.0, 1.0, None]
    (stc,) = configs_of({**BASE, "ratio": 0.1, "values": "fp32"}, ["stc"], [0])
    assert (stc.values, stc.frames) == ("sign", "compact")  # what a run's config.toml holds anyway changes nothing
    budgets = {"rate": "1 MB/hour", "bytes": 300, "threshold": 0.1}
    hourly = configs_of({**BASE, **budgets}, ["top-k", "accordion", "none"], [0])
    assert [(c.rate, c.bytes, c.threshold) for c in hourly] == [
        ("1 MB/hour", 300, None),
        (None, None, 0.1),
        (None, None, None),
    ]


def test_a_variant_has_settings_of_its_own():
    assert split_methods('dagc-r, top-k:caps={"3": 0.1, "4": 0.2},values=int8,none') == [
        "dagc-r",
        'top-k:caps={"3": 0.1, "4": 0.2},values=int8',
        "none",
    ]
    settings = {**BASE, "ratio": 0.02, "overhead": 0.1, "local_steps": 5, "server_rate": 0.5}
    methods = ["top-k", "top-k:values=int8,learning-rate=0.2", "top-k:bytes=40", "stc:values=int8", "none:values=int8"]
    methods += ["none:local_steps=1,rounds=30", "none:epochs=2", 'accordion:options={"interval": 3, "change": 0.1}']
    found = configs_of(settings, methods, [7])
    fields = ("method", "frames", "learning_rate", "ratio", "bytes", "overhead", "values", "local_steps", "epochs")
    assert [tuple(getattr(config, name) for name in fields) for config in found] == [
        ("top-k", "compact", 0.1, 0.02, None, 0.1, "fp32", 5, None),
        ("top-k", "compact", 0.2, 0.02, None, 0.1, "int8", 5, None),
        ("top-k", "compact", 0.1, None, 40, 0.1, "fp32", 5, None),
        ("stc", "compact", 0.1, 0.02, None, None, "int8", 5, None),
        ("none", "compact", 0.1, None, None, None, "int8", 5, None),
        ("none", "compact", 0.1, None, None, None, "fp32", 1, None),
        ("none", "compact", 0.1, None, None, None, "fp32", 1, 2.0),
        ("accordion", "compact", 0.1, 0.02, None, None, "fp32", 5, None),
    ]
    assert [config.server_rate for config in found] == [*[0.5] * 5, None, 0.5, 0.5]
    assert [config.rounds for config in found] == [*[12] * 5, 30, 12, 12]
    assert found[-1].options == {"interval": 3, "change": 0.1}


def test_several_values_are_a_line_each_for_those_who_take_them():
    settings = {**BASE, "ratio": [0.01, 0.02], "learning_rate": ["0.1", "0.2"]}
    found = configs_of(settings, ["top-k", "none", "stc:ratio=0.1"], [0, 1])
    ways = [(config.method, config.ratio, config.learning_rate) for config in found if config.seed == 0]
    assert ways == [
        ("top-k", 0.01, 0.1),
        ("top-k", 0.01, 0.2),
        ("top-k", 0.02, 0.1),
        ("top-k", 0.02, 0.2),
        ("none", None, 0.1),
        ("none", None, 0.2),
        ("stc", 0.1, 0.1),
        ("stc", 0.1, 0.2),
    ]
    assert len(found) == 16


def test_settings_of_entries_go_to_methods_that_send_entries():
    settings = {"values": "sign", "frames": "coded", "per_tensor": True, "ratio": 0.02}
    dagc, top_k = configs_of({**BASE, **settings}, ["dagc", "top-k"], [0])
    assert [getattr(dagc, name) for name in settings] == [*(dagc.default(name) for name in list(settings)[:3]), 0.02]
    assert [getattr(top_k, name) for name in settings] == list(settings.values())
