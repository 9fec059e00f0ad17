"""What the mod and the wrapper cost: rounds of the same Flower app with and without them, in this process.

    python -m benchmarks.flower            # 1 M parameters, 5 nodes, 1 %; three minutes
    python -m benchmarks.flower --full     # more rounds
    python -m benchmarks.flower --record   # also keeps the tables for docs/studies/performance.md

Both apps take turns, round by round, in one process, on one thread, without a network. Messages become bytes and
messages again by Flower's own code, once on each way, as they do between a server's and a node's process; or they are
handed over as calls, which no real federation can do. Nodes' files are written to a temporary folder, as in a real run.
CPU time is what counts on a busy computer; it leaves out waiting for the disk.
"""

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from threading import Condition, Thread
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.tables import arguments, show
from dagc.flower import DataAware, compress
from tests.helpers.local_grid import LocalGrid

NODES = 5
BATCH = 32
PLANS: dict[str, dict[str, Any]] = {
    "`dagc-r`": {"method": "dagc-r"},
    "`dagc`": {"method": "dagc"},
    "`dagc`, a run with a name": {"method": "dagc", "run": "kept"},
}
"""The paper's, the default, and the default in a run with a name: the server writes a checkpoint in every round."""


def model() -> nn.Module:
    """1.0 million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 210), nn.ReLU(), nn.Linear(210, 10))


def client_app(steps: int, mods: list[Any]) -> ClientApp:
    """Steps of SGD on random data; only time matters."""
    app = ClientApp(mods=mods)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps, BATCH, 784, generator=generator)
    y = torch.randint(10, (steps, BATCH), generator=generator)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        own = model()
        own.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(own.parameters(), lr=0.01)
        for samples, labels in zip(x, y, strict=True):
            optimizer.zero_grad()
            cross_entropy(own(samples), labels).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": 100 * (1 + int(context.node_config["partition-id"]))})
        return Message(RecordDict({"arrays": ArrayRecord(own.state_dict()), "metrics": metrics}), reply_to=message)

    return app


class Carried(LocalGrid):
    """A grid whose messages become bytes on the way, and messages again: what a network would have to carry."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Carry them to the nodes and run the nodes' apps."""
        messages = list(messages)
        copies = carried(messages)
        names = list(super().push_messages(copies))
        for message, name in zip(messages, names, strict=True):
            message.metadata.__dict__["_message_id"] = name
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The nodes' replies, carried back."""
        return [message for reply in super().pull_messages(message_ids) for message in carried([reply])]


def carried(messages: list[Message]) -> list[Message]:
    """The same messages, from their bytes; what several share becomes bytes once."""
    with no_object_id_recompute():
        objects = {name: part for message in messages for name, part in get_all_nested_objects(message).items()}
        contents = {name: part.deflate() for name, part in objects.items()}
        copies = [inflate_object_from_contents(one.object_id, contents, keep_object_contents=True) for one in messages]
    return [copy for copy in copies if isinstance(copy, Message)]


GRIDS = {"flower": ("messages as bytes", Carried), "flower-calls": ("messages as calls", LocalGrid)}
"""By the name of the table's record."""


class Turns:
    """Lets threads run one at a time, each until it is asked to wait; so two runs take turns without mixing."""

    def __init__(self, who: int) -> None:
        """The first begins."""
        self._turn, self._who, self._condition = 0, who, Condition()

    @contextmanager
    def mine(self, number: int) -> Iterator[None]:
        """Wait for one's turn, and hand it on afterwards."""
        with self._condition:
            self._condition.wait_for(lambda: self._turn % self._who == number)
            yield
            self._turn += 1
            self._condition.notify_all()


def rounds(strategy: Strategy, grid: LocalGrid, count: int, number: int, turns: Turns) -> list[tuple[float, float]]:
    """Seconds of each round, by the clock and of the processor, the first two left out."""
    took: list[tuple[float, float]] = []
    held: list[tuple[float, float]] = []

    def between(done: int, arrays: ArrayRecord) -> None:
        if done:
            clock, cpu = held.pop()
            took.append((time.perf_counter() - clock, time.thread_time() - cpu))
            turn.__exit__(None, None, None)
        enter()

    def enter() -> None:
        nonlocal turn
        turn = turns.mine(number)
        turn.__enter__()
        held.append((time.perf_counter(), time.thread_time()))

    turn: Any = None
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=count, evaluate_fn=between)
    turn.__exit__(None, None, None)
    return took[2:]


def measure(plan: str, steps: int, count: int, grid: type[LocalGrid]) -> dict[str, tuple[float, float]]:
    """Medians of a round without and with us, by the clock and of the processor."""
    turns, found = Turns(2), {}
    plain = FedAvg(fraction_evaluate=0.0)
    settings = dict(PLANS[plan])
    if "run" in settings:
        settings["run"] += f"-{grid.__name__}-{steps}"
    aware = DataAware(FedAvg(fraction_evaluate=0.0), ratio=0.01, **settings)
    jobs = {
        "without": (plain, grid(client_app(steps, []), NODES)),
        "with": (aware, grid(client_app(steps, [compress]), NODES)),
    }

    def work(name: str, number: int) -> None:
        torch.set_num_threads(1)
        found[name] = rounds(*jobs[name], count, number, turns)

    threads = [Thread(target=work, args=(name, number)) for number, name in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        name: (statistics.median(clock for clock, _ in times), statistics.median(cpu for _, cpu in times))
        for name, times in found.items()
    }


def main(quick: bool = True, record: bool = False) -> None:
    """Print the tables, and keep them if asked."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    count = 10 if quick else 30
    heads = ["", "local steps"]
    heads += [head for time in ("CPU", "clock") for head in (f"{time} without, ms", f"{time} with dagc, ms", "more")]
    note = f"A round of {NODES} nodes, 1.0 M parameters, 1 %; medians of {count - 2} rounds"
    with tempfile.TemporaryDirectory() as state:
        os.environ["DAGC_STATE"] = state
        for name, (way, grid) in GRIDS.items():
            rows = []
            for plan, steps in product(PLANS, (5, 20, 50)):
                found = measure(plan, steps, count, grid)
                (clock, cpu), (our_clock, our_cpu) = found["without"], found["with"]
                rows.append([plan, str(steps), *compared(cpu, our_cpu), *compared(clock, our_clock)])
            show(name, f"Milliseconds for a round, {way}", heads, rows, record, [note])


def compared(without: float, ours: float) -> list[str]:
    """Both in milliseconds, and how much more ours is."""
    more = f"{100 * (ours / without - 1):+.0f} %".replace("-", "−")
    return [f"{1000 * without:.0f}", f"{1000 * ours:.0f}", more]


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds")
    options = parser.parse_args()
    main(not options.full, options.record)
