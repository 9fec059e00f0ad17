"""Many schedules of faults, engine by engine: `make chaos`, or `python -m tests.chaos --seed 0 --minutes 5`."""

import argparse
import sys
import time
from collections import Counter

from tests.chaos import ENGINES, break_engine


def main() -> int:
    """Run schedules until time is up or one fails; a failure is printed with the command that repeats it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first schedule; each further one has the next seed"
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="when to stop (default: 15)")
    parser.add_argument("--schedules", type=int, help="when to stop, as a number of schedules")
    parser.add_argument("--engine", choices=list(ENGINES), action="append", help="default: all, in turn")
    parser.add_argument("--rate", type=float, default=1.0, help="number of faults, as a multiple of the usual")
    options = parser.parse_args()
    engines = options.engine or list(ENGINES)
    done: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    began, seed = time.monotonic(), options.seed
    while sum(done.values()) < (options.schedules or sys.maxsize):
        if options.schedules is None and time.monotonic() - began > 60 * options.minutes:
            break
        engine = engines[sum(done.values()) % len(engines)]
        try:
            happened += break_engine(engine, seed, options.rate)
        except BaseException:
            again = f"--engine {engine} --seed {seed} --rate {options.rate:g} --schedules 1"
            print(f"\n{engine} broke with seed {seed}; repeat it with: python -m tests.chaos {again}", file=sys.stderr)
            raise
        done[engine] += 1
        if engine == engines[-1]:
            seed += 1
        if sum(done.values()) % 100 == 0:
            print(f"{sum(done.values()):,} schedules held", flush=True)
    print(f"all held: {_words(done)}; in them {_words(happened)}")
    return 0


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())


if __name__ == "__main__":
    sys.exit(main())
