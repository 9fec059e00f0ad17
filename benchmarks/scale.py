"""What a server needs for many clients and large models, from what it costs per client, per entry and per parameter.

    python -m benchmarks.scale                 # --record keeps the tables for docs/studies/scale.md

The real server reads real frames of real clients. Only its own work is timed, as CPU time of one thread: what it does
for each client (an order, a download, reading an upload) and what it does once a round (the sum, the step, the
broadcast). Costs are fitted to that; the last three tables are those costs multiplied out, most of them beyond what was
measured. Updates are those of the default method, with its default bytes; coded frames are those of `thrifty`.
"""

import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.tables import arguments, kept, show
from dagc.policies import Plan
from dagc.policies.plan import level_bytes
from dagc.protocol import ModelServer, Replica, Server, Uplink
from dagc.protocol.memories import MEMORIES
from dagc.text import in_bytes
from dagc.wire import Memory

CLIENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
SIZES = (10**4, 10**5, 10**6, 10**7, 10**8, 10**9)
PLANS = {"updates": Plan(method="dagc", first_model="drawn"), "coded": Plan(method="thrifty", first_model="drawn")}
MEASURED = {
    "updates": ((10**4, 100), (10**4, 300), (10**5, 60), (10**6, 10), (10**7, 3)),
    "coded": ((10**4, 100), (10**4, 300), (10**5, 60)),
}
"""By the kind of frames: entries of the model, and clients."""
COLUMNS = 100
"""The model is one matrix with rows of this length."""
MEASURED_HEADS = [
    "frames", "parameters", "clients", "entries up", "bytes up", "bytes down", "for each client", "once a round"
]  # fmt: skip
ROUNDS, WARM = 6, 4
MEMBERS = 20_000
MODEL = 4
"""Bytes of a parameter of the new model, which torch has and `tracemalloc` does not see."""


class Cost(NamedTuple):
    """What one federation took.

    Attributes:
        size: Entries of the model.
        clients: Who take part in every round.
        entries: Uploaded per client and round.
        up: Bytes uploaded per client and round.
        down: Bytes downloaded per client and round.
        each: Seconds of the server's work for one client in one round.
        once: Seconds of its work once a round.
    """

    size: int
    clients: int
    entries: float
    up: float
    down: float
    each: float
    once: float


