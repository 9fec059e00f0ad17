"""No compression: everybody sends everything."""

from typing import Any

from dagc.policies.plan import Plan
from dagc.policies.policy import Situation

__all__ = ["Everything"]


class Everything:
    """No compression, and so no parameter."""

    wants_norms = False
    compressor = "none"

    def __init__(self, plan: Plan, size: int) -> None:
        """There is no budget to keep."""

    def decide(self, now: Situation) -> list[Any]:
        """None for everybody."""
        return [None] * len(now.present)

    def state_dict(self) -> dict[str, Any]:
        """It has no memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """It has no memory."""
