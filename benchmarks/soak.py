"""A soak: the server's half with many clients for many rounds; memory, state and time per round must stay flat.

    python -m benchmarks.soak                              # 1,000 clients, 10,000 rounds, 5 % failures
    python -m benchmarks.soak --clients 200 --rounds 2000  # a shorter one
    python -m benchmarks.soak --method dagc-r              # entries instead of updates
    python -m benchmarks.soak --record                     # keeps the table for docs/studies/faults.md

All clients are asked in every round; an order or an upload in twenty is lost. At the end, what was delivered and what a
client keeps must be everything it computed: to rounding, and for entries to the bit, since gradients are whole
multiples of 1/64, whose sums are exact.
After every tenth of the rounds the server is made again from its state, as after a restart. Times are per round, of the
server alone; the time of the processor is what must stay flat, since other programs can slow the clock's.
"""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.tables import arguments, kept
from dagc.draws import scramble
from dagc.policies import Plan
from dagc.protocol import ModelServer, Uplink
from dagc.state import load_state, save_state
from dagc.updates import Update

SIZE = 500
PLANS = {
    "dagc": Plan(method="dagc", bytes=16),
    "dagc-r": Plan(method="dagc-r", bytes=16, values="fp32", overhead=0.25),
}
BYTES = 16
GRADIENTS = 64
FAILURES = 0.05
HEADS = [
    "rounds", "server, ms per round", "CPU, ms per round", "memory, MB", "state, bytes",
    f"sent, bytes per client and round ({BYTES} allowed)",
]  # fmt: skip


class Part(NamedTuple):
    """What a tenth of the rounds took."""

    rounds: int
    milliseconds: float
    cpu: float
    megabytes: float
    state: int
    sent: int


def gradients() -> torch.Tensor:
    """Some gradients, one after the other for each client; small whole multiples of 1/64."""
    drawn = np.random.default_rng(0).integers(-3, 4, (GRADIENTS, SIZE)) ** 3
    return torch.from_numpy(drawn.astype(np.float32) / 64)


def megabytes() -> float:
    """What this process holds now; where the system does not say, the most that it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 1e6


class Soak:
    """A federation in this process, without a model to train."""

    def __init__(self, clients: int, plan: Plan) -> None:
        self.plan, self.server = plan, ModelServer(plan, torch.zeros(SIZE))
        setup = self.server.plan.for_clients()
        self.clients = {str(number): Uplink(setup, [SIZE]) for number in range(clients)}
        for number, name in enumerate(self.clients):
            self.server.join(name, 1 + number)
        self.gradients = gradients()
        self.computed = np.zeros((clients, SIZE))
        self.delivered = np.zeros((clients, SIZE))
        self.sent = self.lost = 0
        self.seconds = self.cpu = 0.0

    def fails(self, what: int, number: int) -> bool:
        """Whether a message of this round is lost."""
        key = scramble(scramble(scramble(1, self.server.round), number), what)
        return key < FAILURES / 2 * 2.0**64

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what is done here as the server's own work: seconds by the clock, and of the processor."""
        clock, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - clock
        self.cpu += time.process_time() - cpu

    def round(self) -> None:
        """One round; only the server's own work is timed."""
        with self.timed():
            orders = self.server.orders(self.clients)
        frames = []
        for number, (name, order) in enumerate(orders.items()):
            if self.fails(0, number):
                self.lost += 1
                continue
            client, drawn = self.clients[name], (self.server.round + 7 * number) % GRADIENTS
            client.settle(order.accepted)
            frame = client.upload(self.gradients[drawn], order).frame
            self.computed[number] += self.gradients[drawn].numpy()
            self.sent += len(frame)
            if self.fails(1, number):
                self.lost += 1
            else:
                frames.append((name, frame))
        with self.timed():
            uploads = [self.server.read(name, frame) for name, frame in frames]
            self.server.advance(uploads, self.server.target - self.server.total(uploads))
            self.server.introduction()
        for upload in uploads:
            update = upload.update
            sparse = update.sparse if isinstance(update, Update) else update  # one vector has no terms
            self.delivered[int(upload.client), sparse.indices] += sparse.values

    def restart(self, folder: str) -> int:
        """Make the server again from its file; returns how many bytes that has."""
        path = Path(folder) / "state"
        save_state(path, "soak", 1, self.server.state_dict())
        self.server = ModelServer(self.plan, torch.zeros(SIZE))
        self.server.load_state_dict(load_state(path, "soak", 1))
        return path.stat().st_size

    def unbalanced(self) -> int:
        """How many clients' books do not balance."""
        wrong = 0
        for number, (name, client) in enumerate(self.clients.items()):
            client.settle(self.server.members[name].accepted_round)
            kept = client.feedback.residual.numpy().astype(np.float64)
            exact, has = self.computed[number], self.delivered[number] + kept
            close = np.allclose(has, exact, rtol=0, atol=1e-5 * (1 + np.abs(exact).max()))
            wrong += not (close if self.plan.method_spec.encodes else np.array_equal(has, exact))
        return wrong


