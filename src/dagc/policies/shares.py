"""Bytes by data: each round's bytes are divided among the clients present; the encoder chooses what each sends."""

from typing import Any

import numpy as np

from dagc.allocation import apportion
from dagc.policies.plan import Plan
from dagc.policies.policy import Situation
from dagc.policies.rate import finite

__all__ = ["Shares", "most_bytes"]

LEAST = 16
"""The fewest bytes that are worth a frame; a client whose share is smaller saves it up."""
EXPONENT = 2 / 3
"""Of a client's share of the data: with this one, equal bytes reach an accuracy in the fewest rounds."""
DENSE = 2
"""The most bytes per entry that a frame can use."""


class Shares:
    """A client's share of the bytes is in proportion to (its share of the data)^exponent, so that the budget holds.

    Args:
        plan: The budget.
        size: The number of entries of the model.
    """

    compressor = "best"
    wants_norms = False

    def __init__(self, plan: Plan, size: int) -> None:
        self.plan, self.size = plan, size
        self.exponent = EXPONENT if plan.exponent is None else plan.exponent
        self._saved: dict[str, float] = {}

    def decide(self, now: Situation) -> list[Any]:
        """As `Policy.decide`: a number of bytes for each client."""
        assert now.allowance is not None, "plans for this method have a budget in bytes"
        weights = np.array([now.examples[name] for name in now.present])
        quota = (weights / weights.max()) ** self.exponent
        quota = quota / quota.sum() + [self._saved.get(name, 0.0) for name in now.present]
        most = np.array([most_bytes(self.plan, self.size, name) for name in now.present])
        amounts = apportion(quota, min(now.allowance, int(most.sum())), most, least=0)
        sending = amounts >= LEAST
        if sending.any() and not sending.all():
            amounts[sending] = apportion(quota[sending], min(now.allowance, int(most[sending].sum())), most[sending])
        amounts[~sending] = 0
        self._saved |= {
            name: 0.0 if amount else float(share)
            for name, amount, share in zip(now.present, amounts, quota, strict=True)
        }
        return [int(amount) for amount in amounts]

    def state_dict(self) -> dict[str, Any]:
        return {"saved": dict(self._saved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = {str(name): finite(saved) for name, saved in state["saved"].items()}


def most_bytes(plan: Plan, size: int, name: str) -> int:
    """The most bytes that a client sends in a round: its cap, or what a frame can use.

    Example:
        >>> most_bytes(Plan(caps={"ann": 0.01}), 1000, "ann"), most_bytes(Plan(), 1000, "bob")
        (40, 2064)
    """
    return min(max(int(plan.caps.get(name, 1.0) * 4 * size), LEAST), DENSE * size + 64)
