"""`dagc plan`: what a federation would send, how long it would take and what it would cost, before it is trained."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from dagc.cli.options import given_fields, with_config_flags
from dagc.cli.parse import client_sizes, link_rate, price, quantity
from dagc.comparison import SWEPT, comparison_fields, split_methods
from dagc.errors import InvalidInput, unknown
from dagc.files import failure, write_atomically
from dagc.planning import MORE_ROUNDS, Choice, Fleet, Forecast, choices, duration, forecast, plan_page, verdict
from dagc.policies import POLICIES, Plan
from dagc.report import Series, notes, panels_of, read_runs
from dagc.report.numbers import in_bytes, reached
from dagc.report.panels import in_words
from dagc.sparse import MAX_SIZE
from dagc.training import Config

__all__ = ["plan"]

OF_A_PLAN = tuple(each.name for each in fields(Plan) if each.name not in ("method", "seed"))
ASKED = (*OF_A_PLAN, "rounds", "participation", "compute_seconds")
"""The settings that determine what is sent, and how long it takes."""
LISTS = tuple(name for name in ASKED if name in SWEPT)
RATIO = 0.001
"""The default budget of methods that need one."""
METHODS = "dagc,dagc-r,top-k:frames=raw,stc,none"
COUNTED = ("ratio", "bytes", "rate")
MOST_CLIENTS = 100_000
SHOWN = 24
"""How many clients are listed at most."""


@dataclass(frozen=True)
class _Way:
    """What one method takes, for all clients together; None if not known."""

    label: str
    plan: Plan
    forecast: Forecast | None
    rounds: float | None
    bytes_up: float | None
    bytes_down: float | None
    note: str = ""

    @property
    def total(self) -> float | None:
        return None if self.bytes_up is None or self.bytes_down is None else self.bytes_up + self.bytes_down

    @property
    def seconds(self) -> float | None:
        return None if self.forecast is None else self.forecast.seconds


@with_config_flags(
    *(name for name in Config.model_fields if name not in ASKED),
    lists=LISTS,
)
def plan(
    parameters: Annotated[str | None, typer.Option(help="Entries in the model, e.g. 11.2M (default: 1M).")] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_CLIENTS, help="Number of clients, with equal data and links (default: 10)."),
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Examples per client: 5000,3000,200, or a CSV file with a column 'size'.")
    ] = None,
    uplink: Annotated[str, typer.Option(help="Uplink of each client, with its unit.")] = "8.4Mb/s",
    downlink: Annotated[
        str | None, typer.Option(help="Downlink of each client (default: the same as the uplink).")
    ] = None,
    cost: Annotated[
        str | None, typer.Option("--price", help="Price of what a client sends and receives, e.g. 10/GB or 0.1/MB.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help=f"As in compare: NAME or NAME:key=value,… (default: {METHODS}).")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Take rounds and bytes from runs instead: the folder of a comparison.")
    ] = None,
    accuracy: Annotated[float | None, typer.Option(help="With --runs: the accuracy to reach, e.g. 0.9.")] = None,
    page: Annotated[Path | None, typer.Option(help="Also write a page with sliders, e.g. plan.html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    **given: Any,
) -> None:
    """Before training: bytes, hours and cost by method; what was chosen and why; whether compression is worth it.

    Bytes are upper bounds: every frame counts with the most it can take. All methods get the rounds that you give;
    NAME:rounds=… gives a method its own, --runs takes them from runs.

    Example: dagc plan --parameters 11.2M --clients 50 --participation 0.2 --uplink 2Mb/s --price 5/GB
    """
    settings = given_fields(given, LISTS)
    up = _positive(link_rate(uplink, "--uplink"), uplink, "--uplink")
    down = up if downlink is None else _positive(link_rate(downlink, "--downlink"), downlink, "--downlink")
    per_byte, currency = (None, "") if cost is None else price(cost, "--price")
    said_of_runs: list[str] = []
    if runs is not None:
        said = {"parameters": parameters, "clients": clients, "sizes": sizes, "methods": methods, **settings}
        fleet, ways, said_of_runs = _measured(runs, accuracy, said, up, down)
    else:
        if accuracy is not None:
            raise InvalidInput(
                f"--accuracy is {accuracy:g}: only runs show when it is reached; add --runs, or leave it out"
            )
        fleet, ways = _assumed(_fleet(parameters, clients, sizes, up, down), settings, methods or METHODS)
    chosen = next((way.plan for way in ways if way.plan.method == Plan.method), None)
    why = [] if chosen is None else choices(chosen, fleet)
    words = [*_words(ways, accuracy), *(f"note: {note}" for note in said_of_runs)]
    if page is not None:
        _write(page, plan_page(_for_page(ways), fleet, per_byte or 0.0))
    if as_json:
        shown = {**asdict(fleet), "clients": len(fleet.examples), "asked": fleet.asked}
        found = [_plain(way, fleet, per_byte) for way in ways]
        print(json.dumps({**shown, "methods": found, "choices": [one._asdict() for one in why], "verdict": words}))
        return
    _print(ways, fleet, per_byte, currency, accuracy)
    if sizes is not None and ways[0].forecast is not None:
        _print_clients(ways[0].label, ways[0].forecast, fleet)
    if chosen is not None:
        _print_choices(chosen.method, why)
    console = Console(highlight=False, markup=False)
    for line in words:
        console.print(line)
    if page is not None:
        console.print(f"page: {page}", soft_wrap=True)


def _fleet(parameters: str | None, clients: int | None, sizes: str | None, up: float, down: float) -> Fleet:
    if clients is not None and sizes is not None:
        raise InvalidInput(f"--clients is {clients}, but --sizes lists the clients: leave one of them out")
    size = round(quantity(parameters or "1M", "--parameters"))
    if not 1 <= size <= MAX_SIZE:
        raise InvalidInput(f"--parameters is {parameters:.100}: it must be at least 1, and at most 2^48")
    if sizes is None:
        return Fleet(size, {str(number): 1.0 for number in range(clients or 10)}, up=up, down=down)
    names, weights = client_sizes(sizes)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"--sizes: two clients are called {twice!r:.100}: give each its own name")
    return Fleet(size, dict(zip(names, weights.tolist(), strict=True)), up=up, down=down)


def _positive(number: float, text: str, option: str) -> float:
    if not number > 0:
        raise InvalidInput(f"{option} is {text}: it must be above 0")
    return number


def _assumed(fleet: Fleet, settings: dict[str, Any], methods: str) -> tuple[Fleet, list[_Way]]:
    """What each method would take in the given rounds."""
    named = split_methods(methods)
    if not settings.keys() & {*COUNTED, "threshold"}:
        named = [_with_budget(text) for text in named]
    ways = []
    for (fields_of,) in comparison_fields(settings, named):
        idle = fields_of.keys() - {*ASKED, "method"}
        if idle:
            raise InvalidInput(f"{min(idle)} does not affect the bytes and seconds of a round: leave it out")
        config = Config(**fields_of)
        if isinstance(config.compute_seconds, str):
            raise InvalidInput(f"compute_seconds is {config.compute_seconds!r}: before training, give seconds")
        fleet = replace(fleet, participation=config.participation, compute_seconds=config.compute_seconds)
        for name in config.caps:
            if name not in fleet.examples:
                raise unknown("client for the cap of", name, list(fleet.examples))
        plan = config.plan()
        expected = forecast(plan, fleet, config.rounds)
        own = plan.settings()
        label = _label(plan, [name for name in own if _same(own, settings, name)])
        ways.append(_Way(label, plan, expected, config.rounds, expected.bytes_up, expected.bytes_down))
    return fleet, ways


def _with_budget(text: str) -> str:
    """Methods from the literature get a ratio, as usual there; a variant may have its own budget."""
    name, colon, rest = text.partition(":")
    kind = POLICIES.get(name)
    own = {part.partition("=")[0].strip() for part in rest.split(",")}
    if kind is None or name == Plan.method or "ratio" not in kind.budgets or own & {*COUNTED, "threshold"}:
        return text
    return f"{text}{',' if colon else ':'}ratio={RATIO:g}"


def _label(plan: Plan, left_out: Collection[str]) -> str:
    """The method and its settings in words."""
    settings = plan.settings()
    words = [in_words(name, settings[name]) for name in settings if name not in ("method", *left_out)]
    return ", ".join([plan.method, *words])


def _same(own: dict[str, Any], settings: dict[str, Any], name: str) -> bool:
    """Whether a setting equals the shared one; numbers may be written in several ways."""
    if name not in settings or isinstance(settings[name], list):
        return False
    try:
        return float(own[name]) == float(settings[name])
    except (TypeError, ValueError):
        return bool(own[name] == settings[name])


def _measured(
    folder: Path, accuracy: float | None, said: dict[str, Any], up: float, down: float
) -> tuple[Fleet, list[_Way], list[str]]:
    """What each method took in runs to reach an accuracy, and notes about the runs."""
    compute = said.pop("compute_seconds", None)
    too_much = [name for name, value in said.items() if value is not None]
    if too_much:
        raise InvalidInput(f"--{too_much[0].replace('_', '-')} is known from the runs in --runs: leave it out")
    if accuracy is None or not 0 < accuracy <= 1:
        raise InvalidInput(f"--accuracy is {accuracy}: with --runs, give the accuracy to reach, e.g. 0.9")
    panels = panels_of(read_runs([folder]), (accuracy,))
    if len(panels) > 1:
        raise InvalidInput(f"{folder} holds runs of {len(panels)} problems: give the folder of one comparison")
    (panel,) = panels
    first = panel.series[0].runs[0]
    sizes = first.clients["sizes"]
    names = [str(name) for name in first.clients.get("names") or range(len(sizes))]
    taken = first.settings.get("compute_seconds", 0.0)
    if compute is not None:
        taken = Config(compute_seconds=compute).compute_seconds
    if isinstance(taken, str):
        raise InvalidInput(f"compute_seconds is {taken!r}: give the seconds that a round takes with --compute-seconds")
    fleet = Fleet(
        int(first.clients["parameters"]),
        dict(zip(names, map(float, sizes), strict=True)),
        float(first.settings.get("participation", 1.0)),
        up,
        down,
        float(taken),
    )
    ours_first = sorted(panel.series, key=lambda series: series.runs[0].settings["method"] != Plan.method)
    return fleet, [_of_runs(series, accuracy, fleet) for series in ours_first], notes(panels)


def _of_runs(series: Series, accuracy: float, fleet: Fleet) -> _Way:
    settings, goal = series.runs[0].settings, reached(series, accuracy)
    plan = Plan(**{name: settings[name] for name in ("method", *OF_A_PLAN) if name in settings})
    if goal.rounds is None or goal.bytes_up is None or goal.bytes_down is None:
        return _Way(series.label, plan, None, None, None, None, f"{goal.seeds} of {goal.of} seeds got there")
    expected = None if plan.threshold is not None else forecast(plan, fleet, max(1, round(goal.rounds.mean)))
    return _Way(series.label, plan, expected, goal.rounds.mean, goal.bytes_up.mean, goal.bytes_down.mean)


def _plain(way: _Way, fleet: Fleet, per_byte: float | None) -> dict[str, Any]:
    """A method's figures for machines."""
    clients, expected = len(fleet.examples), way.forecast
    found: dict[str, Any] = {"method": way.plan.method, "label": way.label, "settings": way.plan.settings()}
    found |= {"rounds": way.rounds, "bytes_up": way.bytes_up, "bytes_down": way.bytes_down, "bytes_total": way.total}
    for name in ("bytes_up", "bytes_down"):
        found[f"{name}_per_client"] = None if found[name] is None else found[name] / clients
    found |= {"seconds": way.seconds, "cost": None if per_byte is None or way.total is None else way.total * per_byte}
    if expected is not None:
        found |= {"first_download": expected.first_download, "seconds_a_round": expected.round_seconds}
        found["exchange_seconds_a_round"] = expected.exchange_seconds
        both = zip(fleet.examples.items(), expected.up.tolist(), expected.down.tolist(), strict=True)
        found["clients"] = [{"client": n, "size": w, "bytes_up": u, "bytes_down": d} for (n, w), u, d in both]
    return found


