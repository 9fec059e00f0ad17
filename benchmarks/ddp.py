"""What the DDP hook gains on a slow link and costs on a fast one.

    make bench-ddp                                  # needs root: 4 hosts in network namespaces, 10 Mb/s each way
    python -m benchmarks.ddp --loopback             # no root: 2 and 4 processes on this computer's loopback
    python -m benchmarks.ddp --only steps           # or accuracy: one of the two parts, on the slow link
    python -m benchmarks.ddp --record               # keeps the tables for docs/studies/performance.md

The hosts hang on a bridge that is in a namespace of its own, so this computer's network is left alone. Links are slowed
down by `tc tbf` once a model is built and warmed up, so that nobody waits for DDP's first broadcast.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from queue import Queue
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import dagc.ddp
from benchmarks.tables import arguments, kept
from dagc.data import Batches, load, make_partition
from dagc.errors import MissingData
from dagc.models import build
from research.measured import digits

PREFIX = "dagc-bench"
SUBNET = "10.203.7"  # exists inside the namespaces only
PORT = 29400
WORKER = ["-m", "benchmarks.ddp", "--worker"]
WARM_UP = 4  # PowerSGD averages densely in its first steps
ALONE = {"alone": "no exchange at all: what computing takes"}
MODELS = {"mlp-11m": ("mlp", "MLP, 11.0 M parameters"), "cnn@cifar-10": ("cnn", "CNN@CIFAR-10, 0.24 M parameters")}
"""Of the slow link: the last part of a record's name, and how the table calls it."""
BASELINES = {"dense": "dense all-reduce", "fp16": "PyTorch's fp16 hook", "powersgd": "PyTorch's PowerSGD hook, rank 1"}
OURS: dict[str, dict[str, Any]] = {
    "dagc-r 1 %": {"ratio": 0.01},
    "dagc-r 0.1 %": {"ratio": 0.001},
    "dagc-r 0.1 %, int8": {"ratio": 0.001, "values": "int8"},
    "dagc-r 0.1 %, sign": {"ratio": 0.001, "values": "sign"},
}


# The hosts


class Worker:
    """A process that runs jobs: a line of JSON in, lines of JSON out."""

    def __init__(
        self, rank: int, world: int, prefix: list[str], address: str, port: int, device: str, job: list[str]
    ) -> None:
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": address, "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": device, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR",
        }  # fmt: skip
        command = [*prefix, sys.executable, *job]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(message), file=self.process.stdin, flush=True)

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker has died; its error is above")
        return json.loads(line)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def workers(
    world: int, prefixes: list[list[str]], address: str, port: int, device: str, job: list[str] = WORKER
) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        started = []
        for rank in range(world):
            started.append(Worker(rank, world, prefixes[rank], address, port, device, job))
            stack.callback(started[-1].stop)
        yield started


