"""How long data takes: loading CIFAR-10, and a batch beside the step that it feeds."""

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from dagc.data import Batches, Dataset, load, make_partition
from dagc.errors import MissingData
from dagc.models import build


def main(quick: bool = False) -> dict[str, float]:
    """Measure on one thread, print a table, return seconds and shares; sets that are not here are left out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = _measure(20 if quick else 200)
    finally:
        torch.set_num_threads(threads)
    table = Table(title="Data, one thread", title_justify="left")
    for column in ("figure", "value", "wanted"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        shown = (
            f"{value:.1%}" if name.endswith("share") else f"{value:.2f} s" if value > 0.1 else f"{value * 1e6:,.0f} µs"
        )
        table.add_row(name.replace("_", " "), shown, WANTED.get(name, ""))
    Console().print(table)
    return figures


WANTED = {
    "cifar_10_load": "< 3 s",
    "cifar_10_cnn_batch_share": "< 5 %",
    "cifar_10_cnn_augmented_batch_share": "< 5 %",
    "fashion_mnist_logistic_batch": "≤ 50 µs",
}


def _measure(rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, model_name in (("fashion-mnist", "logistic"), ("cifar-10", "cnn")):
        key = name.replace("-", "_")
        try:
            start = time.perf_counter()
            data = load(name)
            figures[f"{key}_load"] = time.perf_counter() - start
        except MissingData as error:
            Console(stderr=True).print(f"left out: {error}", markup=False)
            continue
        step = _median(_step(data, model_name), max(10, rounds // 4))
        batch = _median(_batch(data), rounds)
        figures |= {f"{key}_{model_name}_step": step, f"{key}_{model_name}_batch": batch}
        figures[f"{key}_{model_name}_batch_share"] = batch / step
        if name == "cifar-10":
            augmented = _median(_batch(load(name, augment=True)), rounds)
            figures[f"{key}_{model_name}_augmented_batch_share"] = augmented / step
    return figures


def _batch(data: Dataset) -> Callable[[int], object]:
    split = make_partition("skewed:workers=10,skew_ratio=100", data)
    batches = Batches(data, split, 32)
    return lambda number: batches.batch(number % split.workers, number // split.workers)


def _step(data: Dataset, name: str) -> Callable[[int], object]:
    """Forward, backward and update on a batch of 32 that is ready."""
    model = build(name, data)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = data.normalise(data.train_x[:32]), data.train_y[:32]

    def step(_: int) -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

    return step


def _median(run: Callable[[int], object], rounds: int) -> float:
    times = []
    for number in range(rounds + 5):
        start = time.perf_counter()
        run(number)
        times.append(time.perf_counter() - start)
    return sorted(times[5:])[rounds // 2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more batches")
    main(quick=not parser.parse_args().full)
