"""`dagc plan`: what a federation would send, and how long that would take, before anything is trained."""

import json
from math import ceil
from typing import Annotated, Any

import typer
from rich.console import Console

from dagc.cli.options import AsJson, amount, client_sizes, passed, with_flags
from dagc.cli.terminal import print_table
from dagc.comparison import SWEPT, comparison_fields, split_methods
from dagc.errors import InvalidInput, unknown
from dagc.estimate import estimate
from dagc.policies import BUDGETS, METHODS, Plan, make_rate
from dagc.policies.plan import level_bytes
from dagc.protocol.outlook import check_rounds
from dagc.report.numbers import BYTES
from dagc.report.panels import in_words
from dagc.text import in_bytes, in_seconds
from dagc.training import Config

SENT = (*(name for name in Plan.schema() if name not in ("method", "seed")), "rounds", "participation")
CLOCK = ("network", "compute_seconds")
"""The settings that determine what is sent, and how long that takes."""
LARGEST, RATIO = 1 << 30, 0.001
"""A model of so many entries takes 4 GB; the default budget of methods from the literature."""
MORE_ROUNDS = 30  # how many times as many rounds as no compression `thrifty` took at most in `docs/studies/thrifty.md`
STUDIES = "in the repository, docs/studies"  # which a wheel does not have
UNKNOWN = "nobody knows how accurate: run dagc compare on a task like yours"
EXPECTED = {
    "none": "the accuracy to compare with",
    "dagc": f"about the accuracy of none at the same rounds: {STUDIES}/results.md",
    "thrifty": f"up to {MORE_ROUNDS} times the rounds of none, and often ends less accurate: {STUDIES}/thrifty.md",
}


@with_flags(*(name for name in Config.schema() if name not in (*SENT, *CLOCK)), lists={*SENT} & {*SWEPT})
def plan(
    parameters: Annotated[str, typer.Option(help="Entries in the model, e.g. 11.2M.")] = "1M",
    clients: Annotated[int, typer.Option(min=1, max=100_000, help="Number of clients, with equal data.")] = 10,
    sizes: Annotated[str | None, typer.Option(help="Examples per client instead: 5000,3000,200.")] = None,
    methods: Annotated[str, typer.Option(help="As in compare: NAME or NAME:key=value,…")] = "dagc,thrifty,stc,none",
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Before training: bytes and time by method. Nothing is trained: random entries are sent.

    All methods get the same rounds; NAME:rounds=… gives a method its own. Bytes are the most that may be sent.

    Example: dagc plan --parameters 11.2M --clients 50 --participation 0.2 --network constant:up=2,down=2
    """
    size = round(amount(parameters))
    if not 1 <= size <= LARGEST:
        raise InvalidInput(f"--parameters is {parameters:.100}: it must be at least 1, and at most 2^30")
    counts = [1.0] * clients if sizes is None else client_sizes(sizes)
    examples = {str(client): count for client, count in enumerate(counts)}
    rows = []
    for config in _configs(passed(flags, SWEPT), methods):
        for name in config.caps:
            if name not in examples:
                raise unknown("client for the cap of", name, list(examples))
        full = config.plan().for_size(size)
        check_rounds(full, size, examples, config.rounds, max(1, ceil(config.participation * len(examples) - 1e-9)))
        result = estimate(config, size, examples)
        figures = {name: value for name, value in result._asdict().items() if name != "plan"}
        row = {"method": config.method, "rounds": config.rounds, "settings": result.plan.changed(), **figures}
        row["accuracy"] = _expected(full, size, config.rounds)
        rows.append({**row, "bytes_total": result.bytes_up + result.bytes_down})
    print(json.dumps(rows)) if as_json else _print(rows, f"{size:,} parameters, {len(examples):,} clients")


def _configs(settings: dict[str, Any], methods: str) -> list[Config]:
    """A configuration for each method. Those of the literature get a ratio if no budget is given, as usual there."""
    texts = split_methods(methods)
    for place, text in enumerate(texts):
        name, colon, rest = text.partition(":")
        takes = name in METHODS and "ratio" in METHODS[name].budgets and name not in EXPECTED
        if takes and not {*settings, *(part.partition("=")[0].strip() for part in rest.split(","))} & {*BUDGETS}:
            texts[place] = f"{text}{',' if colon else ':'}ratio={RATIO:g}"
    lines = comparison_fields(settings, texts)
    for fields in lines:
        idle = fields.keys() - {*SENT, *CLOCK, "method"}
        if idle:
            raise InvalidInput(f"{min(idle)} does not affect the bytes and seconds of a round: leave it out")
    return [Config(**fields) for fields in lines]


def _expected(plan: Plan, size: int, rounds: int) -> str:
    """What the records say of the accuracy, or that they say nothing."""
    if plan.per_hour:
        return UNKNOWN
    budget = make_rate(plan.rate).bytes / rounds if plan.rate is not None else plan.bytes
    if plan.method_spec.encodes and (budget is None or budget < level_bytes(size)):
        return f"has less than its own {in_bytes(level_bytes(size))} per client and round, and {UNKNOWN}"
    return EXPECTED.get(plan.method, UNKNOWN)


def _print(rows: list[dict[str, Any]], title: str) -> None:
    body = []
    for row in rows:
        amounts = [in_bytes(row[name]) for name in BYTES]
        body.append([row["method"], f"{row['rounds']:,}", *amounts, in_seconds(row["seconds"])])
    print_table(title, ("method", "rounds", "up", "down", "total", "time"), body)
    console = Console(highlight=False, markup=False)
    for row in rows:
        words = ", ".join(in_words(name, value) for name, value in row["settings"].items() if name != "method")
        console.print(f"{row['method']} ({words or 'everything in every round'}): {row['accuracy']}")
    first = max(row["first_download"] for row in rows)
    if first:
        console.print(f"Up to {in_bytes(first)} are the first model; --first-model drawn saves them.")
