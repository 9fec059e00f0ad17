"""Hostile bytes for updates: mutated and forged frames with repaired checksums, to a server and to a client.

    python -m benchmarks.update_attack                     # a million, about half an hour
    python -m benchmarks.update_attack --frames 20000      # fewer; --seed for others
    python -m benchmarks.update_attack --record            # and keep the table for docs/explanation/reliability.md

A frame is flipped, cut, extended, shuffled, spliced or made up, or written as a sender would who wants to do harm: as
many terms as possible, the largest factors, levels and scales. Then it is sealed again, and goes through `Server.read`
or `Replica.receive`. Both may refuse it with one of the library's own errors. What the server reads must be as long as
ordered at most, finite, and the same when it is read again; what is refused must leave no trace. Anything else ends the
run with an error.
"""

import sys
import time
import tracemalloc
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.tables import arguments, kept
from dagc.errors import DagcError
from dagc.policies import Plan
from dagc.protocol import Download, ModelServer, Order, Replica
from dagc.updates import decode_update, encode_dense, encode_update
from dagc.updates.frame import MIXED, Entries, code_entries, code_head, code_terms, seal
from dagc.updates.stream import Stream
from dagc.updates.update import Terms, Update
from dagc.wire.shapes import extents

Shapes = list[tuple[int, ...]]
MODELS: tuple[tuple[Shapes, int], ...] = (
    ([(1,)], 40),
    ([(4, 6), (4,)], 40),
    ([(10, 60), (10,)], 90),
    ([(12, 3, 3, 3), (12,), (10, 48), (10,)], 200),
    ([(9, 1), (300,), (1, 40), (2, 500)], 150),
    ([(40, 200), (40,), (60, 60)], 1500),  # frames beyond 1023 bytes
)
"""Shapes, and the bytes of an order."""
LARGEST = 2.0**102
"""No entry is larger: terms, entries and what is added to them."""
PROGRESS = 100_000
SAMPLED = 97
"""Of so many frames, the memory that one takes is measured."""
EXPLAINED = {
    "frames": "hostile frames",
    "uploads": "… to a server",
    "downloads": "… to a client",
    "refused": "refused",
    "empty": "read, and says nothing",
    "read": "read as an update: finite and within its order",
    "slowest": "CPU time of the slowest frame, in ms",
    "memory": "largest memory that a frame took, in kB",
}


class Target(NamedTuple):
    """A server that waits for an upload, a client that waits for a download, and honest frames for both."""

    shapes: Shapes
    size: int
    server: ModelServer
    order: Order
    replica: Replica
    frames: list[bytes]
    dense: list[bytes]


