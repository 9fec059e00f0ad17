"""The plan as one HTML file with sliders; its script looks frames up in tables computed from real plans."""

from collections.abc import Sequence
from dataclasses import replace
from string import Template
from typing import Any

import numpy as np

from dagc.errors import InvalidInput
from dagc.planning.forecast import Fleet, dense_bytes, forecast
from dagc.planning.verdict import MORE_ROUNDS
from dagc.policies import POLICIES, Plan
from dagc.report.document import document, template
from dagc.wire import payload_size

__all__ = ["plan_page", "tables"]

TITLE = "What a federation would send"
ALIKE = 10
"""How many clients the tables assume; a typical frame hardly depends on it."""
Way = tuple[str, Plan, float]
"""A label, a plan, and its rounds."""


def plan_page(ways: Sequence[Way], fleet: Fleet, price: float = 0.0) -> str:
    """A page that needs no server and no network: sliders, and bytes, time and cost by method.

    Args:
        ways: The label, the plan and the rounds of each method.
        fleet: The initial positions of the sliders. On the page, all clients hold equally much data.
        price: The price of a byte.

    Raises:
        InvalidInput: A plan has a budget over time, or one that depends on who the clients are.
    """
    data = tables(ways, fleet, price)
    body = Template(template("dagc.planning", "page.html")).substitute(title=TITLE, high=MORE_ROUNDS[1])
    return document(TITLE, body, data, "dagc.planning", template("dagc.planning", "page.css"))


def tables(ways: Sequence[Way], fleet: Fleet, price: float = 0.0) -> dict[str, Any]:
    """What the page's script computes with: the stops of the sliders, and frames by model and budget."""
    for _, plan, _ in ways:
        if plan.rate is not None or plan.threshold is not None or plan.caps:
            raise InvalidInput(
                f"{plan.method} has a rate, a threshold or caps, for which the page has no slider: leave it out of "
                "the page, or give a ratio or bytes"
            )
    sizes = _stops(3, 8, fleet.parameters)
    given = {name: [getattr(plan, name) for _, plan, _ in ways if getattr(plan, name)] for name in ("ratio", "bytes")}
    budgets: dict[str, list[Any]] = {"ratio": _stops(-5, -1, *given["ratio"]), "bytes": _stops(1, 4, *given["bytes"])}
    usual = any(_kind(plan) == "bytes" and plan.bytes is None for _, plan, _ in ways)
    budgets["bytes"] = [None] * usual + budgets["bytes"]
    rounds = ways[0][2]
    counts = [np.array([stop for stop in _stops(0, 8) if stop < size] + [size]) for size in sizes]
    return {
        "more": MORE_ROUNDS,
        "sizes": sizes,
        "dense": [dense_bytes(size) for size in sizes],
        "entries": [each.tolist() for each in counts],
        "lossless": {
            indices or "plain": [_lossless(size, each, indices) for size, each in zip(sizes, counts, strict=True)]
            for indices in sorted({plan.indices for _, plan, _ in ways if plan.lossless}, key=str)
        },
        "methods": [_method(label, plan, own / rounds, sizes, budgets) for label, plan, own in ways],
        "sliders": _sliders(ways, fleet, price, sizes, budgets, round(rounds)),
    }


def _sliders(
    ways: Sequence[Way], fleet: Fleet, price: float, sizes: list[int], budgets: dict[str, list[Any]], rounds: int
) -> list[dict[str, Any]]:
    """The sliders, each with its stops and its initial position."""
    first: dict[str, Any] = {}
    whose: dict[str, list[str]] = {"bytes": [], "ratio": []}
    for _, plan, _ in ways:
        kind = _kind(plan)
        if kind is not None:
            first.setdefault(kind, getattr(plan, kind))
            whose[kind] += [plan.method] * (plan.method not in whose[kind])
    found: list[tuple[str, str, list[Any], Any]] = [("parameters", "Parameters of the model", sizes, fleet.parameters)]
    found += [("clients", "Clients", _stops(0, 4, len(fleet.examples)), len(fleet.examples))]
    found += [("participation", "Fraction of them in a round", _stops(-3, 0, fleet.participation), fleet.participation)]
    found += [("up", "Uplink of each", _stops(3, 9, fleet.up), fleet.up)]
    found += [("down", "Downlink of each", _stops(3, 9, fleet.down), fleet.down)]
    if "bytes" in first:
        found.append(
            ("bytes", f"Bytes per client and round ({', '.join(whose['bytes'])})", budgets["bytes"], first["bytes"])
        )
    if "ratio" in first:
        found.append(
            ("ratio", f"Fraction of the entries ({', '.join(whose['ratio'])})", budgets["ratio"], first["ratio"])
        )
    found += [("rounds", f"Rounds of {ways[0][0]}", _stops(1, 5, rounds), rounds)]
    compute = fleet.compute_seconds
    found += [("compute", "Compute time per round", [0.0, *_stops(-1, 3, *[compute] * (compute > 0))], compute)]
    a_gb = float(f"{price * 1e9:.12g}")
    found += [("price", "Price per GB", [0.0, *_stops(-2, 3, *[a_gb] * (a_gb > 0))], a_gb)]
    return [{"id": name, "label": words, "stops": stops, "at": stops.index(at)} for name, words, stops, at in found]


def _method(label: str, plan: Plan, factor: float, sizes: list[int], budgets: dict[str, list[Any]]) -> dict[str, Any]:
    kind = _kind(plan)
    plans = [plan] if kind is None else [replace(plan, **{kind: budget}) for budget in budgets[kind]]
    return {
        "label": label,
        "budget": kind,
        "rounds": factor,
        "drawn": plan.first_model == "drawn",
        "lossless": plan.indices or "plain" if plan.lossless else None,
        "least": plan.down_share(0.0),
        "cells": [[_cell(each, size) for each in plans] for size in sizes],
    }


def _kind(plan: Plan) -> str | None:
    """Which slider the budget is on."""
    if not POLICIES[plan.method].budgets:
        return None
    return "ratio" if plan.ratio is not None else "bytes"


def _cell(plan: Plan, size: int) -> list[float] | None:
    """Per client and round: bytes up, the largest upload, entries, bytes down (0 if lossless); None if impossible."""
    fleet = Fleet(size, {str(number): 1.0 for number in range(ALIKE)})
    try:
        found = forecast(plan, fleet, 2 if plan.ratio is None or not plan.overhead else 8)
    except InvalidInput:  # a model too large for the frames, or a budget too large for the model
        return None
    down = found.plan.downward()
    visits = ALIKE * found.rounds
    up = found.bytes_up / visits if found.plan.bytes is None else min(found.plan.bytes, dense_bytes(size))
    back = 0.0
    if down is not None:  # in the long run, all bytes in the account are spent
        later = (found.changes - found.bytes_up) / (visits - ALIKE)  # before the first round there is nothing new
        back = later if down.bytes is None else min(down.bytes, dense_bytes(size))
    return [float(f"{number:.6g}") for number in (up, found.largest_upload, found.entries, back)]


def _lossless(size: int, counts: Any, indices: str | None) -> list[int]:
    frames = payload_size(size, counts, indices=indices)
    return [int(count) for count in np.minimum(frames, dense_bytes(size))]


def _stops(low: int, high: int, *own: float) -> list[Any]:
    """1, 2, 5, 10, … from one power of ten to another, and some given values."""
    found = {float(f"{digit}e{power}") for power in range(low, high) for digit in (1, 2, 5)} | {float(f"1e{high}")}
    return [int(stop) if stop == int(stop) else stop for stop in sorted(found | set(own))]
