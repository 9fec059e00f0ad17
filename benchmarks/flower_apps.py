"""What the example apps learn and send with dagc and without: the same app and seeds, in this process.

    python -m benchmarks.flower_apps                            # examples/flower, three seeds
    python -m benchmarks.flower_apps --app lora                 # examples/flower-lora; DAGC_DATA points to the text
    python -m benchmarks.flower_apps --set down=same rounds=60  # other settings of the app

A message counts with everything that Flower sends of it: arrays, metrics, instructions and names. Flower's requests for
messages are left out.
"""

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from rich.console import Console
from rich.table import Table

from dagc.flower.local import LocalGrid

EXAMPLES = Path(__file__).parent.parent / "examples"


class App(NamedTuple):
    """An example: its package, its folder without dagc and with it, settings for both, and what its test returns."""

    package: str
    without: str
    with_dagc: str
    settings: tuple[dict[str, Any], dict[str, Any]]
    metric: str


APPS = {
    "digits": App("digits", "flower/before", "flower/after", ({}, {}), "accuracy"),
    "lora": App("shakespeare", "flower-lora", "flower-lora", ({"compress": False}, {"compress": True}), "loss"),
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--app", choices=APPS, default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the app")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("dagc").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    app = APPS[options.app]
    given = dict(one.split("=", 1) for one in options.set)
    changes = {name: value(text) for name, text in given.items()}
    table = Table(title=f"examples/{app.with_dagc}, {options.seeds} seeds")
    for name in ("", app.metric, "by seed", "kB up", "kB down"):
        table.add_column(name, justify="right", no_wrap=True)
    sent = []
    for label, folder, own in zip(("without", "with dagc"), app[1:3], app.settings, strict=True):
        runs = [run(app, folder, {**own, **changes, "seed": seed}) for seed in range(options.seeds)]
        measured, up, down = zip(*runs, strict=True)
        spread = f"{statistics.mean(measured):.4f} ± {statistics.stdev(measured):.4f}" if len(runs) > 1 else ""
        sent.append((statistics.mean(up), statistics.mean(down)))
        each = ", ".join(f"{one:.4f}" for one in measured)
        table.add_row(label, spread, each, *(f"{one / 1000:,.1f}" for one in sent[-1]))
    (up, down), (our_up, our_down) = sent
    times = [f"{up / our_up:.0f} ×", f"{down / our_down:.0f} ×"]
    table.add_row("fewer", "", f"both ways {(up + down) / (our_up + our_down):.0f} ×", *times)
    Console().print(table)


def value(text: str) -> Any:
    """A number or truth value if it is one, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main()
