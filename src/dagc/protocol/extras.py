"""What may be sent beyond a round's budget where the user has given none: at the start, and to clients that are rare.

At its default budget, a method whose encoder chooses what a frame holds (`dagc`) has these extras, if its downlink is
not lossless. A budget of the user's is kept as it is.

- Start: a client's first upload and the first eight broadcasts carry 95 % of the energy, if that takes at most eight
  times their usual bytes. Later, error feedback has made up for the rest.
- Lean frames: a frame whose usual bytes would carry less than 70 % of the energy may take up to half as many more, as
  long as it has no more than a tenth of a byte per entry. Some models need that, others do not.
- Rare clients: a client that comes rarely visits. It downloads the model rounded instead of keeping an exact copy, and
  sends most of its change at once instead of keeping the rest for a next time that may never come.
- Momentum: broadcasts that carry less than 40 % of what the server's model has moved ruin training with momentum.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagc.errors import BudgetWarning
from dagc.policies import Plan
from dagc.policies.allocated import most_bytes
from dagc.policies.plan import MOST_PART, level_bytes
from dagc.protocol.roster import Member

FIRST_SHARE, FIRST_TIMES, FIRST_BROADCASTS = 0.95, 8, 8
LEAN_SHARE, LEAN_TIMES = 0.7, 1.5
VISIT_AFTER = 8
"""Where clients are typically away for more rounds than this, all of them visit. Elsewhere, one that was away for
longer, and so the time before, visits if catching up exactly would take more bytes than the rounded model. Once is
chance: a visitor keeps nothing, so that one that returns soon would have to download the whole model."""
VISIT_PART, VISIT_LEAST, VISIT_SHARE = 2, 64, 0.9
"""The most bytes of a visitor's upload: half a byte per entry, and a few; and the share of the energy that is enough,
which is all but a third of the length of its change."""
MOMENTUM_SHARE, STARVED_ROUNDS = 0.4, 5
"""Momentum ruins training if broadcasts carry less than this share of the energy, for more than a few rounds."""


Ways = Sequence[tuple[float, float]]
"""Shares of the energy that a broadcast carries, each if that takes at most so many times its usual bytes."""


class Extra(NamedTuple):
    """What one upload may take beyond its budget; the fields are those of `Order`."""

    amount: Any = 0
    share: float = 0.0
    least: int = 0


class Extras:
    """What a plan, as the user gave it, allows beyond its budget; and if the server's model moves with momentum."""

    def __init__(self, plan: Plan, size: int, momentum: bool = False) -> None:
        self.allowed = plan.method_spec.encodes and not plan.lossless and not plan.budgets_set
        self._plan, self._size, self._momentum = plan, size, momentum
        self._starved = 0  # rounds in a row
        room = size * MOST_PART / level_bytes(size)
        self._lean_times = min(LEAN_TIMES, room) if self.allowed and room > 1 else 1.0

    def visitor_upload(self, name: str) -> Extra:
        """What a visitor sends: as short as it is enough."""
        return Extra(min(self._size // VISIT_PART + VISIT_LEAST, most_bytes(self._plan, self._size, name)), VISIT_SHARE)

    def upload(self, member: Member, amount: Any) -> Extra:
        """What a client may send that would usually have so many bytes."""
        first = not member.accepted_round
        times = FIRST_TIMES if first else self._lean_times
        if not self.allowed or times == 1:
            return Extra(amount)
        most = min(int(times * amount), most_bytes(self._plan, self._size, member.name))
        return Extra(most, FIRST_SHARE) if first else Extra(most, LEAN_SHARE, amount)

    def broadcast(self, version: int) -> Ways:
        """What the broadcast after this version may take."""
        if not self.allowed:
            return []
        if version < FIRST_BROADCASTS:
            return [(FIRST_SHARE, FIRST_TIMES)]
        lean = [(LEAN_SHARE, self._lean_times)] if self._lean_times > 1 else []
        return lean + [(MOMENTUM_SHARE, FIRST_TIMES)] * self._momentum

    def warn_if_starved(self, carried: float | None) -> None:
        """Warn once if broadcasts, of which the last carried this share, carry too little for momentum."""
        low = self._momentum and carried is not None and carried < 0.9 * MOMENTUM_SHARE
        self._starved = self._starved + 1 if low else 0
        if self._starved == STARVED_ROUNDS:
            warnings.warn(
                "the server has momentum, but broadcasts carry less than 40 % of what its model has moved, which ruins "
                "training: raise bytes or down, or train without momentum",
                BudgetWarning,
                stacklevel=3,
            )
