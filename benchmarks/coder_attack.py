"""Hostile bytes for the coder: mutated frames with repaired checksums, and what becomes of them.

    python -m benchmarks.coder_attack            # a million, about five minutes; --frames and --seed for others
    python -m benchmarks.coder_attack --record   # and keep the table for docs/studies/coder.md

A frame is flipped, cut, extended, shuffled or made up, and sealed again; every fourth is written as a sender would, of
other entries, since few mutations leave the coder's last bytes right. The receiver may refuse it with
`MalformedPayload`, or take it: then its entries must be in order, no more than expected, and write to the same bytes.
A receiver that has counted such a frame no longer agrees with the sender, which counts what it sent: the sender's next
frame must be refused. Anything else ends the run with an error.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.tables import arguments, kept
from dagc.errors import MalformedPayload
from dagc.sparse import Sparse
from dagc.wire import VALUE_CODECS, Memory, decode, is_coded, quantize
from dagc.wire.frame import CODED_FIRST, checksum, encode_coded
from dagc.wire.shapes import Shapes

MODELS: tuple[tuple[Shapes, int], ...] = (
    ([1], 1),
    ([(4, 6), 4], 5),
    ([(10, 60), 10], 25),
    ([(12, 3, 3, 3), 12, (10, 48), 10], 60),
    ([(9, 1), 300, (1, 40)], 12),
    ([(20, 200)], 900),  # frames beyond 1023 bytes
)
"""Shapes, and how many entries are sent."""
NAMES = {codec.id: name for name, codec in VALUE_CODECS.items()}
LAST = "noticed two frames later"
EXPLAINED = {
    "frames": "hostile frames",
    "refused": "refused",
    "not coded": "… of these, no longer marked as coded",
    "compact": "read as a frame that is not coded",
    "taken": "read as a coded frame",
    "unchanged": "… of these, with the entries that were sent (values may differ)",
    "noticed": "… of these, other entries, noticed at the next frame",
    LAST: "… of these, noticed at the one after: 16 bits of checksum agreed by chance",
    "slowest": "CPU time of the slowest frame, in ms",
}
PROGRESS = 100_000
"""Frames between two signs of life."""


class Connection(NamedTuple):
    """A receiver, the frame that is on its way to it, and the frames that follow."""

    shapes: Shapes
    values: str
    memory: Memory
    most: int | None
    sparse: Sparse
    payload: bytes
    sent: Memory
    upcoming: tuple[Sparse, ...]


class Attack:
    """Mutated frames for some connections."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.connections = list(self._connections())
        self.counts: Counter[str] = Counter(dict.fromkeys(EXPLAINED, 0))
        self.slowest = 0.0

    def run(self, frames: int) -> Counter[str]:
        """Try that many more; how often each thing has happened so far."""
        counts = self.counts
        for number in range(counts["frames"], counts["frames"] + frames):
            connection = self.connections[number % len(self.connections)]
            payload = self._forged(connection) if self.rng.random() < 0.25 else self._mutated(connection)
            started = time.process_time()
            try:
                sparse = self._read(connection, payload)
            except MalformedPayload:
                counts["refused"] += 1
                sparse = None
            self.slowest = max(self.slowest, time.process_time() - started)
            if not is_coded(payload):
                counts["not coded" if sparse is None else "compact"] += 1
            elif sparse is not None:
                counts["taken"] += 1
                counts[self._after(connection, payload, sparse)] += 1
            counts["frames"] += 1
            counts["slowest"] = round(1000 * self.slowest)
        return counts

    def _connections(self) -> Iterator[Connection]:
        """All kinds: with and without clocks, signs, a known number of entries, an empty memory."""
        for shapes, count in MODELS:
            for values in ("sign", "fp32", "int8"):
                for clocks in (True, False):
                    for history in (0, 1, 6):
                        yield self._connection(shapes, count, values, clocks, history)

    def _connection(self, shapes: Shapes, count: int, values: str, clocks: bool, history: int) -> Connection:
        rng, signs = self.rng, values == "sign"
        memory = Memory(shapes, clocks, signs)
        scale = rng.standard_t(3, memory.size) ** 2
        residual = np.zeros(memory.size)

        def drawn(entries: int) -> Sparse:
            residual[:] += scale * (rng.standard_normal(memory.size) + 0.5)
            indices = np.sort(np.argpartition(np.abs(residual), -entries)[-entries:])
            exact = residual[indices].astype(np.float32)
            residual[indices] = 0
            return Sparse(memory.size, indices, quantize(exact, values))

        for _ in range(history):
            memory.learn(drawn(count))
        sent = Memory(shapes, clocks, signs) if history == 1 else _copy(memory, shapes)  # 1: a sender that starts again
        sparse, most = drawn(max(1, count - int(rng.integers(2)))), count if rng.random() < 0.7 else None
        payload = _frame(sparse, values, sent, most)
        sent.learn(sparse)
        return Connection(shapes, values, memory, most, sparse, payload, sent, (drawn(count), drawn(count)))

    def _mutated(self, connection: Connection) -> bytes:
        rng = self.rng
        body = bytearray(connection.payload[: -2 if len(connection.payload) < 1024 else -4])
        for _ in range(rng.integers(1, 4)):
            kind, at = rng.integers(12), int(rng.integers(len(body)))
            if kind < 5:
                body[at] ^= 1 << int(rng.integers(8))
            elif kind == 5:
                body[at] = int(rng.integers(256))
            elif kind == 6:
                del body[at : at + int(rng.integers(1, 5))]
            elif kind == 7:
                body[at:at] = rng.bytes(int(rng.integers(1, 5)))
            elif kind == 8:
                body += rng.bytes(int(rng.integers(1, 5)))
            elif kind == 9:
                other = int(rng.integers(len(body)))
                body[at], body[other] = body[other], body[at]
            elif kind == 10:
                body[0] ^= 0x10  # an empty memory instead, or the other way round
            else:
                body[at + 1 :] = rng.bytes(int(rng.integers(len(body) + 4)))
            body = body or bytearray(b"\0")
        if rng.random() < 0.05:
            return bytes(body) + rng.bytes(2)
        coded = connection.memory if is_coded(body) else None
        return bytes(body) + checksum(bytes(body), connection.memory.size, 0, coded, connection.most)

    def _forged(self, connection: Connection) -> bytes:
        """A frame that nobody sent, of nearly the same entries, or of any."""
        rng, sparse, size = self.rng, connection.sparse, connection.memory.size
        most = size if connection.most is None else connection.most
        indices, values = sparse.indices, sparse.values
        kind = rng.integers(4)
        if kind == 0:  # other positions
            toggled = rng.choice(size, int(rng.integers(1, min(size, 4) + 1)), replace=False)
            indices = np.setxor1d(indices, toggled)[:most]
        elif kind == 1:  # any positions
            indices = np.sort(rng.choice(size, int(rng.integers(min(size, most) + 1)), replace=False))
        elif kind == 2:  # another magnitude
            values = values * np.float32(2.0 ** rng.integers(-9, 9))
        values = np.resize(values, len(indices))
        flipped = rng.random(len(indices)) < (0.5 if kind else 0.05)
        forged = Sparse(size, indices, quantize(np.where(flipped, -values, values), connection.values))
        empty = Memory(connection.shapes, connection.memory.clocks, connection.memory.signs)
        return _frame(forged, connection.values, empty if rng.random() < 0.3 else connection.memory, connection.most)

    def _read(self, connection: Connection, payload: bytes) -> Sparse:
        memory, most = connection.memory, connection.most
        sparse = decode(payload, memory.size, memory=memory, most=most)
        Sparse(sparse.size, sparse.indices, sparse.values)  # sorted, each once, in range, finite
        if is_coded(payload):
            assert sparse.size == memory.size
            assert len(sparse) <= (memory.size if most is None else most)
        return sparse

    def _after(self, connection: Connection, payload: bytes, sparse: Sparse) -> str:
        """When the receiver, having counted this frame, notices."""
        receiver = _copy(connection.memory, connection.shapes)
        writer = receiver if payload[0] >> 4 == 8 else Memory(connection.shapes, receiver.clocks, receiver.signs)
        if writer.frames or payload[0] >> 4 == CODED_FIRST:  # 8 with an empty memory is never written
            values = connection.values if receiver.signs else NAMES[payload[0] & 15]
            again = _frame(sparse, values, writer, connection.most)
            same = len(payload) if receiver.signs else len(payload) - len(_values(sparse, values))
            assert again[: same - 4] == payload[: same - 4], "written again, it is not the same"
        read = decode(payload, receiver.size, memory=receiver, most=connection.most)
        receiver.learn(read)
        sent = _copy(connection.sent, connection.shapes)
        if receiver.fingerprint == sent.fingerprint:
            assert all(np.array_equal(value, sent.state_dict()[name]) for name, value in receiver.state_dict().items())
            return "unchanged"
        for when, upcoming in zip(("noticed", LAST), connection.upcoming, strict=False):
            frame = _frame(upcoming, connection.values, sent, connection.most)
            try:
                receiver.learn(decode(frame, receiver.size, memory=receiver, most=connection.most))
            except MalformedPayload:
                return when
            sent.learn(upcoming)
        raise AssertionError("two memories that differ went on unnoticed")


