"""What local steps gain on slow links, by the clock: four hosts, 10 Mb/s each, loss or accuracy and bytes after a time.

    make bench-ddp                                          # needs root; this is its second part
    python -m benchmarks.internet --task gpt                # or cnn@cifar-10
    python -m benchmarks.internet --seconds 5 10 --only ours hook      # methods whose names contain one of these
    python -m benchmarks.internet --only 'ours, 10 %, int8'        # a whole name is that method alone
    python -m benchmarks.internet --cost                    # no root, no network: an exchange of 100 M parameters
    python -m benchmarks.internet --record                  # keeps the tables for docs/studies/performance.md
    python -m benchmarks.internet --task gpt --only powersgd post-local diloco 'ours, default' --record     # 40 minutes

The hosts are those of `benchmarks.ddp`. Every method gets fresh processes, which train a model to warm up and throw it
away. Then links become slow, and all methods have the same time on the clock. What is evaluated is the model that all
ranks share. PowerSGD's first two steps are dense: it needs them.

A run takes as long as the last of --seconds, and 20 seconds more. With --record, each run is kept in
results/benchmarks/internet-gpt.jsonl or internet-cnn.jsonl as soon as it ends, and is not run again: delete the file to
measure again.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dagc.ddp
from benchmarks.ddp import PORT, SUBNET, Network, needed, run, send, transmitted, workers
from benchmarks.ddp import install as install_hook
from benchmarks.tables import FOLDER, HERE, arguments, kept, show
from dagc.data import Batches, load, make_partition
from dagc.errors import MissingData
from dagc.models import build
from examples.internet import GPT, Text
from research.measured import digits
from research.origin import source_commit

STEPS = 30
"""Local steps between exchanges."""
EVERY_STEP = {
    "dense": "dense all-reduce in every step",
    "fp16": "PyTorch's fp16 hook",
    "powersgd": "PyTorch's PowerSGD hook, rank 1",
    "dagc-r 1 %": "our hook, dagc-r 1 %, in every step",
}
DENSE = {"post-local": "PyTorch's PostLocalSGD", "diloco": "dense DiLoCo"}
INT8 = {"method": "thrifty", "ratio": 0.1, "values": "int8"}
OURS: dict[str, dict[str, Any]] = {
    "ours, default": {},
    "ours, encoded, 2 %": {"ratio": 0.02},
    "ours, 2 %, signs": {"method": "thrifty", "ratio": 0.02},
    "ours, 2 %, int8": {**INT8, "ratio": 0.02},
    "ours, 10 %, int8": INT8,
    "ours, 10 %, int8, momentum 0.5": {**INT8, "momentum": 0.5},
    "ours, 10 %, int8, momentum 0.9, outer rate 0.7": {**INT8, "outer_rate": 0.7, "momentum": 0.9},
    "ours, 10 %, int8, overlap": {**INT8, "overlap": True},
}
METHODS = {**EVERY_STEP, **DENSE, **{name: name for name in OURS}}
TASKS = {
    "cnn@cifar-10": ("internet-cnn", "CNN@CIFAR-10, 0.24 M parameters", "accuracy"),
    "gpt": ("internet-gpt", "A small GPT on Shakespeare, 0.8 M parameters", "loss"),
}
"""The name of a task's record, what it is, and how its models are judged."""


class Task:
    """A model, a rank's losses by step, and how good the model is."""

    def __init__(self, name: str, rank: int, world: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.module: Any
        self.loss: Callable[[nn.Module, int], torch.Tensor]
        if name == "gpt":
            text = Text(None, world)
            self.module = GPT(len(text.letters))
            self.examples = [len(piece) for piece in text.pieces]

            def guess(model: nn.Module, step: int) -> torch.Tensor:
                windows = text.batch(rank, step + 100_000 * seed, 16, self.module.context)
                return cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

            self.loss = guess
            self.evaluate = lambda: text.evaluate(self.module, 64)
            self.optimizer: Any = torch.optim.AdamW(self.module.parameters(), lr=1e-3)
            return
        data = load("cifar-10")
        partition = make_partition(f"skewed:clients={world},skew_ratio=10", data, seed)
        batches = Batches(data, partition, 32, seed)
        self.module = build("cnn", data, seed=seed)
        self.examples = partition.sizes.tolist()

        def classify(model: nn.Module, step: int) -> torch.Tensor:
            x, y = batches.batch(rank, step)
            return cross_entropy(model(x), y)

        @torch.no_grad()
        def accuracy() -> float:
            right = sum(int((self.module(x).argmax(1) == y).sum()) for x, y in data.test_batches(500))
            return right / len(data.test_y)

        self.loss, self.evaluate = classify, accuracy
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05)


# What a worker does