def tenth(soak: Soak, until: int) -> Part:
    """Rounds up to this one, and a restart."""
    rounds = until - soak.server.round
    soak.seconds, soak.cpu, sent = 0.0, 0.0, soak.sent
    for _ in range(rounds):
        soak.round()
    clock, cpu = (1000 * seconds / max(1, rounds) for seconds in (soak.seconds, soak.cpu))
    held = megabytes()
    with TemporaryDirectory() as folder:
        return Part(soak.server.round, clock, cpu, held, soak.restart(folder), soak.sent - sent)


def main() -> int:
    """Run it, print a line for every tenth, and say what did not stay flat."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--method", choices=list(PLANS), default="dagc")
    options = parser.parse_args()
    torch.set_num_threads(1)
    soak, parts = Soak(options.clients, PLANS[options.method]), list[Part]()
    with kept("soak", f"A server with {options.clients:,} clients", HEADS, options.record, wanted=10) as sheet:
        for number in range(10):
            before = soak.server.round
            parts.append(tenth(soak, options.rounds * (number + 1) // 10))
            sheet.add(row(parts[-1], before, options.clients))
        wrong = failures(soak, parts, options.rounds)
        verdict = wrong or ["The books of all clients balance, and all other promises held"]
        sheet.notes += [f"{soak.lost:,} messages were lost", *verdict]
    return int(bool(wrong))


def row(part: Part, before: int, clients: int) -> list[str]:
    """A row of the table: what the rounds since `before` took."""
    each = part.sent / max(1, part.rounds - before) / clients
    times = f"{part.milliseconds:.1f}", f"{part.cpu:.1f}"
    return [f"{part.rounds:,}", *times, f"{part.megabytes:.1f}", f"{part.state:,}", f"{each:.2f}"]


def failures(soak: Soak, parts: list[Part], rounds: int) -> list[str]:
    """Which promises did not hold."""
    wrong, first, last = soak.unbalanced(), parts[1], parts[-1]
    allowed = BYTES * len(soak.clients) * rounds
    promises = {
        f"The books of {wrong} clients do not balance": wrong == 0,
        f"{soak.sent:,} bytes were sent and {allowed:,.0f} allowed": soak.sent <= allowed,
        f"Memory has grown from {first.megabytes:.1f} to {last.megabytes:.1f} MB": (
            last.megabytes < 1.05 * first.megabytes + 2
        ),
        f"The state has grown from {first.state:,} to {last.state:,} bytes": last.state < 1.1 * first.state,
        f"A round took {first.cpu:.2f} ms of the processor and takes {last.cpu:.2f} ms": last.cpu < 1.5 * first.cpu,
    }
    return [words for words, held in promises.items() if not held]


if __name__ == "__main__":
    sys.exit(main())
