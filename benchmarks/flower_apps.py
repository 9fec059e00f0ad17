"""What the example apps learn and send with dagc and without: the same app and seeds, in this process.

    python -m benchmarks.flower_apps                            # examples/flower, three seeds
    python -m benchmarks.flower_apps --app lora                 # examples/flower-lora; DAGC_DATA points to the text
    python -m benchmarks.flower_apps --record                   # also keeps the table for docs/how-to/flower.md
    python -m benchmarks.flower_apps --set down=same rounds=60  # other settings of the app

A message counts with everything that Flower sends of it: arrays, metrics, instructions and names. Flower's requests for
messages are left out.
"""

import json
import logging
import os
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from benchmarks.tables import arguments, show
from tests.helpers.local_grid import LocalGrid

EXAMPLES = Path(__file__).parent.parent / "examples"


class App(NamedTuple):
    """An example: its record, package, folders without dagc and with it, settings for both, what its test returns."""

    record: str
    package: str
    without: str
    with_dagc: str
    settings: tuple[dict[str, Any], dict[str, Any]]
    metric: str


APPS = {
    "digits": App("flower-apps", "digits", "flower/before", "flower/after", ({}, {}), "accuracy"),
    "lora": App(
        "flower-apps-lora",
        "shakespeare",
        "flower-lora",
        "flower-lora",
        ({"compress": False}, {"compress": True}),
        "loss",
    ),
}


class Counted(LocalGrid):
    """A grid that adds up the bytes of its messages: up from the nodes, and down to them."""

    up = down = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count what goes to the nodes."""
        messages = list(messages)
        self.down += sum(map(size, messages))
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Count what comes back."""
        replies = list(super().pull_messages(message_ids))
        self.up += sum(map(size, replies))
        return replies


def size(message: Message) -> int:
    """The bytes of a message, in Flower's own encoding."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def run(app: App, folder: str, settings: dict[str, Any]) -> tuple[float, int, int]:
    """The example from its first round to its last: the test of the last model, bytes up, bytes down."""
    path = str(EXAMPLES / folder)
    sys.path.insert(0, path)
    try:
        server = import_module(f"{app.package}.server_app")
        client = import_module(f"{app.package}.client_app")
    finally:
        sys.path.remove(path)
        for name in [name for name in sys.modules if name.partition(".")[0] == app.package]:
            del sys.modules[name]
    config = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {name: value for name, value in settings.items() if name in config}
    found, usual = [], server.test

    def test(*given: Any) -> Any:
        found.append(usual(*given))
        return found[-1]

    server.test = test
    grid = Counted(client.app, config["nodes"], run_config=config)
    with tempfile.TemporaryDirectory() as state:
        os.environ["DAGC_STATE"] = state
        server.app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    last = found[-1]
    return (last[0] if isinstance(last, tuple) else last), grid.up, grid.down


def main(
    quick: bool = True,
    record: bool = False,
    name: str = "digits",
    seeds: int | None = None,
    changes: dict[str, Any] | None = None,
) -> None:
    """Print the table, and keep it if asked."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("dagc").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    app = APPS[name]
    count = seeds or (3 if quick else 10)
    found = [
        [run(app, folder, {**own, **(changes or {}), "seed": seed}) for seed in range(count)]
        for folder, own in zip((app.without, app.with_dagc), app.settings, strict=True)
    ]
    (before, up, down), (after, our_up, our_down) = (list(zip(*runs, strict=True)) for runs in found)
    scale, digits = (100, 1) if app.metric == "accuracy" else (1, 3)

    def spread(numbers: Iterable[float], sign: str = "") -> str:
        each = [scale * number for number in numbers]
        deviation = f" ± {statistics.stdev(each):.{digits}f}" if count > 1 else ""
        return f"{statistics.mean(each):{sign}.{digits}f}{deviation}".replace("-", "−")

    more = [ours - theirs for ours, theirs in zip(after, before, strict=True)]
    fewer = [f"{sum(up) / sum(our_up):.0f}", f"{sum(down) / sum(our_down):.0f}"]
    rows = [
        ["without dagc", spread(before), "", kilobytes(up), "", kilobytes(down), ""],
        ["with dagc", spread(after), spread(more, "+"), kilobytes(our_up), fewer[0], kilobytes(our_down), fewer[1]],
    ]
    metric = app.metric + (", %" if scale == 100 else "")
    heads = ["", metric, "difference, seed by seed", "kB up", "times fewer", "kB down", "times fewer"]
    note = f"Mean and standard deviation of {count} seeds" if count > 1 else "One seed"
    show(app.record, f"examples/{app.with_dagc}, after the last round", heads, rows, record, [note])


def kilobytes(numbers: Sequence[float]) -> str:
    return f"{statistics.mean(numbers) / 1000:,.0f}"


def value(text: str) -> Any:
    """A number or truth value if it is one, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="ten seeds")
    parser.add_argument("--app", choices=APPS, default="digits")
    parser.add_argument("--seeds", type=int, help="another number of seeds")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the app")
    options = parser.parse_args()
    given = dict(one.split("=", 1) for one in options.set)
    changes = {name: value(text) for name, text in given.items()}
    main(not options.full, options.record, options.app, options.seeds, changes)
