"""How many schedules of faults each engine survives: what `make chaos` does, as a table.

    python -m benchmarks.chaos --minutes 5                      # --seed for other schedules
    python -m benchmarks.chaos --schedules 300 --minutes 120    # until each engine has survived so many
    python -m benchmarks.chaos --record                         # keeps the table for docs/explanation/reliability.md

Any promise that does not hold ends the run with the command that repeats it.
"""

import sys
import time
from collections import Counter

import torch

from benchmarks.tables import arguments, kept
from tests.chaos import ENGINES, break_engine

RATES = (0.3, 1.0, 2.0)
"""Faults, as multiples of the usual, in turn."""
NAMES = {"halves": "protocol alone", "local": "local engine", "flower": "Flower", "ddp": "DDP and local steps"}


def main() -> int:
    """Run all engines in turn, with the same seed each, until time is up."""
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--schedules", type=int, default=sys.maxsize, help="per engine, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    happened = {engine: Counter[str]() for engine in ENGINES}
    began, done = time.monotonic(), 0
    while done < options.schedules and time.monotonic() - began < 60 * options.minutes:
        for engine, faults in happened.items():
            seed, rate = options.seed + done, RATES[done % len(RATES)]
            try:
                faults.update(break_engine(engine, seed, rate))
            except BaseException:
                again = f"--engine {engine} --seed {seed} --rate {rate:g} --schedules 1"
                print(f"repeat it with: python -m tests.chaos {again}", file=sys.stderr)
                raise
        done += 1
        if done % 25 == 0:
            print(f"{done * len(ENGINES):,} schedules held", file=sys.stderr, flush=True)
    heads = ["engine", "schedules", "faults", "kinds", "the most frequent ones"]
    with kept("chaos", "Schedules of faults", heads, options.record, wanted=len(ENGINES)) as sheet:
        for engine, faults in happened.items():
            kinds = ", ".join(f"{name} {count:,}" for name, count in faults.most_common(6))
            sheet.add([NAMES[engine], f"{done:,}", f"{faults.total():,}", f"{len(faults)}", kinds])
        total = sum(faults.total() for faults in happened.values())
        sheet.notes.append(f"{done * len(ENGINES):,} schedules with {total:,} faults: every promise held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
