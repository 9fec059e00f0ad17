"""`dagc plan`: what a federation would send and how long it would take, before anything is trained."""

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import dagc
from dagc import theory
from dagc.allocation import ALLOCATORS
from dagc.cli.parse import client_sizes, quantity
from dagc.errors import InvalidInput, unknown

__all__ = ["plan"]

METHODS = ("dagc-r", "power", "uniform")
WORTH = 0.9
"""The residuals' factor, relative to uniform, below which an allocation by data is worth it."""


def plan(
    sizes: Annotated[str, typer.Option(help="Examples per client: 5000,3000,200, or a CSV file with a column 'size'.")],
    parameters: Annotated[str, typer.Option(help="Entries in the model, e.g. 11.2M.")] = "1M",
    uplink: Annotated[str, typer.Option(help="Of each client, e.g. 8.4Mb/s.")] = "8.4Mb/s",
    ratio: Annotated[float, typer.Option(help="The mean part of entries sent.")] = 0.001,
    method: Annotated[str, typer.Option(help="The method whose clients are listed.")] = "dagc-r",
    values: Annotated[str, typer.Option(help=f"Value codec: {', '.join(dagc.VALUE_CODECS)}.")] = "fp32",
    seconds: Annotated[float, typer.Option(help="Seconds per round besides the upload, for the bytes per day.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Before training: who sends how much, bytes and seconds per round and per day, by each method; is it worth it?

    Example: dagc plan --sizes 5000,3000,200,10 --parameters 11.2M --uplink 8.4Mb/s --ratio 0.001
    """
    names, weights = client_sizes(sizes)
    size, rate = round(quantity(parameters, "--parameters")), quantity(uplink, "--uplink")
    allocator = ALLOCATORS.get(method)
    for option, text, right in (
        ("--parameters", parameters, size >= 1),
        ("--uplink", uplink, rate > 0),
        ("--seconds", seconds, seconds >= 0),
    ):
        if not right:
            raise InvalidInput(f"{option} is {text}: it must be {'0 or more' if option == '--seconds' else 'above 0'}")
    if allocator is None or allocator.ratios is None:
        known = [name for name, each in ALLOCATORS.items() if each.ratios is not None]
        raise unknown("method that can be planned", method, known)
    costs = {
        name: _cost(weights, ratio, name, size, values, rate, seconds) for name in dict.fromkeys((method, *METHODS))
    }
    dense = np.where(weights > 0, 4 * size, 0)  # fp32 without indices; a header of twenty bytes does not matter
    costs["none"] = _totals(dense, np.where(weights > 0, size, 0), rate, seconds)
    factor = {
        name: theory.residual_factor(weights, dagc.allocate(weights, ratio=ratio, method=name))
        / theory.residual_factor(weights, dagc.allocate(weights, ratio=ratio, method="uniform"))
        for name in (method, *METHODS)
    }
    if as_json:
        found = {"clients": _rows(names, weights, costs[method]), "methods": {n: _sums(c) for n, c in costs.items()}}
        print(json.dumps({**found, "residual_factor": factor, "worth_it": factor[method] < WORTH}))
        return
    _print(names, weights, costs, factor, method, size, rate)


def _cost(
    weights: np.ndarray[Any, Any], ratio: float, method: str, size: int, values: str, rate: float, seconds: float
) -> dict[str, Any]:
    counts = dagc.entries(dagc.allocate(weights, ratio=ratio, method=method), size)
    sent = np.where(counts > 0, dagc.payload_size(size, counts, values), 0)
    return _totals(sent, counts, rate, seconds)


def _totals(sent: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], rate: float, seconds: float) -> dict[str, Any]:
    slowest = float(sent.max()) * 8 / rate
    return {"counts": counts, "sent": sent, "seconds": slowest, "rounds_a_day": 86_400 / (slowest + seconds)}


def _sums(cost: dict[str, Any]) -> dict[str, float]:
    """A method's figures for a round and for a day of rounds one after the other."""
    total = int(cost["sent"].sum())
    day = cost["rounds_a_day"]
    return {"bytes_a_round": total, "seconds_a_round": cost["seconds"], "rounds_a_day": day, "bytes_a_day": total * day}


def _rows(names: list[str], weights: np.ndarray[Any, Any], cost: dict[str, Any]) -> list[dict[str, Any]]:
    shares = weights / weights.sum()
    return [
        {"client": name, "size": float(w), "share": float(s), "entries": int(k), "bytes": int(b)}
        for name, w, s, k, b in zip(names, weights, shares, cost["counts"], cost["sent"], strict=True)
    ]


def _print(
    names: list[str],
    weights: np.ndarray[Any, Any],
    costs: dict[str, dict[str, Any]],
    factor: dict[str, float],
    method: str,
    size: int,
    rate: float,
) -> None:
    console = Console(highlight=False, markup=False)
    table = Table(title=f"{method}, {size:,} parameters: at most, per round", title_justify="left")
    for column in ("client", "examples", "share", "entries", "bytes", "seconds"):
        table.add_column(column, justify="right")
    rows = _rows(names, weights, costs[method])
    shown = rows if len(rows) <= 24 else [*rows[:12], *rows[-12:]]
    for row in shown:
        if len(shown) < len(rows) and row is rows[-12]:
            table.add_row("…", f"{len(rows) - 24:,} more", "", "", "", "")
        took = row["bytes"] * 8 / rate
        table.add_row(
            row["client"],
            f"{row['size']:,.10g}",
            f"{row['share']:.2%}",
            f"{row['entries']:,}",
            f"{row['bytes']:,}",
            f"{took:.3g}",
        )
    console.print(table)
    table = Table(title="what each method would cost, rounds one right after the other", title_justify="left")
    for column in ("method", "bytes a round", "seconds a round", "rounds a day", "GB a day"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, cost in costs.items():
        sums = _sums(cost)
        figures = [f"{sums['bytes_a_round']:,}", f"{sums['seconds_a_round']:.3g}", f"{sums['rounds_a_day']:,.0f}"]
        table.add_row(name, *figures, f"{sums['bytes_a_day'] / 1e9:,.2f}")
    console.print(table)
    skew = weights.max() / weights[weights > 0].min()
    if factor[method] < WORTH:
        saved = f"{method} leaves {1 - factor[method]:.0%} less behind than uniform at the same budget"
        verdict = f"worth it: sizes differ {skew:,.0f}:1, and {saved} (Σ p²/δ², see docs/theory.md)"
    else:
        verdict = (
            f"hardly worth it: sizes differ only {skew:,.1f}:1, uniform does as well; the wire still saves its bytes"
        )
    slower = costs[method]["seconds"] / costs["uniform"]["seconds"]
    if slower > 1.1:
        verdict += f"; a round waits for its largest sender, {slower:.1f} times as long as with uniform"
    console.print(verdict, soft_wrap=True)
