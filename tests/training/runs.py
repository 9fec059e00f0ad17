"""Short trainings of the local engine, for tests."""

from contextlib import contextmanager

import torch

from dagc.policies import METHODS
from dagc.training import Config, Federation

BUDGET = {"ratio": {"ratio": 0.02}, "threshold": {"threshold": 0.02}}


def config(method="dagc-r", **fields):
    budgets = METHODS[method].budgets
    budget = BUDGET[budgets[0]] if budgets else {}
    return Config(**{"task": "logistic@digits", "method": method, "rounds": 12, "skew_ratio": 20, **budget, **fields})


def final(settings):
    federation = Federation(settings)
    return federation, [federation.step() for _ in range(settings.rounds)]


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
