"""No compression: every client sends everything."""

from typing import Any

from dagc.policies.plan import Plan
from dagc.policies.policy import Situation

__all__ = ["Everything"]


class Everything:
    """No compression, and so no parameter."""

    wants_norms = False
    compressor = "none"

    def __init__(self, plan: Plan, size: int) -> None:
        """Take the arguments of every policy; there is no budget to keep."""

    def decide(self, now: Situation) -> list[Any]:
        """No parameter for any client."""
        return [None] * len(now.present)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is nothing to remember."""
