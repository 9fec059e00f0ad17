"""What the coder saves and takes: bytes per entry in real trainings, what each context is worth, time by model size.

    python -m benchmarks.coder payload            # bits per entry with and without the coder; --cells to choose
    python -m benchmarks.coder contexts           # the same with one context left out at a time
    python -m benchmarks.coder time               # nanoseconds per entry of the model
    python -m benchmarks.coder tables             # the first tables, made from trainings with a seed of their own

Trainings send compact frames; every upload is also coded, with memories of its own, as if it were sent like that.
`--record` keeps coder-payload, coder-contexts or coder-time for `docs/studies/coder.md`.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np

from benchmarks.tables import arguments, kept
from dagc.data import data_folder
from dagc.errors import MissingData
from dagc.sparse import Sparse
from dagc.training import Config, Federation
from dagc.wire import Memory, encode
from dagc.wire.coder import TABLES
from dagc.wire.shapes import Shapes
from research import STAND_INS

SIGNS: dict[str, Any] = {"values": "sign", "first_model": "drawn", "method": "dagc-r"}
LOGISTIC: dict[str, Any] = {**SIGNS, "task": "logistic@fashion-mnist", "overhead": 0.125, "learning_rate": 0.1}
CNN: dict[str, Any] = {**SIGNS, "task": "cnn@cifar-10", "learning_rate": 0.05, "rounds": 100}
DIGITS = data_folder() / STAND_INS["speech-commands"].data
SPOKEN: dict[str, Any] = {**SIGNS, "task": f"lstm@{DIGITS}"}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "130": ("Logistic, 1 local step, 130 bytes a round", {**LOGISTIC, "bytes": 13, "rounds": 600}),
    "640": ("Logistic, 1 local step, 640 bytes a round", {**LOGISTIC, "bytes": 64, "rounds": 400}),
    "both": (
        "Logistic, 1 local step, 300 bytes a round and a budget down",
        {**LOGISTIC, "bytes": 30, "rounds": 400, "down": "same", "learning_rate": 0.2},
    ),
    "20": (
        "Logistic, 20 local steps, 640 bytes a round, the first 60 rounds",
        {**LOGISTIC, "bytes": 64, "local_steps": 20, "rounds": 60, "learning_rate": 0.2},
    ),
    "20both": (
        "Logistic, 20 local steps, 640 bytes a round and a budget down, the first 60 rounds",
        {**LOGISTIC, "bytes": 64, "local_steps": 20, "rounds": 60, "learning_rate": 0.2, "down": "same"},
    ),
    "iid": (
        "Logistic, iid labels, 130 bytes a round",
        {**LOGISTIC, "bytes": 13, "rounds": 600, "partition": "iid:clients=10"},
    ),
    "one": (
        "Logistic, one client of ten takes part, 130 bytes a round",
        {**LOGISTIC, "bytes": 130, "rounds": 600, "participation": 0.1},
    ),
    "mlp": ("MLP@FMNIST, 0.1 %", {**LOGISTIC, "task": "mlp@fashion-mnist", "ratio": 0.001, "rounds": 100}),
    "cnn1": ("CNN@CIFAR-10, 0.1 %", {**CNN, "ratio": 0.001}),
    "cnn10": ("CNN@CIFAR-10, 1 %", {**CNN, "ratio": 0.01}),
    "lstm": (
        "LSTM, spoken digits (AudioMNIST), 0.1 %",
        {**SPOKEN, "ratio": 0.001, "rounds": 60, "learning_rate": 0.1, "batch_size": 8},
    ),
    "int8": (
        "Logistic, int8 values, 0.1 %",
        {**LOGISTIC, "ratio": 0.001, "overhead": None, "values": "int8", "rounds": 400},
    ),
    "fp32": (
        "Logistic, fp32 values, 0.1 %",
        {**LOGISTIC, "ratio": 0.001, "overhead": None, "values": "fp32", "rounds": 400},
    ),
}
TRAINED = ("130", "640", "both", "20both", "iid", "one", "mlp", "cnn1", "cnn10")
"""Where the first tables come from."""
SEED = 20
"""Of those trainings; figures have others."""
CONTEXTS = {
    "phase": "where an entry is in its cycle",
    "near": "how long ago a neighbor was sent",
    "column": "how long ago its column was sent",
    "gap": "how far back the last entry of the frame is",
    "gap two": "how far back the entry before that is",
    "row": "which row it is in",
}
"""What the coder's contexts are, in plain words."""
SETTING = "Ten clients, skew ratio 100, signs as values, unless the row says something else"
Upload = tuple[str, Sparse, int, int, str]