def training(method: str, task: Task) -> tuple[Iterator[None], Callable[[], torch.Tensor]]:
    """Steps without end, and the model that all ranks share, as a vector."""
    rank, world = dist.get_rank(), dist.get_world_size()
    module, optimizer = task.module, task.optimizer
    model, weight, after = module, 1.0, lambda: None

    def shared() -> torch.Tensor:
        return parameters_to_vector(module.parameters()).detach()

    if method in EVERY_STEP:
        model = DistributedDataParallel(module, bucket_cap_mb=1000 if method == "powersgd" else None)
        _, weight = install_hook(model, method, task.examples, rank, world)
    elif method == "post-local":
        averager = PeriodicModelAverager(period=STEPS, warmup_steps=0)
        averager.step = 1  # it would average after the first step
        latest = shared().clone()

        def after() -> None:
            nonlocal latest
            averager.average_parameters(module.parameters())
            if averager.step % STEPS == 1:
                latest = shared().clone()

        return _steps(task, model, weight, optimizer, after), lambda: latest
    elif method == "diloco":
        diloco = DiLoCo(module, task.examples[rank] / sum(task.examples))
        return _steps(task, model, weight, optimizer, diloco.step), lambda: diloco.shared
    else:
        local = dagc.ddp.LocalSteps(module, examples=task.examples[rank], steps=STEPS, **OURS[method])
        return _steps(task, model, weight, optimizer, local.step), lambda: local.shared
    return _steps(task, model, weight, optimizer, after), shared


def _steps(task: Task, model: Any, weight: float, optimizer: Any, after: Callable[[], Any]) -> Iterator[None]:
    step = 0
    while True:
        optimizer.zero_grad()
        (task.loss(model, step) * weight).backward()
        optimizer.step()
        after()
        step += 1
        yield


class DiLoCo:
    """Dense DiLoCo in a few lines: the mean of what the models have moved, by data, and Nesterov's momentum."""

    def __init__(self, module: nn.Module, share: float, rate: float = 0.7, momentum: float = 0.9) -> None:
        self.module, self.share, self.done = module, share, 0
        self.shared = parameters_to_vector(module.parameters()).detach().clone()
        self.outer = torch.optim.SGD([self.shared], lr=rate, momentum=momentum, nesterov=True)

    def step(self) -> None:
        self.done += 1
        if self.done % STEPS == 0:
            moved = (self.shared - parameters_to_vector(self.module.parameters()).detach()) * self.share
            dist.all_reduce(moved)
            self.shared.grad = moved
            self.outer.step()
            vector_to_parameters(self.shared, self.module.parameters())
            for parameter in self.module.parameters():
                parameter.data = parameter.data.clone()  # they would be views of the vector otherwise


def serve(method: str, name: str, seconds: list[float], seed: int) -> None:
    """Train; rank 0 says when the times are over, and at last how good the model was at each."""
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for count in (4 if method in EVERY_STEP else STEPS + 1, 0):  # once to warm up, exchanges included
        task = Task(name, dist.get_rank(), dist.get_world_size(), seed)
        steps, shared = training(method, task)
        for _ in range(count):
            next(steps)
    send("ready")
    lines.get()
    dist.barrier()
    began, found = time.perf_counter(), []
    count = 0
    while True:
        next(steps)
        count += 1
        if dist.get_rank() == 0 and time.perf_counter() - began >= seconds[len(found)]:
            found.append(shared().clone())
            send({"steps": count, "sent": transmitted()})
            if len(found) == len(seconds):
                break
    scores = []
    for vector in found:
        vector_to_parameters(vector, task.module.parameters())
        scores.append(task.evaluate())
    send(scores)
    lines.get()


# The measurements


def cost(record: bool, size: int = 100_000_000, tensors: int = 20) -> None:
    """Seconds and memory of an exchange on one rank, beside the time of touching the model once."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.ParameterList([torch.randn(size // tensors) for _ in range(tensors)])
    before = memory("VmRSS")
    local = dagc.ddp.LocalSteps(model, examples=1, steps=1, **{**INT8, "ratio": 0.01})
    found = []
    for _ in range(6):
        for parameter in model:
            parameter.data.mul_(1.01)
        began = time.perf_counter()
        local.uplink.feedback.residual.add_(local.shared, alpha=0.0)
        touched = time.perf_counter()
        exchanged = local.step()
        assert exchanged is not None
        found.append((touched - began, time.perf_counter() - touched, exchanged.compress, exchanged.decode))
    seconds = [f"{statistics.median(part):.2f} s" for part in zip(*found[1:], strict=True)]
    beside = [f"{(memory(name) - before) / (4 * size):.1f}" for name in ("VmHWM", "VmRSS")]
    heads = ["", "touch every parameter once", "whole exchange", "compress", "decode"]
    notes = [f"Median of 5 exchanges, {torch.get_num_threads()} threads", "A vector has the size of the model"]
    show(
        "internet-cost",
        "An exchange on one rank",
        [*heads, "vectors beside the model, during", "after"],
        [[f"{size:,} parameters, 1 %, int8", *seconds, *beside]],
        record,
        notes,
    )


def memory(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


Found = list[tuple[float, int, int]]
"""For each time: accuracy or loss, rank 0's steps, and the most bytes that a host has sent."""


