"""Every benchmark: `make bench`, or `python -m benchmarks [--full]`."""

import argparse
import time

from benchmarks import data, flower, kernels, training
from rich.console import Console

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="more runs; takes many minutes")
    options = parser.parse_args()
    for module in (kernels, data, training, flower):
        start = time.perf_counter()
        module.main(quick=not options.full)
        Console().print(f"{module.__name__}: {time.perf_counter() - start:.0f} s\n")
