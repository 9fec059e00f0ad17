"""The benchmarks that need one computer: `make bench`, or `python -m benchmarks [--full] [--record]`."""

import time

from rich.console import Console

from benchmarks import data, flower, flower_apps, kernels, training
from benchmarks.tables import arguments

if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--full", action="store_true", help="more runs; takes many minutes")
    options = parser.parse_args()
    for module in (kernels, data, training, flower, flower_apps):  # the last one sets the threads for good
        start = time.perf_counter()
        module.main(not options.full, options.record)
        Console().print(f"{module.__name__}: {time.perf_counter() - start:.0f} s\n")
