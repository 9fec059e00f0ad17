"""Fault injection: engines run while a schedule of faults, drawn from a seed, breaks everything around them.

    python -m tests.chaos --seed 0 --minutes 5

Messages are lost, late, repeated or damaged, processes die, disks are full. The promises are checked at the end of each
schedule: nothing is lost, budgets are kept, and every error is one of ours.

Example:
    >>> break_engine("halves", seed=3).total() > 10
    True
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos.ddp import break_ddp
from tests.chaos.faults import Broken, Faults, Killed
from tests.chaos.flower import break_flower
from tests.chaos.folder import break_folder
from tests.chaos.halves import break_halves

__all__ = ["ENGINES", "Broken", "Faults", "Killed", "break_engine"]

ENGINES: dict[str, Callable[[Faults, Path], None]] = {
    "halves": break_halves,
    "local": break_folder,
    "flower": break_flower,
    "ddp": break_ddp,
}
"""What breaks each engine, by name; `halves` is the protocol alone, with a network of its own."""


def break_engine(engine: str, seed: int, rate: float = 1.0) -> Counter[str]:
    """Run one schedule; returns how often each fault happened.

    Args:
        engine: A name in `ENGINES`.
        seed: The seed of the schedule.
        rate: How often things go wrong, as a multiple of the usual probabilities.

    Raises:
        Broken: If a promise did not hold.
    """
    faults = Faults(seed, rate)
    with TemporaryDirectory() as folder:
        ENGINES[engine](faults, Path(folder))
    return faults.happened
