"""Two ways to do without the exchange of `dagc-global`, and why not to: `python -m benchmarks.in_vain`.

Logistic@Fashion-MNIST, SR 100, a budget of 0.1 % of the entries. Both get the outlines for nothing, a round late.
"""

import argparse
from statistics import mean, stdev

import numpy as np
from rich.console import Console
from rich.table import Table

from dagc.policies import POLICIES, Method, OneThreshold
from dagc.policies.one_threshold import _counts
from dagc.training import Config, train
from dagc.wire.outline import read_outline


class LastCounts(OneThreshold):
    """Everybody sends as many entries as would have been right a round ago."""

    before = None

    def answer(self, present, floors, messages):
        """This round's counts are for the next one."""
        right = super().answer(present, floors, messages)
        now, self.before = self.before or self.parameters(0, present, ()), right
        return now


class LastThreshold(OneThreshold):
    """Everybody sends what is above the threshold that would have been right a round ago."""

    def answer(self, present, floors, messages):
        """However many entries that is now; the threshold found is for the next round."""
        before = self._threshold
        right = super().answer(present, floors, messages)
        if before is None or self._threshold is None:
            return right
        outlines = [read_outline(m, floor, self._reach) for m, floor in zip(messages, floors, strict=True)]
        speaking = [k for k, outline in enumerate(outlines) if len(outline)]
        points = self._points([outlines[k] for k in speaking], [floors[k] for k in speaking])
        points += self._weights[list(present)][speaking, None]
        found = np.zeros(len(outlines), dtype=np.int64)
        found[speaking] = _counts(points, self._most[list(present)][speaking], before).round()
        return found.tolist()


def main(seeds: int, rounds: int) -> None:
    """Print how far each gets, and how evenly it sends."""
    POLICIES["last counts"] = Method(("ratio",), LastCounts)
    POLICIES["last threshold"] = Method(("ratio",), LastThreshold)
    table = Table(
        "method",
        "final accuracy",
        "rounds to 75 %",
        "entries to 75 %",
        "entries a round",
        title=__doc__.splitlines()[0],
    )
    for method in ("dagc-global", "dagc-r", "top-k", "last counts", "last threshold"):
        ends, reached, taken, sent = [], [], [], []
        for seed in range(seeds):
            config = Config(task="logistic@fashion-mnist", method=method, ratio=0.001, rounds=rounds, seed=seed,
                            evaluate_every=20, threads=1)  # fmt: skip
            results = list(train(config))
            accuracies = [(r.round, r.accuracy) for r in results if r.accuracy is not None]
            ends.append(100 * mean(accuracy for _, accuracy in accuracies[-5:]))
            reached.append(next((round for round, accuracy in accuracies if accuracy >= 0.75), rounds))
            taken.append(sum(r.entries for r in results[: reached[-1]]))
            sent += [r.entries for r in results]
        table.add_row(
            method,
            f"{mean(ends):.2f} ± {stdev(ends):.2f} %",
            f"{mean(reached):.0f}",
            f"{mean(taken):,.0f} ± {stdev(taken):,.0f}",
            f"{mean(sent):.0f} ± {stdev(sent):.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=800)
    options = parser.parse_args()
    main(options.seeds, options.rounds)
