"""How long data takes: loading CIFAR-10, and a batch beside the step that it feeds."""

import time
from collections.abc import Callable

import torch
from rich.console import Console

from benchmarks.tables import arguments, show
from dagc.data import Batches, Dataset, load, make_partition
from dagc.errors import MissingData
from dagc.models import build


def main(quick: bool = True, record: bool = False) -> None:
    """Measure on one thread and print a table, and keep it if asked; sets that are not here are left out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures, missing = _measure(20 if quick else 200)
    finally:
        torch.set_num_threads(threads)
    rows = [[name, shown, WANTED.get(name, "")] for name, shown in figures.items()]
    heads = ["", "measured", "wanted"]
    show("data", "Data, one thread, batches of 32", heads, rows, record, missing=" and ".join(missing))


WANTED = {
    "CIFAR-10: loading": "< 3 s",
    "CIFAR-10: a batch / a step of the CNN": "< 5 %",
    "CIFAR-10: an augmented batch / a step of the CNN": "< 5 %",
    "Fashion-MNIST: a batch": "≤ 50 µs",
}


def _measure(rounds: int) -> tuple[dict[str, str], list[str]]:
    """What was measured, and what is missing."""
    figures: dict[str, str] = {}
    missing: list[str] = []
    for name, title, model_name, model_title in (
        ("fashion-mnist", "Fashion-MNIST", "logistic", "logistic regression"),
        ("cifar-10", "CIFAR-10", "cnn", "the CNN"),
    ):
        try:
            start = time.perf_counter()
            data = load(name)
            figures[f"{title}: loading"] = _time(time.perf_counter() - start)
        except MissingData as error:
            Console(stderr=True).print(f"left out: {error}", markup=False)
            missing.append(f"no {title}")
            continue
        step = _median(_step(data, model_name), max(10, rounds // 4))
        batch = _median(_batch(data), rounds)
        figures[f"{title}: a batch"] = _time(batch)
        figures[f"{title}: a step of {model_title}"] = _time(step)
        figures[f"{title}: a batch / a step of {model_title}"] = f"{100 * batch / step:.1f} %"
        if name == "cifar-10":
            augmented = _median(_batch(load(name, augment=True)), rounds)
            figures[f"{title}: an augmented batch / a step of {model_title}"] = f"{100 * augmented / step:.1f} %"
    return figures, missing


def _time(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.1f} ms" if seconds >= 0.001 else f"{1e6 * seconds:.0f} µs"


def _batch(data: Dataset) -> Callable[[int], object]:
    split = make_partition("skewed:clients=10,skew_ratio=100", data)
    batches = Batches(data, split, 32)
    return lambda number: batches.batch(number % len(split), number // len(split))


def _step(data: Dataset, name: str) -> Callable[[int], object]:
    """Forward, backward and update on a batch of 32 that is ready."""
    model = build(name, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = data.normalize(data.train_x[:32]), data.train_y[:32]

    def step(_: int) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def _median(run: Callable[[int], object], rounds: int) -> float:
    times = []
    for number in range(rounds + 5):
        start = time.perf_counter()
        run(number)
        times.append(time.perf_counter() - start)
    return sorted(times[5:])[rounds // 2]


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="more batches")
    options = parser.parse_args()
    main(not options.full, options.record)