class Federation:
    """A server that is timed, and clients that are not."""

    def __init__(self, size: int, clients: int, frames: str) -> None:
        shapes = [(size // COLUMNS, COLUMNS)]
        self.server = ModelServer(PLANS[frames], torch.zeros(size), shapes=shapes)
        setup = self.server.plan.for_clients()
        self.clients = {
            str(number): (Uplink(setup, shapes), Replica(shapes, torch.zeros(size))) for number in range(clients)
        }
        for number, name in enumerate(self.clients):
            self.server.join(name, 100 + number)
        self.model = torch.zeros(size)
        drawn = np.random.default_rng(0).standard_t(2, (5, size))  # heavy-tailed, as real gradients are
        self.gradients = torch.from_numpy(drawn.astype(np.float32))
        self.forget()

    def forget(self) -> None:
        """Count from here."""
        self.seconds = {"each": 0.0, "once": 0.0}
        self.entries = self.up = self.down = 0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add this block to the server's seconds."""
        began = time.process_time()
        yield
        self.seconds[what] += time.process_time() - began

    def round(self) -> None:
        """One round."""
        with self.timed("each"):
            orders = self.server.orders(self.clients)
        frames = {}
        for number, (name, order) in enumerate(orders.items()):
            uplink, replica = self.clients[name]
            with self.timed("each"):
                download = self.server.download(name)
                self.server.arrived(name)
            self.down += len(download.frame)
            uplink.settle(order.accepted)
            replica.receive(download)
            drawn = self.gradients[(self.server.round + number) % len(self.gradients)]
            frames[name] = uplink.upload(drawn, order).frame
            self.up += len(frames[name])
        with self.timed("each"):
            uploads = [self.server.read(name, frame) for name, frame in frames.items()]
        with self.timed("once"):
            self.model -= 0.1 * self.server.total(uploads)
            self.server.advance(uploads, self.model)
        self.entries += sum(len(upload.update) for upload in uploads)


def measured(size: int, clients: int, frames: str) -> Cost:
    """The server's work in a round, after some that fill its memories."""
    federation = Federation(size, clients, frames)
    for _ in range(WARM):
        federation.round()
    federation.forget()
    for _ in range(ROUNDS):
        federation.round()
    visits, seconds = ROUNDS * clients, federation.seconds
    amounts = (federation.entries / visits, federation.up / visits, federation.down / visits)
    return Cost(size, clients, *amounts, seconds["each"] / visits, seconds["once"] / ROUNDS)


class Costs(NamedTuple):
    """Seconds: for a client, an entry of its upload and a parameter of the coder's memory; and once a round.

    The first download of a round looks at every parameter, which is `downloaded`.
    """

    client: float
    entry: float
    coded_parameter: float
    downloaded: float
    summed_entry: float
    parameter: float

    def each(self, entries: float, size: int) -> float:
        """For one client in one round."""
        return self.client + self.entry * entries + self.coded_parameter * size

    def once(self, clients: int, entries: float, size: int) -> float:
        """Once a round."""
        return self.summed_entry * clients * entries + (self.parameter + self.downloaded) * size


def fitted(costs: list[Cost], coded: bool) -> Costs:
    """What comes closest to what was measured, relative to it."""
    parts = [[1.0, cost.entries, cost.size * coded, cost.size / cost.clients] for cost in costs]
    each = _least(parts, [cost.each for cost in costs])
    once = _least([[cost.clients * cost.entries, cost.size] for cost in costs], [cost.once for cost in costs])
    return Costs(*each, *once)


def _least(rows: list[list[float]], seconds: list[float]) -> list[float]:
    """Least squares of relative errors; no cost is negative."""
    parts = np.array(rows) / np.array(seconds)[:, None]
    left = [place for place in range(parts.shape[1]) if parts[:, place].any()]
    while True:
        found: NDArray[np.float64] = np.linalg.lstsq(parts[:, left], np.ones(len(seconds)), rcond=None)[0]
        if (found >= 0).all():
            break
        left.pop(int(found.argmin()))
    result = np.zeros(parts.shape[1])
    result[left] = found
    return [float(value) for value in result]


class Bytes(NamedTuple):
    """Memory of the server: per member that it knows, per parameter, and of the coder per client and parameter."""

    member: float
    parameter: float
    coder: float


def memory() -> Bytes:
    """What Python and numpy have allocated."""
    tracemalloc.start()
    server = Server(Plan(method="dagc-r", ratio=0.001), 10)
    before, _ = tracemalloc.get_traced_memory()
    for number in range(MEMBERS):
        server.join(f"client-{number}", number)
    members = (tracemalloc.get_traced_memory()[0] - before) / MEMBERS
    size = 2_000_000
    before, _ = tracemalloc.get_traced_memory()
    large = ModelServer(PLANS["updates"], torch.zeros(size))
    for _ in range(3):
        large.orders([])
        large.advance([], torch.randn(size))
    parameters = (tracemalloc.get_traced_memory()[0] - before) / size
    tracemalloc.stop()
    return Bytes(members, parameters, Memory([10**6], clocks=False).nbytes / 10**6)


def in_words(seconds: float) -> str:
    """A time as people write it.

    Example:
        >>> in_words(0.0123), in_words(75), in_words(9000)
        ('12 ms', '1.2 min', '2.5 h')
    """
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:,.{int(seconds < 10 * size)}f} {unit}"
    return f"{1e6 * seconds:.0f} µs"


def measured_row(frames: str, cost: Cost, found: Costs | None) -> list[str]:
    """A row of what was measured, with the fit in brackets once there is one."""
    numbers = f"{cost.size:,}", f"{cost.clients:,}", f"{cost.entries:,.0f}", f"{cost.up:,.0f}", f"{cost.down:,.0f}"
    each, once = in_words(cost.each), in_words(cost.once)
    if found is not None:
        downloaded = found.downloaded * cost.size  # of which "for each client" has a share, and "once" nothing
        each += f" ({in_words(found.each(cost.entries, cost.size) + downloaded / cost.clients)})"
        once += f" ({in_words(found.once(cost.clients, cost.entries, cost.size) - downloaded)})"
    return [frames, *numbers, each, once]


def cost_rows(costs: dict[str, Costs], per_byte: dict[str, float], held: Bytes) -> list[list[str]]:
    """What a server needs for one of each, by the kind of frames."""
    lines: dict[str, Callable[[str], str]] = {
        "CPU for each client in a round": lambda frames: _short(costs[frames].client),
        "… and per entry of its upload": lambda frames: _short(costs[frames].entry),
        "… and per parameter of the model": lambda frames: _short(costs[frames].coded_parameter),
        "CPU once a round, per entry of all uploads": lambda frames: _short(costs[frames].summed_entry),
        "CPU once a round, per parameter": lambda frames: _short(costs[frames].parameter + costs[frames].downloaded),
        "entries per uploaded byte": lambda frames: f"{per_byte[frames]:.2f}",
        "memory for each client ever seen": lambda frames: f"{held.member:.0f} B",
        "memory per parameter": lambda frames: f"{held.parameter + MODEL:.0f} B",
        "memory per client and parameter": lambda frames: f"{held.coder:.1f} B" if frames == "coded" else "",
    }
    return [[name, *(cell(frames) for frames in costs)] for name, cell in lines.items()]


def _short(seconds: float) -> str:
    """A small time.

    Example:
        >>> _short(42e-6), _short(24.2e-9), _short(0.0)
        ('42 µs', '24 ns', '')
    """
    if not seconds:
        return ""
    number, unit = (1e6 * seconds, "µs") if seconds >= 1e-6 else (1e9 * seconds, "ns")
    return f"{number:.{int(number < 10)}f} {unit}"


def product(cell: Callable[[int, int], str]) -> list[list[str]]:
    """Rows over all numbers of clients, columns over all sizes."""
    return [[f"{clients:,}", *(cell(clients, size) for size in SIZES)] for clients in CLIENTS]


def main() -> None:
    """Measure, fit, multiply out, show."""
    record = arguments(__doc__).parse_args().record
    torch.set_num_threads(1)
    some: dict[str, list[Cost]] = {frames: [] for frames in MEASURED}
    costs: dict[str, Costs] = {}
    notes, wanted = ["CPU time of one thread"], sum(map(len, MEASURED.values()))
    with kept("scale-measured", "Measured (fitted)", MEASURED_HEADS, record, notes, wanted) as sheet:
        for frames, settings in MEASURED.items():
            Federation(10**4, 3, frames).round()  # compiles the kernels
            for size, clients in settings:
                some[frames].append(measured(size, clients, frames))
                sheet.add(measured_row(frames, some[frames][-1], None))
            costs[frames] = fitted(some[frames], frames == "coded")
            sheet.rows[-len(settings) :] = [measured_row(frames, cost, costs[frames]) for cost in some[frames]]
    per_byte = {frames: float(np.mean([cost.entries / cost.up for cost in some[frames]])) for frames in some}
    held = memory()
    notes = [
        "Where a cell is empty, the fit found no cost",
        f"With coded frames, what is remembered of all clients takes up to {in_bytes(MEMORIES)} together",
    ]
    show("scale-costs", "Fitted costs", ["", *costs], cost_rows(costs, per_byte, held), record, notes)

    def cpu(clients: int, size: int) -> str:
        entries = per_byte["updates"] * level_bytes(size)
        found = costs["updates"]
        return in_words(clients * found.each(entries, size) + found.once(clients, entries, size))

    def space(clients: int, size: int) -> str:
        return in_bytes(clients * held.member + (held.parameter + MODEL) * size)

    powers = [f"10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[round(math.log10(size))]}" for size in SIZES]
    heads = ["clients", f"{powers[0]} parameters", *powers[1:]]
    title = "CPU of one core in a round of all these clients"
    auto = ["With the default method and its default bytes"]
    show("scale-cpu", title, heads, product(cpu), record, auto)
    show("scale-memory", "Memory of the server", heads, product(space), record, auto)
    sent = product(lambda clients, size: in_bytes(clients * level_bytes(size)))
    show("scale-bytes", "Bytes up in a round, and as many down", heads, sent, record)


if __name__ == "__main__":
    main()