def measure(network: Network, method: str, task: str, seconds: list[float], seed: int) -> Found:
    """One run."""
    command = ["-m", "benchmarks.internet", "--worker", method, "--task", task, "--seed", str(seed)]
    command += ["--seconds", *map(str, seconds)]
    with workers(4, network.prefixes(), f"{SUBNET}.1", PORT, "eth0", command) as hosts:
        for host in hosts:
            host.receive()
        before = sent(network)
        network.slow(True)
        for host in hosts:
            host.send("go")
        counts, bytes_sent = [], []
        for _ in seconds:
            counts.append(hosts[0].receive()["steps"])
            bytes_sent.append(max(now - then for now, then in zip(sent(network), before, strict=True)))
        scores = hosts[0].receive()
        for host in hosts:  # all at once: nobody is to complain about the others
            host.process.kill()
        network.slow(False)
    return list(zip(scores, counts, bytes_sent, strict=True))


def sent(network: Network) -> list[int]:
    """Bytes that have left each host, packet headers included."""
    file = "/sys/class/net/eth0/statistics/tx_bytes"
    return [int(run(*prefix, "cat", file)) for prefix in network.prefixes()]


def chosen(only: Sequence[str] | None) -> dict[str, str]:
    """Methods with one of these names, or whose names contain one of these words; all without any."""
    found = set[str]()
    for word in only or METHODS:
        some = {word} if word in METHODS else {name for name, words in METHODS.items() if word in f"{name}, {words}"}
        if not some:
            raise SystemExit(f"no method is called {word!r}: there are {'; '.join(METHODS)}")
        found |= some
    return {name: words for name, words in METHODS.items() if name in found}


class Runs:
    """What was found, by method and seed; with a file, each run is there as soon as it has ended."""

    def __init__(self, path: Path | None, rate: str, seconds: list[float]) -> None:
        self.path, self.setting = path, {"rate": rate, "seconds": seconds}
        self.found: dict[tuple[str, int], Found] = {}
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        for kept_run in map(json.loads, lines):
            if all(kept_run[name] == value for name, value in self.setting.items()):
                self.found[kept_run["method"], kept_run["seed"]] = kept_run["found"]

    def add(self, method: str, seed: int, found: Found) -> None:
        self.found[method, seed] = found
        print(f"{method}, seed {seed}:", *(f"{score:.4f}" for score, *_ in found), file=sys.stderr, flush=True)
        if self.path is not None:
            made = {"method": method, "seed": seed, **self.setting, "found": found, "commit": source_commit(HERE)}
            with self.path.open("a") as file:
                print(json.dumps(made), file=file)

    def cells(self, method: str, judged: str, seeds: int) -> Iterator[str]:
        """A method's row: means, and the spread of what is judged."""
        for found in zip(*(self.found[method, seed] for seed in range(seeds)), strict=True):
            scores, steps, sent = zip(*found, strict=True)
            scale, places = (1, 3) if judged == "loss" else (100, 1)
            spread = f" ± {scale * statistics.stdev(scores):.{places}f}" if seeds > 1 else ""
            yield f"{scale * statistics.mean(scores):.{places}f}{spread}" + " %" * (scale > 1)
            yield f"{statistics.mean(steps):,.0f}"
            yield digits(statistics.mean(sent) / 1e6)


def compare(network: Network, task: str, seconds: list[float], options: argparse.Namespace) -> None:
    """All methods on one task, seed by seed."""
    name, label, judged = TASKS[task]
    heads = ["", *(head for end in seconds for head in (f"{judged} after {end:g} s", "steps", "MB sent"))]
    title = f"{label}, {options.rate} each way, 4 ranks, skew ratio 10, {STEPS} local steps, seeds: {options.seeds}"
    methods = chosen(options.only)
    runs = Runs(FOLDER / f"{name}.jsonl" if options.record else None, options.rate, seconds)
    with kept(name, title, heads, options.record, wanted=len(methods)) as sheet:
        wanted = [(method, seed) for seed in range(options.seeds) for method in methods]
        for number, (method, seed) in enumerate(wanted, start=1):
            if (method, seed) not in runs.found:
                print(f"run {number} of {len(wanted)}, {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
                runs.add(method, seed, measure(network, method, task, seconds, seed))
        for method, words in methods.items():
            sheet.add([words, *runs.cells(method, judged, options.seeds)])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", choices=list(TASKS), help="one of the two")
    parser.add_argument("--seconds", type=float, nargs="+", default=[60, 180], help="when the model is evaluated")
    parser.add_argument("--rate", default="10mbit", help="of every link, as tc takes it")
    parser.add_argument("--only", nargs="+", help="names of methods, or words in them")
    parser.add_argument("--cost", action="store_true", help="what an exchange costs on one rank; no root needed")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.worker, options.task, options.seconds, options.seed)
        return
    if options.cost:
        cost(options.record)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(f"stopped by signal {number}"))
    chosen(options.only)
    needed()
    with Network(4, options.rate) as network:
        for task in [options.task] if options.task else TASKS:
            try:
                Task(task, 0, 4)
            except (MissingData, SystemExit) as error:
                print(f"without {task}: {error}", file=sys.stderr)
                continue
            compare(network, task, sorted(options.seconds), options)


if __name__ == "__main__":
    main()
