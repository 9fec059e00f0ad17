"""What compression costs: one step, the index codes and the server's sum, beside what others do.

    python -m benchmarks.kernels            # under two minutes; --full takes more runs

Times are CPU time on one thread, as multiples of LIMIT = `residual.add_(gradient)`, medians of runs that take turns.
Everything is measured twice: with the C library's usual allocator, which takes fresh memory for each large temporary
and makes its user pay for the pages, and with one that reuses memory, which is kinder to those who make temporaries.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import dagc
from dagc._numba import compiled
from dagc.data import Batches, load, make_partition
from dagc.errors import MissingData
from dagc.models import build
from dagc.wire import rice

RATIOS = (0.1, 0.01, 0.001)
LARGE, MIDDLE = 11_000_000, 1_000_000
REUSE = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
# Column headings for 80 columns, and what they stand for.
SHOWN = {
    "grace": "GRACE",
    "topk": "topk",
    "dgc": "DGC",
    "torch": "no numba",
    "ours": "ours",
}
NAMES = {
    "grace": "GRACE-style",
    "topk": "torch.topk in place",
    "dgc": "DGC-style sampling (not exact)",
    "torch": "ours without numba",
    "ours": "ours",
}
WANTED = {
    "top-k": {LARGE: {0.1: 3.0, 0.01: 1.8, 0.001: 1.35}, MIDDLE: {0.1: 4.5, 0.01: 3.0, 0.001: 2.0}},
    "hard": {LARGE: {0.1: 1.6, 0.01: 1.35, 0.001: 1.2}},
}
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

    asking = [sys.modules[name] for name in ("dagc.feedback", "dagc.compressors.top_k")]

    def plain_step(gradient: Any) -> object:
        for module in asking:  # setting the environment would take as long as adding half a million entries
            module.compiled = lambda: False  # type: ignore[attr-defined]
        sparse = feedback.step(gradient, parameter)
        for module in asking:
            module.compiled = compiled  # type: ignore[attr-defined]
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


def measure_steps(quick: bool) -> Figures:
    """Multiples of LIMIT for each method, size and ratio."""
    figures: Figures = {"top-k": {}, "hard": {}}
    for size, runs in ((LARGE, 15 if quick else 50), (MIDDLE, 60 if quick else 300)):
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


def measure_codes(quick: bool) -> Figures:
    """Millions of indices a second, and bits per index, on random supports of 11 M."""
    figures: Figures = {}
    rng = np.random.default_rng(0)
    for ratio in (*RATIOS, 0.0001):
        count = int(LARGE * ratio)
        indices = np.flatnonzero(rng.permutation(LARGE) < count)
        bound = (math.lgamma(LARGE + 1) - math.lgamma(count + 1) - math.lgamma(LARGE - count + 1)) / math.log(2) / count
        for adaptive in (False, True):
            section = memoryview(rice.write(rice.plan(indices, adaptive), adaptive))
            assert np.array_equal(rice.read(section, LARGE, count, adaptive), indices)
            repeat = max(1, 200_000 // count)

            def encode(_: object, indices: Any = indices, adaptive: bool = adaptive, repeat: int = repeat) -> None:
                for _ in range(repeat):
                    rice.write(rice.plan(indices, adaptive), adaptive)

            def decode(
                _: object, section: Any = section, count: int = count, adaptive: bool = adaptive, repeat: int = repeat
            ) -> None:
                for _ in range(repeat):
                    rice.read(section, LARGE, count, adaptive)

            times = take_turns({"encode": encode, "decode": decode}, [None], 15 if quick else 100)
            figures[f"{'adaptive ' if adaptive else ''}rice {ratio}"] = {
                "bits": 8 * len(section) / count,
                "bound": bound,
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
        "ours, sparse": lambda _: dagc.aggregate_sparse(sparses, weights),
    }
    times = take_turns(steps, [None], 11 if quick else 50)
    assert torch.allclose(total, other)
    return times


def measure_real(quick: bool) -> Figures:
    """Bits per index while real models train on real data, and one step on gradients of a real model of 11 M."""
    figures: Figures = {}
    rounds = {"logistic": 600, "mlp": 400, "cnn": 200} if quick else {"logistic": 3000, "mlp": 2000, "cnn": 1500}
    for data_name, model_name in (("fashion-mnist", "logistic"), ("fashion-mnist", "mlp"), ("cifar-10", "cnn")):
        try:
            figures |= {
                f"{model_name}@{data_name} {ratio}": train(data_name, model_name, ratio, rounds[model_name])
                for ratio in (RATIOS if model_name != "logistic" else RATIOS[:2])
            }
            if model_name == "cnn":
                figures |= {f"resnet18@{data_name}": real_steps(data_name, 25 if quick else 100)}
        except MissingData as error:
            Console(stderr=True).print(f"left out: {error}", markup=False)
    return figures


def batches(data_name: str, model_name: str, size: int = 32) -> Iterator[Any]:
    """A model and its mini-batches, without end: (model, x, y)."""
    data = load(data_name)
    model = build(model_name, data)
    source = Batches(data, make_partition("iid:workers=10", data), batch_size=size)
    for number in range(1 << 30):
        yield (model, *source.batch(worker=0, round=number))


def train(data_name: str, model_name: str, ratio: float, rounds: int) -> Figures:
    """One worker of ten trains with Top-k and error feedback; the mean bits per index in the second half."""
    feedback: dagc.ErrorFeedback | None = None
    bits: dict[str, list[float]] = {"rice": [], "adaptive": [], "bound": []}
    losses = []
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
        losses.append(loss.item())
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
            combinations = math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1)
            bits["bound"].append(combinations / math.log(2) / k)
    means = {name: float(np.mean(some)) for name, some in bits.items()}
    return means | {"size": size, "first loss": losses[0], "last loss": float(np.mean(losses[-20:]))}


def real_steps(data_name: str, runs: int) -> Figures:
    """Multiples of LIMIT on real gradients of ResNet-18, as the list of its tensors, and its bits per index."""
    gradients, flat = [], []
    for number, (model, x, y) in enumerate(batches(data_name, "resnet18", 16)):
        if number == 3:
            break
        parameters = list(model.parameters())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        gradients.append(list(torch.autograd.grad(loss, parameters)))
        flat.append(torch.cat([part.flatten() for part in gradients[-1]]))
    size = len(flat[0])
    figures: Figures = {"size": size}
    for ratio in RATIOS:
        count = int(size * ratio)
        bare, kept = limit(size), ours(dagc.top_k, size, count)
        steps: dict[str, Step] = {"limit": lambda i: bare(flat[i]), "ours": lambda i: kept(gradients[i])}  # noqa: B023
        times = take_turns(steps, [0, 1, 2], runs)
        feedback = dagc.ErrorFeedback(dagc.top_k, size)
        sparse = [feedback.step(gradients[i % 3], count) for i in range(6)][-1]
        figures[str(ratio)] = times | {
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


def main(quick: bool = True) -> Figures:
    """Measure everything, print the tables, save `results/kernels.json` and a chart; returns the figures."""
    figures = {
        "usual allocator": in_child("steps", quick, {}),
        "reusing allocator": in_child("steps", quick, REUSE),
        **{name: in_child(name, quick, {}) for name in ("codes", "server", "real")},
    }
    folder = Path("results")
    folder.mkdir(exist_ok=True)
    (folder / "kernels.json").write_text(json.dumps(figures, indent=1))
    for table in tables(figures):
        Console().print(table)
    chart(figures, folder / "kernels.svg")
    Console().print(f"saved {folder / 'kernels.json'} and {folder / 'kernels.svg'}")
    return figures


def tables(figures: Figures) -> Iterator[Table]:
    """What was measured, beside what is wanted."""
    for allocator in ("usual allocator", "reusing allocator"):
        title = f"One step, {allocator}: multiples of residual.add_(gradient)"
        table = new_table(title, "", *SHOWN.values(), "want", "× topk")
        for kind, cases in figures[allocator].items():
            for case, times in cases.items():
                size, ratio = int(case.split()[0]), float(case.split()[1])
                multiples = [f"{times[name] / times['limit']:.3g}" if name in times else "" for name in SHOWN]
                wanted = f"≤ {WANTED[kind][size][ratio]}"
                label = f"{kind} {size / 1e6:.0f} M {times.get('sent', ratio):.2%}"
                table.add_row(label, *multiples, wanted, f"{times['topk'] / times['ours']:.1f}")
        yield table
    table = new_table("Index codes, random supports of 11 M", "", "bits", "× bound", "M/s encode", "M/s decode")
    for case, row in figures["codes"].items():
        ratio = row["bits"] / row["bound"]
        table.add_row(case, f"{row['bits']:.2f}", f"{ratio:.3f}", f"{row['encode']:.0f}", f"{row['decode']:.0f}")
    yield table
    table = new_table("Server, 200 × 0.1 % of 11 M", "", "ms", "× index_add_")
    for case, seconds in figures["server"].items():
        table.add_row(case, f"{seconds * 1e3:.1f}", f"{figures['server']['index_add'] / seconds:.1f}")
    yield table
    table = new_table("Bits per index, real models on real data", "", "entries", "bound", "Rice", "adaptive")
    for case, row in figures["real"].items():
        if "bound" in row:
            cells = [f"{row[name]:.2f}" for name in ("bound", "rice", "adaptive")]
            table.add_row(case, f"{row['size']:,}", *cells)
    yield table
    for case, row in figures["real"].items():
        if "bound" not in row:
            table = new_table(
                f"One step on gradients of {case}, as a list of tensors", "", "× LIMIT", "Rice", "adaptive"
            )
            for ratio in map(str, RATIOS):
                times = row[ratio]
                cells = [f"{times['ours'] / times['limit']:.2f}", f"{times['rice']:.2f}", f"{times['adaptive']:.2f}"]
                table.add_row(f"top-k, {float(ratio):.1%}", *cells)
            yield table


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def chart(figures: Figures, path: Path) -> None:
    """Bars on a logarithmic scale: what a step of 11 M costs with each method. Plain SVG, nothing to install."""
    colours = {"grace": "#b9b9b9", "topk": "#8f8f8f", "dgc": "#6b8fb3", "torch": "#e9a15b", "ours": "#d1495b"}
    cases = {f"{ratio:.1%}": figures["reusing allocator"]["top-k"][f"{LARGE} {ratio}"] for ratio in RATIOS}
    bar, left, full = 16, 60, 460
    out, y = [], 50
    for label, times in cases.items():
        out.append(f'<text x="8" y="{y + 3 * bar}" font-weight="bold">{label}</text>')
        for name in SHOWN:
            multiple = times[name] / times["limit"]
            width = max(1.0, full * math.log10(max(multiple, 1)) / math.log10(200))
            out.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{bar - 3}" fill="{colours[name]}"/>')
            out.append(f'<text x="{left + width + 5:.1f}" y="{y + 11}">{multiple:.3g}  {NAMES[name]}</text>')
            y += bar
        y += bar
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{y}" font-family="sans-serif" font-size="12">'
    title = "Top-k with error feedback, 11 M entries: multiples of residual.add_(gradient), reusing allocator"
    background = f'<rect width="760" height="{y}" fill="white"/><text x="8" y="20" font-size="14">{title}</text>'
    background += '<text x="8" y="38">logarithmic scale; shorter is better</text>'
    path.write_text("\n".join([head, background, *out, "</svg>"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more runs")
    parser.add_argument("--only", choices=MEASURES, help="one measure, in this process, as JSON")
    options = parser.parse_args()
    if options.only:
        torch.set_num_threads(1)
        print(json.dumps(MEASURES[options.only](not options.full)))
    else:
        main(not options.full)