class Network:
    """Hosts on a bridge, each in a network namespace; `slow` limits every link in both directions."""

    def __init__(self, hosts: int, rate: str) -> None:
        self.rate = rate
        self.switch = f"{PREFIX}-{os.getpid()}-switch"
        self.hosts = [f"{PREFIX}-{os.getpid()}-{host}" for host in range(hosts)]

    def __enter__(self) -> "Network":
        for name in run("ip", "netns", "list").split():  # of runs that were killed
            if name.startswith(f"{PREFIX}-") and not Path(f"/proc/{name.split('-')[2]}").exists():
                run("ip", "netns", "del", name)
        try:
            run("ip", "netns", "add", self.switch)
            run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for number, host in enumerate(self.hosts):
                port = f"port{number}"
                run("ip", "netns", "add", host)
                run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", port, "netns", self.switch)
                run("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
                run("ip", "-n", host, "address", "add", f"{SUBNET}.{number + 1}/24", "dev", "eth0")
                run("ip", "-n", host, "link", "set", "eth0", "up")
                run("ip", "-n", host, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def slow(self, slow: bool) -> None:
        for number, host in enumerate(self.hosts):
            for namespace, device in ((host, "eth0"), (self.switch, f"port{number}")):
                # The burst is two packets: with a larger one, small payloads would not meet the limit at all.
                limit = ("tbf", "rate", self.rate, "burst", "3000b", "latency", "100ms") if slow else ("pfifo_fast",)
                run("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root", *limit)

    def prefixes(self) -> list[list[str]]:
        return [["ip", "netns", "exec", host] for host in self.hosts]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


# What a worker does


def serve() -> None:
    """Jobs from standard input, until it ends; then the process ends, whatever it is doing."""
    lines: Queue[Any] = Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    while True:
        job(lines)


def job(lines: "Queue[Any]") -> None:
    """Build, warm up, say so, wait for the word, measure, send the result."""
    asked = lines.get()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    module, batch, examples, evaluate = task(asked["task"], rank, world)
    # PowerSGD's hook starts further exchanges from other threads: with two buckets and gloo, ranks mix them up.
    buckets = 1000 if asked["method"] == "powersgd" else None
    model = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=buckets)
    # DDP weighs all ranks alike: there the loss carries the weight, so that all methods have the same gradient.
    hook, weight = install(model, asked["method"], examples, rank, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=asked["learning_rate"])
    done = 0

    def steps(count: int) -> float:
        nonlocal done
        began = time.perf_counter()
        for _ in range(count):
            x, y = batch(done)
            optimizer.zero_grad()
            with model.no_sync() if asked["method"] == "alone" else nullcontext():
                loss: Any = torch.nn.functional.cross_entropy(model(x), y) * weight
                loss.backward()
            optimizer.step()
            done += 1
        return time.perf_counter() - began

    steps(WARM_UP)
    send("ready")
    lines.get()
    dist.barrier()
    before = transmitted()
    count = asked["steps"]
    took = steps(count)
    if asked.get("seconds"):
        # As many as go into the time at the pace of the slowest rank: all ranks must come to the same number.
        pace = torch.tensor([took / count])
        dist.all_reduce(pace, op=dist.ReduceOp.MAX)
        more = max(0, int(asked["seconds"] / float(pace)) - count)
        took, count = took + steps(more), count + more
    bytes_sent = (transmitted() - before) / count
    answer = {"seconds": took / count, "total": took, "bytes": bytes_sent, "steps": done}
    if hook is not None:
        answer["split"] = hook.last[-3:]
    answer["accuracy"] = evaluate(module) if rank == 0 and asked.get("seconds") else None
    send(answer)


def send(message: Any) -> None:
    print(json.dumps(message), flush=True)


def transmitted() -> int:
    """Bytes that have left this host, packet headers included."""
    return int(Path(f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes").read_text())


def install(model: Any, method: str, examples: list[int], rank: int, world: int) -> tuple[Any, float]:
    if method in OURS:
        return dagc.ddp.register(model, examples=examples[rank], method="dagc-r", **OURS[method]), 1.0
    if method == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return None, world * examples[rank] / sum(examples)


def task(name: str, rank: int, world: int) -> tuple[Any, Any, list[int], Any]:
    """The module, its batches by step, everybody's number of examples, and how to evaluate it."""
    if name == "cnn@cifar-10":
        data = load("cifar-10")
        partition = make_partition(f"skewed:clients={world},skew_ratio=10", data)
        batches = Batches(data, partition, 32)

        def accuracy(module: Any) -> float:
            with torch.no_grad():
                right = sum(int((module(x).argmax(1) == y).sum()) for x, y in data.test_batches(500))
            return right / len(data.test_y)

        return build("cnn", data), lambda step: batches.batch(rank, step), partition.sizes.tolist(), accuracy
    layers = {"mlp-1m": (784, 1000, 215), "mlp-11m": (3072, 2816, 832, 10)}[name]
    module = nn.Sequential()
    for wide, narrow in pairwise(layers):
        module.extend([nn.Linear(wide, narrow), nn.ReLU()])
    random = torch.Generator().manual_seed(rank)
    x, y = torch.randn(32, layers[0], generator=random), torch.randint(layers[-1], (32,), generator=random)
    return module[:-1], lambda step: (x, y), [4000, 3000, 2000, 1000][:world], None


# The measurements


def measure(hosts: list[Worker], network: Network | None, **asked: Any) -> dict[str, Any]:
    """One job on all hosts: the slowest rank's time, the most bytes of a rank, rank 0's accuracy."""
    for host in hosts:
        host.send(asked)
    for host in hosts:
        host.receive()
    if network:
        network.slow(True)
    for host in hosts:
        host.send("go")
    answers = [host.receive() for host in hosts]
    if network:
        network.slow(False)
    slowest = max(answers, key=lambda answer: float(answer["seconds"]))
    return {**slowest, "bytes": max(answer["bytes"] for answer in answers), "accuracy": answers[0]["accuracy"]}


def needed() -> None:
    """Refuse to begin without what network namespaces need."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"{' and '.join(missing)} missing: apt-get install iproute2")
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: sudo make bench-ddp; --loopback goes without")


def slow_link(options: argparse.Namespace) -> None:
    needed()
    tasks = list(MODELS)
    try:
        load("cifar-10")
    except MissingData as error:
        print(f"without cnn@cifar-10: {error}", file=sys.stderr)
        tasks.remove("cnn@cifar-10")
    with (
        Network(4, options.rate) as network,
        workers(4, network.prefixes(), f"{SUBNET}.1", PORT, "eth0") as hosts,
    ):
        if options.only in (None, "steps"):
            for model in tasks:
                seconds_per_step(hosts, network, model, options)
        if options.only in (None, "accuracy") and "cnn@cifar-10" in tasks:
            accuracy_in_time(hosts, network, options)


def seconds_per_step(hosts: list[Worker], network: Network, model: str, options: argparse.Namespace) -> None:
    """What a step takes with each method, and what it sends."""
    counts = {"dense": 2, "fp16": 3, "dagc-r 1 %": 10} if model == "mlp-11m" else {"dense": 8, "fp16": 12}
    short, label = MODELS[model]
    title = f"{label}, {options.rate} each way, 4 ranks"
    heads = [label, "seconds per step (× faster than dense)", "kB sent"]
    methods = *BASELINES, *OURS, *ALONE
    with kept(f"ddp-seconds-{short}", title, heads, options.record, wanted=len(methods)) as sheet:
        dense = None
        for method in methods:
            steps = counts.get(method, 25)
            found = measure(hosts, network, task=model, method=method, steps=steps, learning_rate=0.01)
            took = digits(found["seconds"])
            if dense is not None:
                times = dense / found["seconds"]
                took += f" ({times:.{int(times < 10)}f})"
            dense = dense or found["seconds"]
            sheet.add([{**BASELINES, **ALONE}.get(method, method), took, digits(found["bytes"] / 1000)])


def accuracy_in_time(hosts: list[Worker], network: Network, options: argparse.Namespace) -> None:
    """How far each method gets in the same time."""
    title = f"CNN@CIFAR-10, {options.rate} each way, 4 ranks, skew ratio 10, after {options.seconds:g} seconds"
    heads = ["", "steps", "test accuracy", "MB sent"]
    methods = *BASELINES, *OURS
    with kept("ddp-accuracy", title, heads, options.record, wanted=len(methods)) as sheet:
        for method in methods:
            found = measure(
                hosts, network, task="cnn@cifar-10", method=method, steps=5, seconds=options.seconds,
                learning_rate=0.05,
            )  # fmt: skip
            sent = found["bytes"] * (found["steps"] - WARM_UP) / 1e6
            name = BASELINES.get(method, method)
            sheet.add([name, f"{found['steps']:,}", f"{100 * found['accuracy']:.1f} %", f"{sent:.1f}"])


def loopback(record: bool) -> None:
    title = "MLP with 1.0 M parameters on loopback, dagc-r 1 %"
    heads = ["ranks", "dense, ms per step", "ours, ms per step", "ours / dense", "compress, ms", "exchange, ms"]
    worlds = 2, 4
    with kept("ddp-loopback", title, [*heads, "decode, ms"], record, wanted=len(worlds)) as sheet:
        for world in worlds:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            with workers(world, [[]] * world, "127.0.0.1", port, "lo") as hosts:
                found: dict[str, list[dict[str, Any]]] = {"dense": [], "dagc-r 1 %": []}
                for _ in range(5):  # in turns, so that what else the computer does meets both alike
                    for method, results in found.items():
                        results.append(measure(hosts, None, task="mlp-1m", method=method, steps=40, learning_rate=0.01))
            dense, ours = (statistics.median(result["seconds"] for result in results) for results in found.values())
            parts = zip(*(result["split"] for result in found["dagc-r 1 %"]), strict=True)
            split = [f"{1000 * statistics.median(part):.1f}" for part in parts]
            times = f"{1000 * dense:.1f}", f"{1000 * ours:.1f}", f"{ours / dense:.2f}"
            sheet.add([str(world), *times, *split])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--loopback", action="store_true", help="the cost without a slow link; no root needed")
    parser.add_argument("--only", choices=["steps", "accuracy"], help="one part of the slow-link benchmark")
    parser.add_argument("--rate", default="10mbit", help="of every link, as tc takes it")
    parser.add_argument("--seconds", type=float, default=60, help="for each method, until its accuracy is taken")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(f"stopped by signal {number}"))
    if options.loopback:
        loopback(options.record)
    else:
        slow_link(options)


if __name__ == "__main__":
    main()
