"""`dagc allocate`: who may send how much, before anything is trained."""

import json
import warnings
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import dagc
from dagc.cli.options import AsJson, from_json, number
from dagc.cli.parse import client_sizes, quantity
from dagc.cli.terminal import say
from dagc.errors import BudgetWarning, InvalidInput, unknown

__all__ = ["allocate"]

SAME = {"top-k": "uniform", "random-k": "uniform", "hard-threshold": "uniform"}
"""Training methods that give every client the same, and their allocators."""


def allocate(
    sizes: Annotated[str, typer.Option(help="Examples per client: 5000,3000,200, or a CSV file with a column 'size'.")],
    ratio: Annotated[str | None, typer.Option(help="Budget: the mean ratio of entries sent, e.g. 0.1%.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Budget: the mean threshold (methods dagc-a, power).")] = None,
    bytes: Annotated[
        str | None,
        typer.Option(
            help="Budget: bytes per client and round, on average. (dagc.allocate in Python takes the sum over clients.)"
        ),
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join([*dagc.ALLOCATORS, *SAME])}.")] = "dagc-r",
    parameters: Annotated[str, typer.Option(help="Entries in the model, e.g. 11.2M.")] = "1M",
    values: Annotated[str, typer.Option(help=f"Value codec: {', '.join(dagc.VALUE_CODECS)}.")] = "fp32",
    caps: Annotated[
        str | None, typer.Option(help="The largest ratio of a client, by its name (or number), e.g. '{\"3\": 0.001}'.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each client's share of the data, its ratio (or threshold), its entries and its bytes per round.

    Example: dagc allocate --sizes 5000,3000,200,10 --ratio 0.001 --method dagc-r --parameters 11200000
    """
    names, weights = client_sizes(sizes)
    size = round(quantity(parameters, "--parameters"))
    limits = None if caps is None else _caps(caps, names)
    if method not in dagc.ALLOCATORS and method not in SAME:
        raise unknown("method", method, [*dagc.ALLOCATORS, *SAME])
    share, budget = number(ratio, "ratio"), number(bytes, "bytes")
    if share is None and threshold is None and budget is None:
        share = 0.001
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BudgetWarning)
        amounts = dagc.allocate(
            weights,
            ratio=share,
            threshold=threshold,
            bytes=None if budget is None else int(budget * np.count_nonzero(weights)),
            method=SAME.get(method, method),
            caps=limits,
            size=size if budget is not None else None,
            values=values,
        )
    messages = [str(warning.message) for warning in caught if issubclass(warning.category, BudgetWarning)]
    scaled = weights / weights.max()  # the sum of huge ones would overflow
    shares = scaled / scaled.sum()
    clients: list[dict[str, Any]] = [
        {"client": name, "size": float(w), "share": float(s)} for name, w, s in zip(names, weights, shares, strict=True)
    ]
    if threshold is not None:
        for client, value in zip(clients, amounts, strict=True):
            client["threshold"] = float(value) if np.isfinite(value) else None
    else:
        counts = dagc.entries(amounts, size, caps=limits)
        most = dagc.payload_size(size, counts, values)
        for client, value, count, bound in zip(clients, amounts, counts, most, strict=True):
            client |= {"ratio": float(value), "entries": int(count), "bytes": int(bound) if count else 0}
    if as_json:
        fields = {"method": method, "parameters": size, "values": values, "clients": clients, "warnings": messages}
        print(json.dumps(fields))
        return
    _print(clients, method, size, values)
    for line in messages:
        say(f"warning: {line}", "yellow")


def _print(clients: list[dict[str, Any]], method: str, parameters: int, values: str) -> None:
    console = Console(highlight=False, markup=False)
    table = Table(title=f"{method}, {parameters:,} parameters", title_justify="left")
    absolute = "threshold" in clients[0]
    for name in ("client", "examples", "share", *(("threshold",) if absolute else ("ratio", "entries", "bytes"))):
        table.add_column(name, justify="right")
    for client in clients:
        row = [f"{client['client']}", f"{client['size']:,.10g}", f"{client['share']:.2%}"]
        if absolute:
            row += [f"{client['threshold']:.4g}" if client["threshold"] is not None else "sends nothing"]
        else:
            row += [f"{client['ratio']:.4%}", f"{client['entries']:,}", f"{client['bytes']:,}"]
        table.add_row(*row)
    if not absolute:
        table.add_section()
        total = [sum(client[name] for client in clients) for name in ("size", "ratio", "entries", "bytes")]
        mean = total[1] / max(1, sum(client["size"] > 0 for client in clients))
        table.add_row("all", f"{total[0]:,.10g}", "", f"mean {mean:.4%}", f"{total[2]:,}", f"{total[3]:,}")
    console.print(table)
    if not absolute:
        dense = parameters * 4 * sum(client["size"] > 0 for client in clients)
        console.print(
            f"At most {total[3]:,} bytes per round with {values} values, {dense / max(1, total[3]):,.0f} times fewer "
            f"than without compression ({dense:,})."
        )


def _caps(text: str, names: list[str]) -> list[float]:
    caps = from_json(text, "caps")
    if not isinstance(caps, dict) or not all(isinstance(cap, (int, float)) for cap in caps.values()):
        raise InvalidInput(f"caps is {text!r:.100}: write a ratio for each name, e.g. '{{\"{names[0]}\": 0.001}}'")
    for name in caps:
        if name not in names:
            raise unknown("client", name, names)
    return [float(caps.get(name, 1.0)) for name in names]
