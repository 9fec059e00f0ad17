"""What compression costs: one step, the index codes and the server's sum, beside what others do.

    python -m benchmarks.kernels            # under two minutes; --full takes more runs
    python -m benchmarks.kernels --record   # also keeps the tables for docs/studies/performance.md

Times are CPU time on one thread, as multiples of LIMIT = `residual.add_(gradient)`, medians of runs that take turns.
Everything is measured twice: with the C library's usual allocator, which takes fresh memory for each large temporary
and makes its user pay for the pages, and with one that reuses memory, which is kinder to those who make temporaries.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from rich.console import Console

import dagc
from benchmarks.tables import arguments, show
from dagc._numba import compiled
from dagc.compressors import _vector
from dagc.data import Batches, load, make_partition
from dagc.errors import MissingData
from dagc.models import build
from dagc.wire import indices as rice

RATIOS = (0.1, 0.01, 0.001)
LARGE, MIDDLE = 11_000_000, 1_000_000
REUSE = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
METHODS = {
    "grace": "GRACE-style",
    "topk": "torch.topk in place",
    "dgc": "DGC-style sampling ¹",
    "torch": "ours without numba (× faster than torch.topk)",
    "ours": "ours",
}
TITLES = {
    "logistic": "Logistic",
    "mlp": "MLP",
    "cnn": "CNN",
    "resnet18": "ResNet-18",
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10": "CIFAR-10",
}
CODES = {"rice": "Rice", "adaptive": "adaptive Rice"}
SERVERS = {
    "index_add": "`index_add_`, client by client",
    "ours": "`dagc.aggregate`",
}
KINDS = {"top-k": "Top-k", "hard": "hard threshold"}
WANTED = {
    "top-k": {LARGE: {0.1: 3.0, 0.01: 1.8, 0.001: 1.35}, MIDDLE: {0.1: 4.5, 0.01: 3.0, 0.001: 2.0}},
    "hard": {LARGE: {0.1: 1.6, 0.01: 1.35, 0.001: 1.2}},
}
WANTED_FASTER = {0.1: 15, 0.01: 25, 0.001: 10}
"""Than torch.topk, both with the reusing allocator, at 11 M."""
Figures = dict[str, Any]
Step = Callable[[torch.Tensor], object]


# What others do, from their ideas: each takes a gradient, keeps a residual, hands out indices and values.


def grace_style(size: int, count: int) -> Step:
    """Top-k with memory as GRACE composes it: compensate, compress, decompress, and the difference is the memory."""
    residual = torch.zeros(size)

    def step(gradient: torch.Tensor) -> object:
        nonlocal residual
        compensated = residual + gradient
        indices = torch.topk(compensated.abs(), count, sorted=False).indices
        values = compensated[indices]
        dense = torch.zeros(size)
        dense.scatter_(0, indices, values)
        residual = compensated - dense
        return indices, values

    return step


def topk_in_place(size: int, count: int) -> Step:
    """The shortest that torch allows."""
    residual = torch.zeros(size)

    def step(gradient: torch.Tensor) -> object:
        residual.add_(gradient)
        indices = torch.topk(residual.abs(), count, sorted=False).indices.sort().values
        values = residual[indices]
        residual[indices] = 0.0
        return indices, values

    return step


def dgc_style(size: int, count: int) -> Step:
    """Deep Gradient Compression's way: the threshold of a 1 % sample; if that selects too many, top-k among those."""
    residual = torch.zeros(size)
    sample = max(1, size // 100)

    def step(gradient: torch.Tensor) -> object:
        residual.add_(gradient)
        magnitude = residual.abs()
        drawn = magnitude[torch.randint(size, (sample,))]
        threshold = torch.topk(drawn, max(1, count * sample // size)).values[-1]
        indices = (magnitude >= threshold).nonzero()[:, 0]
        if len(indices) > count:
            indices = indices[torch.topk(magnitude[indices], count, sorted=False).indices]
        values = residual[indices]
        residual[indices] = 0.0
        return indices, values

    return step


def mask_and_nonzero(size: int, threshold: float) -> Step:
    """Hard threshold in torch."""
    residual = torch.zeros(size)

    def step(gradient: torch.Tensor) -> object:
        residual.add_(gradient)
        indices = (residual.abs() >= threshold).nonzero()[:, 0]
        values = residual[indices]
        residual[indices] = 0.0
        return indices, values

    return step


def ours(compressor: dagc.Compressor, size: int, parameter: Any, kernels: str = "auto") -> Step:
    feedback = dagc.ErrorFeedback(compressor, size)

    def step(gradient: Any) -> object:
        return feedback.step(gradient, parameter)

    def plain_step(gradient: Any) -> object:
        _vector.compiled = lambda: False  # type: ignore[attr-defined]  # the environment would take longer to set
        sparse = feedback.step(gradient, parameter)
        _vector.compiled = compiled  # type: ignore[attr-defined]
        return sparse

    return plain_step if kernels == "torch" else step


def limit(size: int) -> Step:
    residual = torch.zeros(size)
    return lambda gradient: residual.add_(gradient)


def take_turns(steps: dict[str, Step], gradients: list[Any], runs: int, slow: tuple[str, ...] = ()) -> Figures:
    """Median CPU seconds of each step; the slow ones take every fifth turn only."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-5, runs):
        for name, step in steps.items():
            if name in slow and turn % 5:
                continue
            gradient = gradients[turn % len(gradients)]
            start = time.process_time()
            step(gradient)
            taken = time.process_time() - start
            if turn >= 0:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


def heavy_tailed(size: int, number: int = 2) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.standard_t(3, size).astype(np.float32)) for _ in range(number)]


def threshold_for(gradients: list[torch.Tensor], count: int) -> float:
    """The threshold at which error feedback comes to send about so many entries in each step."""
    feedback = dagc.ErrorFeedback(dagc.hard_threshold, len(gradients[0]))
    threshold = float(np.abs(dagc.top_k(gradients[0], count).values).min())
    turns = len(gradients)
    for _ in range(8):
        sent = [len(feedback.step(gradient, threshold)) for gradient in gradients]
        threshold *= (max(1, sum(sent)) / turns / count) ** 0.4
    return threshold


def turns(quick: bool) -> dict[int, int]:
    """How often a step is measured, by the size of the vector."""
    return {LARGE: 15, MIDDLE: 60} if quick else {LARGE: 50, MIDDLE: 300}


def measure_steps(quick: bool) -> Figures:
    """Seconds of each method, size and ratio."""
    figures: Figures = {"top-k": {}, "hard": {}}
    for size, runs in turns(quick).items():
        gradients = heavy_tailed(size)
        for ratio in RATIOS:
            count = int(size * ratio)
            steps = {
                "limit": limit(size),
                "grace": grace_style(size, count),
                "topk": topk_in_place(size, count),
                "dgc": dgc_style(size, count),
                "torch": ours(dagc.top_k, size, count, "torch"),
                "ours": ours(dagc.top_k, size, count),
            }
            times = take_turns(steps, gradients, runs, slow=("grace", "topk", "dgc"))
            figures["top-k"][f"{size} {ratio}"] = times
            if size != LARGE:
                continue
            there_and_back = [*gradients, *(-gradient for gradient in gradients)]  # so that what is sent stays the same
            threshold = threshold_for(there_and_back, count)
            feedback = dagc.ErrorFeedback(dagc.hard_threshold, size)
            sent = []

            def count_too(
                gradient: Any, feedback: Any = feedback, threshold: float = threshold, to: Any = sent
            ) -> None:
                to.append(len(feedback.step(gradient, threshold)))

            steps = {"limit": limit(size), "topk": mask_and_nonzero(size, threshold), "ours": count_too}
            times = take_turns(steps, there_and_back, 2 * runs, slow=("topk",))
            figures["hard"][f"{size} {ratio}"] = times | {"sent": float(np.mean(sent[5:])) / size}
    return figures


def least_bits(size: int, count: int) -> float:
    """Bits per index that a random support takes at least."""
    supports = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return supports / math.log(2) / count


def measure_codes(quick: bool) -> Figures:
    """Millions of indices a second, and bits per index, on random supports of 11 M."""
    figures: Figures = {}
    rng = np.random.default_rng(0)
    for ratio in (*RATIOS, 0.0001):
        count = int(LARGE * ratio)
        indices = np.flatnonzero(rng.permutation(LARGE) < count)
        figures[str(ratio)] = {"bound": least_bits(LARGE, count)}
        for adaptive in (False, True):
            section = memoryview(rice.write(rice.plan(indices, LARGE, adaptive)))
            assert np.array_equal(rice.read(section, LARGE, count, adaptive), indices)
            repeat = max(1, 200_000 // count)

            def encode(_: object, indices: Any = indices, adaptive: bool = adaptive, repeat: int = repeat) -> None:
                for _ in range(repeat):
                    rice.write(rice.plan(indices, LARGE, adaptive))

            def decode(
                _: object, section: Any = section, count: int = count, adaptive: bool = adaptive, repeat: int = repeat
            ) -> None:
                for _ in range(repeat):
                    rice.read(section, LARGE, count, adaptive)

            times = take_turns({"encode": encode, "decode": decode}, [None], 15 if quick else 100)
            figures[str(ratio)]["adaptive" if adaptive else "rice"] = {
                "bits": 8 * len(section) / count,
                "encode": count * repeat / times["encode"] / 1e6,
                "decode": count * repeat / times["decode"] / 1e6,
            }
    return figures


def measure_server(quick: bool) -> Figures:
    """CPU seconds to add up 200 clients' 0.1 % of 11 M."""
    rng = np.random.default_rng(0)
    sparses = []
    for _ in range(200):
        indices = np.unique(rng.integers(0, LARGE, LARGE // 1000))
        sparses.append(dagc.Sparse(LARGE, indices, rng.normal(size=len(indices)).astype(np.float32)))
    weights = rng.integers(1, 1000, 200)
    shares = [float(share) for share in np.float32(weights / weights.sum())]
    tensors = [(torch.from_numpy(sparse.indices), torch.from_numpy(sparse.values)) for sparse in sparses]
    total, other = torch.zeros(LARGE), torch.zeros(LARGE)

    def index_add(_: object) -> None:
        other.zero_()
        for share, (indices, values) in zip(shares, tensors, strict=True):
            other.index_add_(0, indices, values, alpha=share)

    steps: dict[str, Step] = {
        "index_add": index_add,
        "ours": lambda _: dagc.aggregate(sparses, weights, out=total),
    }
    times = take_turns(steps, [None], 11 if quick else 50)
    assert torch.allclose(total, other)
    return times


def measure_real(quick: bool) -> Figures:
    """Bits per index while real models train on real data, and one step on gradients of a real model of 11 M."""
    figures: Figures = {"bits": [], "steps": {}, "missing": []}
    for data_name, model_name, rounds in (
        ("fashion-mnist", "logistic", 600 if quick else 3000),
        ("fashion-mnist", "mlp", 400 if quick else 2000),
        ("cifar-10", "cnn", 200 if quick else 1500),
    ):
        try:
            for ratio in RATIOS if model_name != "logistic" else RATIOS[:2]:
                case = {"name": f"{TITLES[model_name]}, {TITLES[data_name]}, {rounds:,} steps", "ratio": ratio}
                figures["bits"].append(case | train(data_name, model_name, ratio, rounds))
            if model_name == "cnn":
                figures["steps"] = real_steps(data_name, 25 if quick else 100)
        except MissingData as error:
            Console(stderr=True).print(f"left out: {error}", markup=False)
            figures["missing"].append(f"no {TITLES[data_name]}")
    for ratio, row in figures["steps"].items():
        case = {"name": f"{TITLES['resnet18']}, {TITLES['cifar-10']}, first gradients ¹", "ratio": float(ratio)}
        figures["bits"].append(case | row)
    return figures


def batches(data_name: str, model_name: str, size: int = 32) -> Iterator[Any]:
    """A model and its mini-batches, without end: (model, x, y)."""
    data = load(data_name)
    model = build(model_name, data)
    source = Batches(data, make_partition("iid:clients=10", data), batch_size=size)
    for number in range(1 << 30):
        yield (model, *source.batch(worker=0, round=number))


def train(data_name: str, model_name: str, ratio: float, rounds: int) -> Figures:
    """One worker of ten trains with Top-k and error feedback; the mean bits per index in the second half."""
    feedback: dagc.ErrorFeedback | None = None
    bits: dict[str, list[float]] = {"rice": [], "adaptive": [], "bound": []}
    for number, (model, x, y) in enumerate(batches(data_name, model_name)):
        if number == rounds:
            break
        parameters = list(model.parameters())
        size = sum(p.numel() for p in parameters)
        feedback = feedback or dagc.ErrorFeedback(dagc.top_k, size)
        count = max(1, int(size * ratio))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradient = torch.autograd.grad(loss, parameters)
        sparse = feedback.step(gradient, count)
        start = 0
        with torch.no_grad():
            update = sparse.dense()
            for p in parameters:
                p -= 0.05 * update[start : start + p.numel()].view_as(p)
                start += p.numel()
        if 2 * number >= rounds:
            k = len(sparse)
            bits["rice"].append(8 * rice.plan(sparse.indices, False).size / k)
            bits["adaptive"].append(8 * rice.plan(sparse.indices, True).size / k)
            bits["bound"].append(least_bits(size, k))
    return {"size": size, **{name: float(np.mean(some)) for name, some in bits.items()}}


def real_steps(data_name: str, runs: int) -> Figures:
    """Seconds of a step on real gradients of ResNet-18, as the list of its tensors, and bits per index, by ratio."""
    gradients, flat = [], []
    for number, (model, x, y) in enumerate(batches(data_name, "resnet18", 16)):
        if number == 3:
            break
        parameters = list(model.parameters())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradients.append(list(torch.autograd.grad(loss, parameters)))
        flat.append(torch.cat([part.flatten() for part in gradients[-1]]))
    size = len(flat[0])
    figures: Figures = {}
    for ratio in RATIOS:
        count = int(size * ratio)
        bare, kept = limit(size), ours(dagc.top_k, size, count)
        steps: dict[str, Step] = {"limit": lambda i: bare(flat[i]), "ours": lambda i: kept(gradients[i])}  # noqa: B023
        times = take_turns(steps, [0, 1, 2], runs)
        feedback = dagc.ErrorFeedback(dagc.top_k, size)
        sparse = [feedback.step(gradients[i % 3], count) for i in range(6)][-1]
        figures[str(ratio)] = times | {
            "size": size,
            "bound": least_bits(size, count),
            "rice": 8 * rice.plan(sparse.indices, False).size / count,
            "adaptive": 8 * rice.plan(sparse.indices, True).size / count,
        }
    return figures


MEASURES = {"steps": measure_steps, "codes": measure_codes, "server": measure_server, "real": measure_real}


def in_child(name: str, quick: bool, environment: dict[str, str]) -> Figures:
    """A measure in a process of its own, as the allocator's ways are settled when a process starts."""
    command = [sys.executable, "-m", "benchmarks.kernels", "--only", name, *([] if quick else ["--full"])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout))


def main(quick: bool = True, record: bool = False) -> None:
    """Measure everything; print the tables, and keep them if asked."""
    usual, reusing = in_child("steps", quick, {}), in_child("steps", quick, REUSE)
    found = {name: in_child(name, quick, {}) for name in MEASURES if name != "steps"}
    show_steps(usual, False, quick, record)
    show_steps(reusing, True, quick, record)
    show_codes(found["codes"], record)
    show_real(found["real"], record)
    show_server(found["server"], record)


def show_steps(figures: Figures, reusing: bool, quick: bool, record: bool) -> None:
    """The cost of a step, as multiples of LIMIT."""
    rows = []
    for kind, cases in figures.items():
        for case, times in cases.items():
            size, ratio = int(case.split()[0]), float(case.split()[1])
            cells = {name: f"{times[name] / times['limit']:.3g}" for name in METHODS if name in times}
            if kind == "hard":
                cells["topk"] += " ²"
            else:
                cells["torch"] += f" ({times['topk'] / times['torch']:.1f})"
            faster = f"{times['topk'] / times['ours']:.1f}"
            if reusing:
                last = [faster, f"≥ {WANTED_FASTER[ratio]}" if kind == "top-k" and size == LARGE else ""]
            else:
                last = [f"≤ {WANTED[kind][size][ratio]}", faster]
            label = f"{KINDS[kind]}, {size / 1e6:.0f} M, {percent(times.get('sent', ratio))}"
            multiples = [cells.get(name, "") for name in METHODS]
            rows.append([label, f"{1000 * times['limit']:.2g}", *multiples, *last])
    runs = " and ".join(f"{count} runs at {size / 1e6:.0f} M" for size, count in turns(quick).items())
    notes = [
        f"Multiples of LIMIT, medians of at least {runs}, of other methods a fifth of that",
        "Without numba, at least 4 times faster than torch.topk is wanted at 1 M and 0.1 %",
        "¹ selects about k entries, not exactly k",
        "² a mask and `nonzero` in torch instead of torch.topk",
    ]
    heads, faster = ["", "LIMIT, ms", *METHODS.values()], "× faster than torch.topk"
    if reusing:  # what is wanted stands beside what it is wanted of
        title = "One step, reusing allocator: multiples of residual.add_(gradient)"
        show("kernels-steps-reusing", title, [*heads, faster, "wanted"], rows, record, notes)
    else:
        title = "One step, usual allocator: multiples of residual.add_(gradient)"
        show("kernels-steps", title, [*heads, "wanted", faster], rows, record, notes)


def show_codes(figures: Figures, record: bool) -> None:
    """Bits per index, and the speed of the codes."""
    rows = [["bound, bits per index", *(f"{row['bound']:.2f}" for row in figures.values()), ""]]
    for code, label in CODES.items():
        rows.append([f"{label}, bits per index", *(f"{row[code]['bits']:.2f}" for row in figures.values()), ""])
    over = [f"{row['adaptive']['bits'] / row['bound']:.3f}" for row in figures.values()]
    rows.append(["adaptive Rice over the bound", *over, "≤ 1.03"])
    for code, label in CODES.items():
        for way, least in (("encode", 400), ("decode", 250)):
            speeds = [f"{row[code][way]:.0f}" for row in figures.values()]
            wanted = f"≥ {least} from 0.1 % up" if code == "adaptive" else ""
            rows.append([f"{label}, M indices/s, {way}", *speeds, wanted])
    heads = ["", *(percent(float(ratio)) for ratio in figures), "wanted"]
    show("kernels-indices", "Index codes, random supports of 11 M", heads, rows, record)


def show_real(figures: Figures, record: bool) -> None:
    """Bits per index on real supports, and the cost of a step on real gradients."""
    rows, missing = [], " and ".join(dict.fromkeys(figures["missing"]))
    for row in figures["bits"]:
        bits = [f"{row[name]:.2f}" for name in ("bound", "rice", "adaptive")]
        saved = f"{100 * (1 - row['adaptive'] / row['rice']):.0f} %".replace("-", "−")
        rows.append([row["name"], f"{row['size']:,}", percent(row["ratio"]), *bits, saved])
    heads = ["", "entries", "ratio", "bound if random", "Rice", "adaptive Rice", "saved by adapting"]
    note = "¹ six steps of error feedback over three gradients of the untrained model"
    show("kernels-real", "Bits per index, real models on real data", heads, rows, record, [note], missing)
    rows = []
    for ratio, row in figures["steps"].items():
        label = f"Top-k, {row['size'] / 1e6:.1f} M, {percent(float(ratio))}"
        rows.append([label, f"{1000 * row['limit']:.2g}", f"{row['ours'] / row['limit']:.3g}"])
    title = "One step on gradients of ResNet-18 on CIFAR-10, as a list of tensors: multiples of residual.add_(gradient)"
    lacks = "" if rows else missing  # all of it is of one set
    show("kernels-real-steps", title, ["", "LIMIT, ms", "ours"], rows, record, missing=lacks)


def show_server(figures: Figures, record: bool) -> None:
    """The time of the server's sum."""
    rows = []
    for case, label in SERVERS.items():
        faster = "" if case == "index_add" else f"{figures['index_add'] / figures[case]:.1f}"
        rows.append([label, f"{1000 * figures[case]:.1f}", faster, "≥ 5" if case == "ours" else ""])
    heads = ["", "ms", "× faster than `index_add_`", "wanted"]
    show("kernels-server", "Server, 200 × 0.1 % of 11 M", heads, rows, record)


def percent(share: float) -> str:
    return f"{100 * share:.2g} %"


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="more runs")
    parser.add_argument("--only", choices=MEASURES, help="one measure, in this process, as JSON")
    options = parser.parse_args()
    if options.only:
        torch.set_num_threads(1)
        print(json.dumps(MEASURES[options.only](not options.full)))
    else:
        main(not options.full, options.record)
