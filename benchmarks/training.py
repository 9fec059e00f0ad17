"""How long a round takes beside the bare gradients, how that grows with the workers, and how much memory it needs.

python -m benchmarks.training --full --record     # the table of docs/studies/performance.md
"""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from benchmarks.tables import arguments, show
from dagc.errors import MissingData
from dagc.training import Config, Federation

TITLES = {"logistic@fashion-mnist": "Logistic@FMNIST", "cnn@cifar-10": "CNN@CIFAR-10"}
LOGISTIC, CNN = TITLES.values()
WANTED = {
    f"{CNN}: a round / ten bare gradients": "≤ 1.1",
    f"{LOGISTIC}: rounds per second": "≥ 300",
    f"{LOGISTIC}: time of a round, 1,000 workers / 100 workers": "≈ 10",
    f"{LOGISTIC}, 1,000 workers: memory / (residuals + data)": "≤ 1.3",
    f"{CNN}, 200 workers: memory / (residuals + data)": "≤ 1.3",
}


def main(quick: bool = True, record: bool = False) -> None:
    """Measure and print a table, and keep it if asked; sets that are not here are left out."""
    figures: dict[str, float] = {}
    measures = [partial(measure, quick) for measure in (_cnn, _logistic, _workers)]
    measures.append(partial(_memory, "logistic@fashion-mnist", 1000))
    if not quick:
        measures.append(partial(_memory, "cnn@cifar-10", 200))  # takes a minute
    missing = ["a quick run leaves out the memory of 200 workers of the CNN"] if quick else []
    left_out = []
    for measure in measures:
        try:
            figures |= measure()
        except MissingData as error:
            left_out.append(str(error))
        except subprocess.CalledProcessError as error:  # a process of its own says why on its last line
            left_out.append(error.stderr.splitlines()[-1])
    for why in left_out:
        print(f"left out: {why}", file=sys.stderr, flush=True)
    if left_out:
        missing.append(f"{len(measures) - len(left_out)} of {len(measures)} parts")
    rows = [
        [name, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", WANTED.get(name, "")]
        for name, value in figures.items()
    ]
    title = "Training, DAGC-R at 0.1 %, 10 workers"
    show("training", title, ["", "measured", "wanted"], rows, record, missing="; ".join(missing))


def _logistic(quick: bool) -> dict[str, float]:
    federation = Federation(Config(task="logistic@fashion-mnist", method="dagc-r", ratio=0.001))
    best = _best(federation.step, 50, 4 if quick else 10)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a round
    gradients = _best(lambda: [federation.gradients(federation.round, [i]) for i in range(10)], 50, 4 if quick else 10)
    torch.set_num_threads(threads)
    return {
        f"{LOGISTIC}: rounds per second": 1 / best,
        f"{LOGISTIC}: a round, ms": 1000 * best,
        f"{LOGISTIC}: ten bare gradients, one after the other, ms": 1000 * gradients,
    }


def _cnn(quick: bool) -> dict[str, float]:
    """Rounds and bare gradients take turns, so that both meet the same machine."""
    federation = Federation(Config(task="cnn@cifar-10", method="dagc-r", ratio=0.001, learning_rate=0.01))
    threads = torch.get_num_threads()
    rounds, one_by_one, two_by_two = [], [], []
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for turn in range(6 if quick else 20):
            rounds.append(_timed(federation.step))
            torch.set_num_threads(1)
            two_by_two.append(
                _timed(lambda: list(pool.map(lambda i: federation.gradients(federation.round, [i]), range(10))))
            )
            torch.set_num_threads(threads)
            one_by_one.append(_timed(lambda: [federation.gradients(federation.round, [i]) for i in range(10)]))
            if turn == 1:  # the first ones warm up, and find out whether threads pay
                for list_ in (rounds, one_by_one, two_by_two):
                    list_.clear()
    bare = min(_median(one_by_one), _median(two_by_two))
    return {
        f"{CNN}: a round, ms": 1000 * _median(rounds),
        f"{CNN}: ten bare gradients on all cores, ms": 1000 * bare,
        f"{CNN}: a round / ten bare gradients": _median(rounds) / bare,
    }


def _workers(quick: bool) -> dict[str, float]:
    took = {}
    for workers in (100, 1000):
        settings = Config(task="logistic@fashion-mnist", method="dagc-r", ratio=0.001, workers=workers)
        federation = Federation(settings)
        took[workers] = _best(federation.step, 2, 2 if quick else 5)
    return {f"{LOGISTIC}: time of a round, 1,000 workers / 100 workers": took[1000] / took[100]}


PEAK = """
import re, sys
from pathlib import Path
from dagc.training import Config, Federation

def status(name):
    return 1024 * int(re.search(name + r":\\s*(\\d+)", Path("/proc/self/status").read_text()).group(1))

def run(task, workers, ratio):
    federation = Federation(Config(task=task, method="dagc-r", ratio=ratio, workers=workers, threads=2))
    federation.step()
    federation.step()
    federation.evaluate()
    return federation

run("mlp@digits", 2, 0.02)  # loads the libraries and compiles the kernels
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
federation = run(sys.argv[1], int(sys.argv[2]), 0.001)
data = federation.data
needed = sum(part.nbytes for part in (data.train_x, data.train_y, data.test_x, data.test_y))
needed += 4 * federation.size * int(sys.argv[2])
print((status("VmHWM") - before) / needed)
"""


def _memory(task: str, workers: int) -> dict[str, float]:
    """In a process of its own, above what a small federation needs (the libraries)."""
    command = [sys.executable, "-c", PEAK, task, str(workers)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return {f"{TITLES[task]}, {workers:,} workers: memory / (residuals + data)": float(result.stdout)}


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _best(function: Callable[[], object], calls: int, repeats: int) -> float:
    """Seconds per call in the best of several stretches: other programs only ever add."""
    function()
    function()

    def stretch() -> None:
        for _ in range(calls):
            function()

    return min(_timed(stretch) for _ in range(repeats)) / calls


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="more rounds, and the memory of 200 workers of the CNN")
    options = parser.parse_args()
    main(not options.full, options.record)
