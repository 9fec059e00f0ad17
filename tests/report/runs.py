"""Runs that nobody has made, for the tests of reports."""

import json
import re
from pathlib import Path

from dagc.folder import BEST, FINAL, SCORE
from dagc.report import Panel, Run, Series
from dagc.training import Config


def made(accuracies, *, seed=0, method="top-k", step=100, entries=10, clients=None, **fields):
    """A run of the local engine with these accuracies, one evaluation a round."""
    budgets = {"ratio", "bytes", "rate", "threshold"}
    budget = {} if method == "none" or budgets & fields.keys() else {"ratio": 0.01}
    config = Config(task="logistic@digits", method=method, seed=seed, **{"rounds": len(accuracies), **budget, **fields})
    return with_settings(
        {n: v for n, v in config.as_dict().items() if v is not None}, accuracies, step, entries, clients
    )


def flower(accuracies, name="digits", *, strategy="FedAvg", step=100, entries=10, clients=None, **plan):
    """A run of Flower: only what is known about one."""
    settings = {"engine": "flower", "task": name, "strategy": strategy, "rounds": len(accuracies)}
    known = {"sizes": [90, 10], "names": ["harbour", "<buoy>"], "parameters": 1000, **(clients or {})}
    return with_settings({**settings, "method": "dagc-r", "ratio": 0.01, **plan}, accuracies, step, entries, known)


def with_settings(settings, accuracies, step, entries, clients=None):
    rows = [
        {
            "round": n,
            SCORE: accuracy,
            "bytes_up": step * n,
            "bytes_down": 2 * step * n,
            "seconds": n / 10,
        }
        for n, accuracy in enumerate(accuracies, start=1)
    ]
    clients = clients or {
        "sizes": [90, 10],
        "classes": ["cat", "</script><b>dog"],
        "parameters": 1000,
        "first_parameters": [9, 1] if settings["method"] != "none" else [None, None],
        "notes": [],
    }
    result = {
        "rounds": len(rows),
        FINAL: accuracies[-1],
        BEST: max(accuracies),
        "bytes_up": rows[-1]["bytes_up"],
        "bytes_down": rows[-1]["bytes_down"],
        "seconds": rows[-1]["seconds"],
        "entries_sent": entries * len(rows),
    }
    return Run(Path("nowhere"), settings, clients, rows, result)


def data_of(text):
    """What the page's script gets."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1], parse_constant=refuse)


def two_series():
    good = Series("good", (made([0.5, 0.8], seed=0), made([0.7, 0.9], seed=1)))
    bad = Series("bad & worse_1", (made([0.4, 0.6], seed=0), made([0.5, 0.5], seed=1)))
    return Panel("a problem", (good, bad), (0.5, 0.7))