def uploads(config: Config) -> Iterator[tuple[list[Upload], Shapes]]:
    """Those of each round: client, entries, the most it might send, bytes of its frame, value codec."""
    engine = Federation(config)
    shapes = [tuple(parameter.shape) for parameter in engine.model.parameters()]
    found: list[Upload] = []
    read = engine.server.read

    def keep(name: str, frame: bytes, norm: float | None = None) -> Any:
        order = engine.server._orders[name]
        upload = read(name, frame, norm)
        if frame:
            found.append((name, upload.sparse, int(order.most or 0), len(frame), order.values))
        return upload

    engine.server.read = keep  # type: ignore[method-assign]
    for _ in range(config.rounds):
        found.clear()
        engine.step()
        yield found, shapes


class Coded:
    """Counts the bytes of uploads that are coded with memories of their own."""

    def __init__(self, clocks: bool = True, without: str | None = None) -> None:
        self.clocks, self.without = clocks, without
        self.bytes = 0
        self.memories: dict[str, Memory] = {}

    def send(self, upload: Upload, shapes: Shapes) -> None:
        """Code an upload, and count it on."""
        name, sparse, most, _, values = upload
        if name not in self.memories:
            self.memories[name] = Memory(shapes, self.clocks, values == "sign")
            self._leave_out(self.memories[name])
        memory = self.memories[name]
        frame = encode(sparse, values, memory=memory, most=most)
        self.bytes += len(frame)
        if frame:  # every frame that is taken counts, as in the protocol
            memory.learn(sparse)
            self._leave_out(memory)

    def _leave_out(self, memory: Memory) -> None:
        """Weights of 0 say nothing."""
        at = 0
        memory.tables = memory.tables.copy()
        for name, weights in [*TABLES.items(), ("row", (0,) * (len(memory._rows) // 3))]:
            if name == self.without:
                memory.tables[at : at + len(weights)] = 0
            at += len(weights)


def measure(fields: dict[str, Any], seed: int, ways: dict[str, Callable[[], Coded]]) -> dict[str, float]:
    """Bits per entry in compact frames, and in each of these ways."""
    coded = {name: make() for name, make in ways.items()}
    entries = plain = 0
    for some, shapes in uploads(Config(**fields, seed=seed, threads=1)):
        for upload in some:
            entries += len(upload[1])
            plain += upload[3]
            for one in coded.values():
                one.send(upload, shapes)
    return {"compact": 8 * plain / entries, **{name: 8 * one.bytes / entries for name, one in coded.items()}}


def compare(
    cells: list[str], seeds: int, ways: dict[str, Callable[[], Coded]]
) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Measure each cell with each seed; those without data are left out."""
    for title, fields in (CELLS[name] for name in cells):
        try:
            if fields["task"] == SPOKEN["task"] and not DIGITS.exists():  # a file is not in the catalogue of data sets
                raise MissingData(f"{DIGITS} is not there: docs/how-to/own-data.md says how to make it")
            found = [measure(fields, seed, ways) for seed in range(seeds)]
        except MissingData as error:
            print(f"{title}: left out, {error}", file=sys.stderr, flush=True)
            continue
        said = ", ".join(f"{way} {_bits(found, way)}" for way in ("compact", *ways))
        print(f"{title}: {said}", file=sys.stderr, flush=True)
        yield title, found


def payload(cells: list[str], seeds: int, record: bool) -> None:
    """Bits per entry with and without the coder: a row for each cell."""
    ways: dict[str, Callable[[], Coded]] = {"coded": Coded, "coded, without clocks": lambda: Coded(clocks=False)}
    heads = ["", "compact", *(head for way in ways for head in (way, "change"))]
    notes = [SETTING, _seeds(seeds)]
    with kept("coder-payload", "Bits per entry, everything included", heads, record, notes, len(cells)) as sheet:
        for title, found in compare(cells, seeds, ways):
            changes = [cell for way in ways for cell in (_bits(found, way), _change(found, way))]
            sheet.rows.append([title, _bits(found, "compact"), *changes])


def contexts(cells: list[str], seeds: int, record: bool) -> None:
    """Bits per entry with one context left out at a time: a column for each cell."""
    ways: dict[str, Callable[[], Coded]] = {"all contexts": Coded}
    for context in (*TABLES, "row"):  # all that the coder has: one without words is an error
        ways[f"without {context}: {CONTEXTS[context]}"] = lambda context=context: Coded(without=context)
    what = "Bits per entry with one table held at 0 (change from a compact frame)"
    with kept("coder-contexts", what, [""], record, [_seeds(seeds)]) as sheet:
        sheet.missing = [f"no {CELLS[name][0]}" for name in cells]
        columns = [list(ways)]
        for title, found in compare(cells, seeds, ways):
            sheet.heads.append(title)
            columns.append([f"{_bits(found, way)} ({_change(found, way)})" for way in ways])
            sheet.rows = [list(row) for row in zip(*columns, strict=True)]
            sheet.missing.remove(f"no {title}")


def _bits(found: list[dict[str, float]], way: str) -> str:
    return f"{statistics.mean(one[way] for one in found):.2f}"


def _change(found: list[dict[str, float]], way: str) -> str:
    """From compact frames, seed by seed."""
    changes = [100 * (one[way] / one["compact"] - 1) for one in found]
    spread = f" ± {statistics.stdev(changes):.1f}" if len(changes) > 1 else ""
    return f"{statistics.mean(changes):+.1f}{spread} %".replace("-", "−")


def _seeds(seeds: int) -> str:
    return "One seed" if seeds == 1 else f"{seeds} seeds, mean ± standard deviation"


def timing(record: bool) -> None:
    """Write and read random supports; CPU time."""
    random = np.random.default_rng(0)
    sizes: list[tuple[list[Any], int]] = [
        ([(10, 784), 10], 60),
        ([(100, 2400)], 240),
        ([(100, 2400)], 2400),
        ([(1000, 1000)], 1000),
        ([(1000, 1000)], 10_000),
        ([(1000, 1000)] * 11, 11_000),
    ]
    title = "CPU time in ns per entry of the model (in µs per frame)"
    heads = ["entries of the model", "entries sent", "clocks", "write", "read", "learn from it"]
    with kept("coder-time", title, heads, record, ["Medians of 6 frames, one thread"], 2 * len(sizes)) as sheet:
        for (shapes, count), clocks in product(sizes, (True, False)):
            sheet.add(_timed(random, shapes, count, clocks))


def _timed(random: np.random.Generator, shapes: list[Any], count: int, clocks: bool) -> list[str]:
    """A row: medians of what a frame takes, after three that are not counted."""
    memory = Memory(shapes, clocks)
    took: dict[str, list[float]] = {"write": [], "read": [], "learn": []}
    for turn in range(9):
        indices = np.sort(random.choice(memory.size, count, replace=False))
        values = np.where(random.random(count) < 0.5, np.float32(-0.5), np.float32(0.5))
        sparse = Sparse(memory.size, indices, values)
        began = time.process_time()
        section = memory.write(sparse, count)
        wrote = time.process_time()
        assert section is not None
        memory.read(section, count)
        read = time.process_time()
        memory.learn(sparse)
        if turn > 2:
            for name, seconds in zip(took, (wrote - began, read - wrote, time.process_time() - read), strict=True):
                took[name].append(seconds)
    cells = [
        f"{1e9 * statistics.median(times) / memory.size:.1f} ({1e6 * statistics.median(times):,.0f})"
        for times in took.values()
    ]
    return [f"{memory.size:,}", f"{count:,}", "with" if clocks else "without", *cells]


def first_tables() -> None:
    """The mean weights after trainings of several kinds, in 16ths of an octave."""
    found = []
    for name in TRAINED:
        coded = Coded()
        for some, shapes in uploads(Config(**CELLS[name][1], seed=SEED, threads=1)):
            for upload in some:
                coded.send(upload, shapes)
        fixed = sum(map(len, TABLES.values()))
        kept = [memory.tables[:fixed] for memory in coded.memories.values() if memory.frames > 5]
        found.append(np.mean(kept, axis=0) / 4096)
    mean, at = np.mean(found, axis=0).round().astype(int).tolist(), 0
    for name, weights in TABLES.items():
        print(f'    "{name}": {tuple(mean[at : at + len(weights)])},')
        at += len(weights)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("what", choices=("payload", "contexts", "time", "tables"))
    parser.add_argument("--cells", default="", help=f"of {', '.join(CELLS)}; all if not given")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    chosen = list(dict.fromkeys(name for name in options.cells.split(",") if name)) or list(CELLS)
    if unknown := [name for name in chosen if name not in CELLS]:
        parser.error(f"there is no cell {unknown[0]!r}: choose from {', '.join(CELLS)}")
    if options.what == "payload":
        payload(chosen, options.seeds, options.record)
    elif options.what == "contexts":
        contexts(chosen, options.seeds, options.record)
    elif options.what == "time":
        timing(options.record)
    else:
        first_tables()