def _words(ways: Sequence[_Way], accuracy: float | None) -> list[str]:
    """What the figures say."""
    if accuracy is not None:
        there = [way for way in ways if way.total is not None]
        if not there:
            return [f"No method reached {100 * accuracy:g} % with all seeds."]
        best = min(there, key=lambda way: way.total or 0.0)
        words = [f"{best.label} takes the fewest bytes to {100 * accuracy:g} %, {in_bytes(best.total or 0.0)}."]
        timed = [way for way in there if way.seconds is not None]
        if timed:
            quick = min(timed, key=lambda way: way.seconds or 0.0)
            words.append(f"{quick.label} takes the least time, {duration(quick.seconds or 0.0)} on these links.")
        return [*words, "Rounds and bytes are means of the runs; times are those of the same orders on these links."]
    words = []
    first = [way.forecast.first_download for way in ways if way.forecast and way.forecast.first_download]
    if first:
        rows = "every row" if len(first) == len(ways) else f"{len(first)} of {len(ways)} rows"
        words.append(
            f"{in_bytes(max(first))} of {rows} are the first download of the model by every client; "
            "--first-model drawn saves them if clients can create it themselves."
        )
    dense = next((way for way in ways if way.plan.method == "none"), None)
    if dense is None or dense.forecast is None:
        return words
    if all(way.rounds == dense.rounds for way in ways):
        words.append(
            f"All methods are assumed to take the same rounds, but compressed ones need more (up to {MORE_ROUNDS[1]} "
            "times in docs/studies/dagc.md): give each its own with NAME:rounds=…, or use --runs."
        )
    ours = next((way for way in ways if way.forecast and POLICIES[way.plan.method].budgets), None)
    if ours is not None and ours.forecast is not None:
        words += verdict(ours.label, ours.forecast, dense.forecast)
    return words


