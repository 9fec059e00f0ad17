"""Doing without the exchange of `dagc-global`, and what its changing counts cost: `python -m benchmarks.in_vain`.

Logistic@Fashion-MNIST, SR 100, a budget in entries: outlines cost nothing here. Two of the ways get them a round late.
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


class Shaken(OneThreshold):
    """The power rule, with each client's part up or down by about as much as with one threshold, but by chance."""

    def answer(self, present, floors, messages):
        """What clients tell is not looked at."""
        self.random = getattr(self, "random", np.random.default_rng(0))
        quota = np.exp2(self._weights[list(present)]) * np.exp(0.45 * self.random.standard_normal(len(present)))
        return self._share(quota, list(present), 0).tolist()


class Smoothed(OneThreshold):
    """One threshold, but each client's count moves only a fifth of the way from round to round."""

    def answer(self, present, floors, messages):
        """It begins with the power rule."""
        right = np.array(super().answer(present, floors, messages))
        before = getattr(self, "counts", np.array(self.parameters(0, present, ())))
        self.counts = 0.8 * before + 0.2 * right
        return self._share(self.counts, list(present), 0).tolist()


def main(seeds: int, rounds: int, ratio: float) -> None:
    """Print how far each gets, and how evenly it sends."""
    others = {
        "last counts": LastCounts,
        "last threshold": LastThreshold,
        "power rule, shaken": Shaken,
        "dagc-global, smoothed": Smoothed,
    }
    for name, policy in others.items():
        POLICIES[name] = Method(("ratio",), policy)
    table = Table(
        "method",
        "final accuracy",
        "rounds to 75 %",
        "entries to 75 %",
        "entries a round",
        title=__doc__.splitlines()[0],
    )
    for method in ("dagc-global", "dagc-r", "top-k", *others):
        ends, reached, taken, sent = [], [], [], []
        for seed in range(seeds):
            config = Config(task="logistic@fashion-mnist", method=method, ratio=ratio, rounds=rounds, seed=seed,
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
    parser.add_argument("--ratio", type=float, default=0.001, help="of the entries of all clients together")
    options = parser.parse_args()
    main(options.seeds, options.rounds, options.ratio)