def _frame(sparse: Sparse, values: str, memory: Memory, most: int | None) -> bytes:
    """A coded frame, even where another one would be smaller."""
    frame = encode_coded(sparse, VALUE_CODECS[values], 0, memory, most, 1 << 20)
    assert frame is not None
    return frame


def _values(sparse: Sparse, values: str) -> bytes:
    return VALUE_CODECS[values].write(sparse.values)


def _copy(memory: Memory, shapes: Shapes) -> Memory:
    return Memory.restored(shapes, memory.state_dict())


def main(frames: int = 1_000_000, seed: int = 0, record: bool = False) -> Counter[str]:
    """Try them, print what happened, return it."""
    started, attack, done = time.perf_counter(), Attack(seed), 0
    with kept("coder-attack", "Hostile frames for the coder", ["", "frames"], record, [f"Seed {seed}"]) as sheet:
        while done < frames:
            sheet.missing = [f"{done:,} of {frames:,} frames"]
            counts = attack.run(min(PROGRESS, frames - done))
            done = counts["frames"]
            sheet.rows = [[words, f"{counts[name]:,}"] for name, words in EXPLAINED.items()]
            print(f"{done:,} of {frames:,} frames, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        sheet.missing = []
    return attack.counts


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many; 1,000,000 if not given")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    main(options.frames, options.seed, options.record)