def _print(ways: Sequence[_Way], fleet: Fleet, per_byte: float | None, currency: str, accuracy: float | None) -> None:
    who = f"{len(fleet.examples):,} clients" + ("" if fleet.participation == 1 else f", {fleet.asked:,} in a round")
    links = "" if fleet.up == fleet.down else f" up, {_rate(fleet.down)} down"
    different = accuracy is not None or len({way.rounds for way in ways}) > 1
    if accuracy is not None:
        until = f"until {100 * accuracy:g} %, measured:"
    else:
        until = "at most:" if different else f"in {ways[0].rounds:,.0f} rounds, at most:"
    title = f"{fleet.parameters:,} parameters, {who}, {_rate(fleet.up)}{links or ' both ways'};\n{until}"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", overflow="fold")
    heads = ["up per\nclient", "down per\nclient", "all\nup", "all\ndown", "total", "time"]
    heads += [f"cost{', ' + currency if currency else ''}"] * (per_byte is not None)
    for name in heads:
        table.add_column(name, justify="right", no_wrap=True)
    for way in ways:
        if way.total is None or way.bytes_up is None or way.bytes_down is None:
            table.add_row(f"{way.label}: {way.note}", *[""] * len(heads))
            continue
        clients = len(fleet.examples)
        figures = [in_bytes(way.bytes_up / clients), in_bytes(way.bytes_down / clients)]
        figures += [in_bytes(way.bytes_up), in_bytes(way.bytes_down), in_bytes(way.total)]
        figures.append("–" if way.seconds is None else duration(way.seconds))
        figures += [] if per_byte is None else [_amount(way.total * per_byte)]
        table.add_row(f"{way.label}, {way.rounds:,.0f} rounds" if different else way.label, *figures)
    Console(highlight=False, markup=False).print(table)


