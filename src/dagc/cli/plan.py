"""`dagc plan`: what a federation would send, and how long that would take, before anything is trained."""

import json
from dataclasses import asdict, fields
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dagc.cli.options import given_fields, with_config_flags
from dagc.cli.parse import client_sizes, link_rate, price, quantity
from dagc.comparison import SWEPT, comparison_fields, split_methods
from dagc.errors import InvalidInput, unknown
from dagc.estimate import Estimate, Links, estimate
from dagc.policies import POLICIES, Plan
from dagc.report.panels import in_words
from dagc.text import brief, in_bytes
from dagc.training import Config

__all__ = ["plan"]

ASKED = (*(each.name for each in fields(Plan) if each.name not in ("method", "seed")), "rounds", "participation")
"""The settings that determine what is sent."""
LISTS = tuple(name for name in ASKED if name in SWEPT)
BUDGETS = ("ratio", "bytes", "rate", "threshold")
LARGEST = 1 << 30
"""A model of so many entries takes 4 GB."""
RATIO = 0.001
"""The default budget of methods that need one."""
MORE_ROUNDS = 30
"""How many times as many rounds as no compression `dagc` took at most in `docs/studies/dagc.md`."""
METHODS = "dagc,dagc-r,top-k,stc,none"


@with_config_flags(*(name for name in Config.schema() if name not in (*ASKED, "compute_seconds")), lists=LISTS)
def plan(
    parameters: Annotated[str, typer.Option(help="Entries in the model, e.g. 11.2M.")] = "1M",
    clients: Annotated[int, typer.Option(min=1, max=100_000, help="Number of clients, with equal data.")] = 10,
    sizes: Annotated[
        str | None, typer.Option(help="Examples per client: 5000,3000,200, or a CSV file with a column 'size'.")
    ] = None,
    uplink: Annotated[str, typer.Option(help="Uplink of each client, with its unit.")] = "8.4Mb/s",
    downlink: Annotated[str | None, typer.Option(help="Downlink of each client (default: as the uplink).")] = None,
    cost: Annotated[
        str | None, typer.Option("--price", help="Price of what a client sends and receives, e.g. 10/GB or 0.1/MB.")
    ] = None,
    methods: Annotated[str, typer.Option(help="As in compare: NAME or NAME:key=value,…")] = METHODS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    **flags: Any,
) -> None:
    """Before training: bytes, time and cost by method. Nothing is trained: random entries are sent.

    All methods get the same rounds, but compressed ones need more: NAME:rounds=… gives a method its own. The last two
    columns say how many times the rounds of none a method may take before it sends as much, or takes as long.

    Example: dagc plan --parameters 11.2M --clients 50 --participation 0.2 --uplink 2Mb/s --price 5/GB
    """
    settings = given_fields(flags, LISTS)
    size = round(quantity(parameters, "--parameters"))
    if not 1 <= size <= LARGEST:
        raise InvalidInput(f"--parameters is {parameters:.100}: it must be at least 1, and at most 2^30")
    examples = {str(number): 1.0 for number in range(clients)} if sizes is None else _examples(sizes)
    up = _speed(uplink, "--uplink")
    down = up if downlink is None else _speed(downlink, "--downlink")
    per_byte, currency = (None, "") if cost is None else price(cost, "--price")
    rows = []
    for config in _configs(settings, methods):
        if isinstance(config.compute_seconds, str):
            raise InvalidInput(f"compute_seconds is {config.compute_seconds!r}: before training, give seconds")
        for name in config.caps:
            if name not in examples:
                raise unknown("client for the cap of", name, list(examples))
        links = Links(up, down, config.compute_seconds)
        rows.append((config, estimate(config.plan(), size, examples, config.rounds, config.participation, links)))
    if as_json:
        print(json.dumps([_plain(config, result, per_byte) for config, result in rows]))
        return
    console = Console(highlight=False, markup=False)
    console.print(_table(rows, f"{size:,} parameters, {len(examples):,} clients", per_byte, currency))
    for config, result in rows:
        resolved = {name: value for name, value in result.plan.settings().items() if name != "method"}
        words = ", ".join(in_words(name, value) for name, value in resolved.items())
        console.print(f"{config.method}: {words or 'everything in every round'}")
    console.print(
        f"Compressed trainings take more rounds, up to {MORE_ROUNDS} times as many in docs/studies/dagc.md, and may "
        "end less accurate: dagc compare shows it on a task like yours."
    )
    first = max(result.first_download for _, result in rows)
    if first:
        console.print(f"{in_bytes(first)} of each total are the first model; --first-model drawn saves them.")


def _configs(settings: dict[str, Any], methods: str) -> list[Config]:
    """A configuration for each method. Those of the literature get a ratio if no budget is given, as usual there."""
    names = split_methods(methods)
    if not settings.keys() & set(BUDGETS):
        for place, text in enumerate(names):
            name, colon, rest = text.partition(":")
            takes = name in POLICIES and "ratio" in POLICIES[name].budgets and name != Plan.method
            if takes and not {part.partition("=")[0].strip() for part in rest.split(",")} & set(BUDGETS):
                names[place] = f"{text}{',' if colon else ':'}ratio={RATIO:g}"
    configs = []
    for (options,) in comparison_fields(settings, names):
        idle = options.keys() - {*ASKED, "method", "compute_seconds"}
        if idle:
            raise InvalidInput(f"{min(idle)} does not affect the bytes and seconds of a round: leave it out")
        configs.append(Config(**options))
    return configs


def _examples(sizes: str) -> dict[str, float]:
    names, weights = client_sizes(sizes)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"--sizes: two clients are called {twice!r:.100}: give each its own name")
    return dict(zip(names, weights.tolist(), strict=True))


def _speed(text: str, option: str) -> float:
    speed = link_rate(text, option)
    if not speed > 0:
        raise InvalidInput(f"{option} is {text}: it must be above 0")
    return speed


def _plain(config: Config, result: Estimate, per_byte: float | None) -> dict[str, Any]:
    cost = {} if per_byte is None else {"cost": result.bytes_total * per_byte}
    figures = {name: value for name, value in asdict(result).items() if name != "plan"}
    return {"method": config.method, "rounds": config.rounds, "settings": result.plan.settings(), **figures, **cost}


def _table(rows: list[tuple[Config, Estimate]], title: str, per_byte: float | None, currency: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", no_wrap=True)
    heads = ["rounds", "up", "down", "total", "time"] + ([] if per_byte is None else [f"cost {currency}".strip()])
    for head in (*heads, "bytes,\n× fewer", "time,\n× less"):
        table.add_column(head, justify="right", no_wrap=True)
    dense = next(((config, result) for config, result in rows if config.method == "none"), None)
    for config, result in rows:
        figures = [in_bytes(each) for each in (result.bytes_up, result.bytes_down, result.bytes_total)]
        figures.append(_duration(result.seconds))
        figures += [] if per_byte is None else [brief(result.bytes_total * per_byte)]
        if dense is not None:
            factor = config.rounds / dense[0].rounds
            ours, theirs = result.bytes_total - result.first_download, dense[1].bytes_total - dense[1].first_download
            figures += [brief(factor * theirs / max(1.0, ours))]
            figures += [brief(factor * dense[1].seconds / max(1e-9, result.seconds))]
        table.add_row(config.method, f"{config.rounds:,}", *figures)
    return table


def _duration(seconds: float) -> str:
    size, unit = next((each for each in ((86400, "days"), (3600, "h"), (60, "min")) if seconds >= each[0]), (1, "s"))
    return f"{brief(seconds / size)} {unit}"
