"""Plans for the tests that compare engines: every method, with every kind of frames and everything else it takes."""

import pytest

from dagc.policies import METHODS

__all__ = ["BOUNDED", "CLIPPED", "plans"]

BOUNDED = {"method": "thrifty", "first_bits": 7, "ratio": 0.02, "norm_bound": 1.2, "most_examples": 200}
CLIPPED = {
    "encoded": {"bytes": 100, "clip": 0.05, "first_bits": 7},
    "int8": {"method": "thrifty", "first_bits": 7, "ratio": 0.02, "clip": 0.05, "values": "int8"},
    "coded signs": {
        "method": "thrifty",
        "first_bits": 7,
        "ratio": 0.02,
        "clip": 0.05,
        "values": "sign",
        "frames": "coded",
    },
    "bytes": {
        "method": "thrifty",
        "first_bits": 7,
        "bytes": 30,
        "clip": 0.05,
        "values": "int8",
        "frames": "compact",
        "overhead": 0.25,
    },
}
BUDGETS = {"ratio": {"ratio": 0.02}, "threshold": {"threshold": 0.01}}
FRAMES = {
    "plain": {"values": "fp32"},
    "compact": {"values": "sign", "frames": "compact"},
    "coded": {"values": "sign", "frames": "coded"},
    "coded int8": {"values": "int8", "frames": "coded"},
}
FEW = ("coded int8",)
"""These are tried with every method, but not with everything else it takes."""


def plans(downlink=False):
    """Every method with every kind of frames and everything else it takes; or with a budget for the downlink.

    All of them are tried by the slow tests. The others take turns: one kind of frames with each of the rarer ways.
    """
    for method, kind in METHODS.items():
        budget = BUDGETS[kind.budgets[0]] if kind.budgets else {}
        ways = {"": budget}
        if "ratio" in kind.budgets and not kind.encodes:
            ways["caps"] = {**budget, "caps": {"0": 0.01, "3": 0.05}}
            ways["per tensor"] = {**budget, "per_tensor": True}
        if "bytes" in kind.budgets:
            ways["bytes"] = {"bytes": 25}
        if "rate" in kind.budgets:
            ways["rate"] = {"rate": "500 B/training"}
        if kind.waits:
            ways["waiting"] = {"bytes": 20, "overhead": 0.25}
            ways["waiting, caps"] = {**budget, "overhead": 0.1, "caps": {"0": 0.01}}
        if "interval" in kind.options:
            ways["options"] = {**budget, "options": {"interval": 2, "change": 0.01}}
        if downlink:
            some = {"bytes": 25, "overhead": 0.25} if kind.waits else budget
            ways = {"down": {**some, "down": "same" if kind.waits else 40}, "down bytes": {**budget, "down": 30}}
            if not kind.encodes:
                ways["down per tensor"] = {**budget, "down": 30, "per_tensor": True}
            ways["ahead"] = {**some, "down": 40, "step_ahead": 0.5}
        for turn, (name, settings) in enumerate(ways.items(), start=len(method)):
            wires = {**FRAMES, "its own": {}} if "down" in kind.defaults else FRAMES
            wires = {"its own": {}} if kind.encodes else wires  # the encoder chooses
            usual = [frames for frames in wires if frames not in FEW]
            for frames, wire in wires.items():
                if frames in FEW and name not in ("", "down"):
                    continue
                quick = name in ("", "down") or frames == usual[turn % len(usual)]
                marks = () if quick else (pytest.mark.slow,)
                yield pytest.param({"method": method, **settings, **wire}, id=f"{method} {name} {frames}", marks=marks)
