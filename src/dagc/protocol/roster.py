"""Who takes part: every client that ever joined, how much data it holds, and what the server knows of its model."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from statistics import mean, median_low
from typing import Any

from dagc.errors import InvalidInput, shown, unknown
from dagc.state import Stateful, fields, finite, instance, plain, text, whole

SMOOTHING = 0.5  # the weight of one round in the running gaps
RARER = 8  # the downlink's budget for a round is at least this part of what clients that come back allow
MOST_EXAMPLES = 1 << 53


@dataclass
class Member(Stateful):
    """A client, as the server knows it."""

    name: str  # survives restarts
    number: int  # its place in the roster: uploads are always added up in this order
    examples: float
    model_version: int = -1  # -1 if it is not known to have a model
    accepted_round: int = 0  # of its last upload that was accepted; 0 if none was
    last_round: int = 0  # in which it last took part; 0 if it never did
    last_gap: int = 0  # the rounds between that one and the one before in which it took part; 0 if there was none

    STATE = fields(
        name=text,
        number=whole,
        examples=partial(finite, least=0, below=MOST_EXAMPLES),
        model_version=partial(whole, least=-1),
        accepted_round=whole,
        last_round=whole,
        last_gap=whole,
    )


def _members(states: Any) -> dict[str, Member]:
    members: dict[str, Member] = {}
    for number, state in enumerate(instance(list)(states)):
        member = Member("", number, 0.0)
        member.load_state_dict(state)
        members[member.name] = member
        if (member.number, len(members)) != (number, number + 1):
            raise ValueError("a member is listed twice, or out of place")
    return members


class Roster(Stateful):
    """Members by name, in the order in which they joined. Clients may join at any time, leave and come back.

    Args:
        newcomer: The model version of a client that joins: -1, or 0 if clients create the first model themselves.
        most_examples: A client that claims more examples counts as if it held this many.
    """

    FITS = "this roster"
    STATE = fields(gap=finite, return_gap=finite, members=_members)

    def __init__(self, newcomer: int = -1, most_examples: float | None = None) -> None:
        self.newcomer, self.most_examples = newcomer, most_examples
        self.members: dict[str, Member] = {}
        self.gap = 1.0  # the typical number of rounds until a client takes part again
        self.return_gap = 1.0  # the mean of those rounds, of clients that come back

    def join(self, name: str, examples: float) -> None:
        """Add a client, or update its number of examples."""
        if not isinstance(examples, Real) or not 0 <= examples < MOST_EXAMPLES:
            raise InvalidInput(
                f"client {name!r:.120} claims {shown(examples, 50)} examples: it must be a number from 0 to 2^53"
            )
        counted = float(examples) if self.most_examples is None else min(float(examples), float(self.most_examples))
        member = self.members.setdefault(name, Member(name, len(self.members), counted, self.newcomer))
        member.examples = counted

    def present(self, names: Iterable[str]) -> list[Member]:
        """The members with these names, in the order of the roster."""
        listed = list(names)
        for name in listed:
            if name not in self.members:
                raise unknown("member", name, self.members)
        return sorted((self.members[name] for name in listed), key=lambda member: member.number)

    def note_present(self, present: list[Member], round: int) -> None:
        """Note who takes part in a round.

        How many clients there are that were never seen follows from how many of those present were seen before, as
        with animals that are caught, marked and caught again (Chapman's estimator). Low medians, so that one of two
        clients does not make the other rare; geometric means, so that one strange round is soon forgotten.
        """
        back = [round - member.last_round for member in present if member.last_round]
        if present and round > 1:
            known = sum(1 for member in self.members.values() if member.last_round)
            clients = (known + 1) * (len(present) + 1) / (len(back) + 1) - 1
            gaps = [*map(float, back), *[clients / len(present)] * (len(present) - len(back))]
            self.gap = max(1.0, self.gap ** (1 - SMOOTHING) * median_low(gaps) ** SMOOTHING)
        if back:
            self.return_gap += SMOOTHING * (mean(back) - self.return_gap)
        for member in present:
            member.last_gap = round - member.last_round if member.last_round else 0
            member.last_round = round

    @property
    def broadcast_gap(self) -> float:
        """The rounds until a client takes part again, as broadcasts are budgeted.

        Newcomers download the whole model. If most are new for ever, broadcasts must not become ever rarer.
        """
        return min(max(self.gap, self.return_gap), RARER * self.return_gap)

    def loaded(self) -> None:
        if self.gap <= 0 or self.return_gap <= 0:
            raise ValueError(f"the rounds until clients take part again are {self.gap} and {self.return_gap}")

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "members": plain(list(self.members.values()))}