def _amount(money: float) -> str:
    return f"{money:,.2f}" if money >= 1 else f"{money:.2g}"


def _rate(bits: float) -> str:
    for unit, size in (("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        if bits >= size:
            return f"{bits / size:g} {unit}"
    return f"{bits:g} b/s"


def _print_clients(label: str, expected: Forecast, fleet: Fleet) -> None:
    """A table of the clients."""
    table = Table(title=f"{label}: each client", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("client", "examples", "share", "up", "down"):
        table.add_column(column, justify="left" if column == "client" else "right")
    rows = list(zip(fleet.examples.items(), expected.up, expected.down, strict=True))
    largest = max(fleet.examples.values())
    scaled = sum(size / largest for size in fleet.examples.values())  # the sum of huge ones would overflow
    for place, ((name, size), up, down) in enumerate(rows):
        if len(rows) > SHOWN and SHOWN // 2 <= place < len(rows) - SHOWN // 2:
            if place == SHOWN // 2:
                table.add_row("…", f"{len(rows) - SHOWN:,} more")
            continue
        table.add_row(name, f"{size:,.10g}", f"{size / largest / scaled:.2%}", in_bytes(up), in_bytes(down))
    Console(highlight=False, markup=False).print(table)


def _print_choices(method: str, why: Sequence[Choice]) -> None:
    table = Table(title=f"{method}: what was chosen and why", title_justify="left", box=None, show_header=False)
    for choice in why:
        table.add_row(choice.setting, f"{choice.chosen}: {choice.why}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print()


def _for_page(ways: Sequence[_Way]) -> list[tuple[str, Plan, float]]:
    """What the page shows. The budget is a slider there, so methods that differ in nothing else are one."""
    found: dict[str, tuple[str, Plan, float]] = {}
    for way in ways:
        everywhere = [
            name
            for name, value in way.plan.settings().items()
            if len(ways) > 1 and all(other.plan.settings().get(name) == value for other in ways)
        ]
        label = _label(way.plan, [*COUNTED, *everywhere])
        if way.rounds is not None:
            found.setdefault(label, (label, way.plan, way.rounds))
    if not found:
        raise InvalidInput("the page would be empty: no method reached the accuracy with all seeds")
    return list(found.values())


def _write(path: Path, text: str) -> None:
    if not path.name:
        raise InvalidInput(f"the page cannot be written to {path}, which is a folder: name a file, such as plan.html")
    try:
        with write_atomically(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise InvalidInput(f"the page cannot be written to {path}: {failure(error)}") from error