class Attack:
    """Hostile frames for some models."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.targets = [self._target(shapes, amount) for shapes, amount in MODELS]
        self.counts: Counter[str] = Counter(dict.fromkeys(EXPLAINED, 0))
        self.slowest = self.memory = 0.0

    def run(self, frames: int) -> Counter[str]:
        """Try that many more; how often each thing has happened so far."""
        counts = self.counts
        for number in range(counts["frames"], counts["frames"] + frames):
            target = self.targets[number % len(self.targets)]
            up = self.rng.random() < 0.7
            frame = self._sealed(target, up)
            measure = number % SAMPLED == 0
            if measure:
                tracemalloc.start()
            began = time.process_time()
            try:
                outcome = self._upload(target, frame) if up else self._download(target, frame)
            except DagcError:
                outcome = "refused"
            seconds = time.process_time() - began
            if measure:
                self.memory = max(self.memory, tracemalloc.get_traced_memory()[1] / 1000)
                tracemalloc.stop()
            else:
                self.slowest = max(self.slowest, seconds)
            counts["frames"] += 1
            counts["uploads" if up else "downloads"] += 1
            counts[outcome] += 1
        counts["slowest"], counts["memory"] = round(1000 * self.slowest), round(self.memory)
        return counts

    def check(self) -> None:
        """Nobody has changed: the books are as before."""
        for target in self.targets:
            fresh = self._server(target.shapes, len(target.server.model), target.order.amount)
            target.server.out_of_sync("client")  # with an upload that was read, it had the newest model
            before, after = fresh.state_dict(), target.server.state_dict()
            assert str(before["roster"]) == str(after["roster"])
            assert before["receiver"] == after["receiver"]
            assert target.server.round == 0
            assert (target.replica.version, float(target.replica.model.abs().sum())) == (0, 0.0)  # type: ignore[union-attr]

    def _server(self, shapes: Shapes, size: int, amount: int) -> ModelServer:
        server = ModelServer(Plan(method="dagc", bytes=amount), torch.zeros(size), shapes=shapes)
        server.join("client", 100)
        server.orders(["client"])
        return server

    def _target(self, shapes: Shapes, amount: int) -> Target:
        size = sum(rows * columns for _, rows, columns in extents(shapes))
        server = self._server(shapes, size, amount)
        order = server._orders["client"]
        frames, dense = [], []
        for scale in (1e-20, 1e-3, 1.0, 30.0, 1e20):
            vector = self.rng.standard_t(3, size) * scale
            for start, rows, columns in extents(shapes):
                term = np.outer(self.rng.standard_normal(rows), self.rng.standard_normal(columns))
                vector[start : start + rows * columns] += 5 * scale * term.ravel()
            whole = torch.from_numpy(vector.astype(np.float32))
            frames.append(encode_update(whole, shapes, order.amount, round=order.stamp)[0])
            dense += [encode_dense(whole, shapes, bits, round=order.stamp)[0] for bits in (2, 4, 7, 8)]
        replica = Replica(shapes, torch.zeros(size))
        return Target(shapes, size, server, order, replica, [frame for frame in frames if frame], dense)

    def _upload(self, target: Target, frame: bytes) -> str:
        server, order = target.server, target.order
        update = server.read("client", frame).update
        server._orders["client"] = order  # as before: this one is not accepted
        if server.budget.account is not None:
            server.budget.account.spend(order.amount - len(frame))
        assert isinstance(update, Update)
        assert len(frame) <= order.amount, "more bytes than ordered"
        dense = update.dense()
        assert bool((dense.abs() < LARGEST).all()), "an entry that is too large"
        assert 0 <= update.norm() < LARGEST * target.size
        assert update == decode_update(frame, target.shapes, round=order.stamp), "other bits the second time"
        assert len(update) <= 400 * len(frame) + 800 + target.size * 255
        return "read" if len(update) else "empty"

    def _download(self, target: Target, frame: bytes) -> str:
        replica, before = target.replica, target.replica.model
        version, steps = (-1, 0) if self.rng.random() < 0.3 else (1, int(self.rng.integers(2)))
        since = -1 if version < 0 else 0
        try:
            replica.receive(Download(since, version, int(self.rng.integers(1 << 32)), steps, frame))
        finally:
            assert replica.model is before, "a download that was refused has left a trace"
            replica.memory = None
        return "read"

    def _sealed(self, target: Target, up: bool) -> bytes:
        """A hostile frame with the right checksum."""
        rng = self.rng
        if rng.random() < 0.3:
            body = self._forged(target)
        else:
            pool = target.frames if up or rng.random() < 0.5 else target.dense
            frame = pool[rng.integers(len(pool))]
            body = self._mutated(frame[: -2 if len(frame) < 1024 else -4], target)
        stamp = target.order.stamp if up or rng.random() < 0.5 else 0
        return seal(body or b"\xb0", target.shapes, stamp)

    def _mutated(self, body: bytes, target: Target) -> bytes:
        rng, data = self.rng, bytearray(body)
        for _ in range(int(rng.integers(1, 4))):
            kind, at = rng.integers(8), int(rng.integers(len(data))) if data else 0
            if kind < 2 and data:
                data[at] ^= 1 << int(rng.integers(8))
            elif kind == 2 and data:
                data[at] = int(rng.choice([0, 255, 0xB0, 0xC8, int(rng.integers(256))]))
            elif kind == 3:
                del data[at:]
            elif kind == 4:
                data += rng.bytes(int(rng.integers(1, 9)))
            elif kind == 5:
                end = at + int(rng.integers(1, 9))
                data[at:end] = bytes(data[at + place] for place in rng.permutation(len(data[at:end])))
            elif kind == 6:
                other = target.frames[rng.integers(len(target.frames))] if target.frames else b""
                data[at:] = other[at:-2]
            else:
                length = int(rng.integers(1, 40))
                data[at : at + length] = bytes([int(rng.choice([0, 255]))]) * length
        return bytes(data)

    def _forged(self, target: Target) -> bytes:
        """What a sender writes who knows the format: many terms, huge levels, or noise."""
        rng = self.rng
        if rng.random() < 0.2:
            return bytes([int(rng.choice([0xB0, 0xC2, 0xC4, 0xC8, 0xB1, 0xCF]))]) + rng.bytes(int(rng.integers(0, 60)))
        stream = Stream(np.zeros(4 * target.order.amount + 4096, dtype=np.uint8), writing=True)
        step = int(rng.integers(-2048, 2048)) if rng.random() < 0.3 else int(rng.integers(-200, 200))
        terms = self._terms(target, step) if rng.random() < 0.7 else []
        try:
            code_head(stream, step, bool(terms))
            if terms:
                code_terms(stream, step, target.shapes, terms)
            count = int(rng.integers(0, min(target.size, 60) + 1))
            indices = np.sort(rng.permutation(target.size)[:count])
            high = int(rng.choice([2, 10, 65536]))
            levels = rng.integers(1, high, count) * rng.choice([-1, 1], count)
            moved = Entries(indices, levels, int(step + rng.integers(-40, 40)), (7, -8, 0))
            code_entries(stream, step, target.shapes, moved)
        except DagcError:  # what it would say is refused where it is written
            return bytes([MIXED]) + stream.data[: stream.used].tobytes()
        body = stream.finish()
        return bytes([MIXED]) + (b"" if body is None else body)

    def _terms(self, target: Target, step: int) -> list[Terms]:
        rng, terms = self.rng, []
        for start, rows, columns in extents(target.shapes):
            if min(rows, columns) < 2 or rng.random() < 0.3:
                continue
            rank = int(rng.choice([1, 2, min(rows, columns, 255), min(rows, columns, 255) + 1]))
            most = int(rng.choice([1, 2, 8, 128]))
            left = rng.integers(-most + 1, most, (rank, rows)).astype(np.int8)
            right = rng.integers(-most + 1, most, (rank, columns)).astype(np.int8)
            scales = rng.integers(16, 32, rank) << rng.integers(0, int(rng.choice([1, 4, 20])), rank)
            exponent = step // 16 + int(rng.integers(-3, 4)) + int(rng.choice([0, 0, 90, -90]))
            terms.append(Terms(start, left, right, scales.astype(np.int64), exponent))
        return terms


def main() -> int:
    """Attack, and show what came of it."""
    parser = arguments(__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    attack = Attack(options.seed)
    attack.run(len(MODELS) * 10)  # compiles the kernels
    attack.counts, attack.slowest = Counter(dict.fromkeys(EXPLAINED, 0)), 0.0
    title = "Updates: hostile frames with right checksums"
    with kept("update-attack", title, ["", "number"], options.record, wanted=len(EXPLAINED)) as sheet:
        done = 0
        while done < options.frames:
            counts = attack.run(min(PROGRESS, options.frames - done))
            done = counts["frames"]
            print(f"{done:,} frames", file=sys.stderr, flush=True)
        attack.check()
        for name, about in EXPLAINED.items():
            sheet.add([about, f"{attack.counts[name]:,}"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
