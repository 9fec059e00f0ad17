"""Who may send how much this round: the policy decides, and the account keeps a budget in bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagc.policies import Plan, Report, Situation
from dagc.protocol.messages import BEST, Order, Upload
from dagc.protocol.roster import Member
from dagc.state import Stateful, fields, finite, listed, nested, optional, text, whole
from dagc.wire import payload_size


def _report(values: Any) -> Report:
    return Report(text(values[0]), optional(finite)(values[1]), *map(whole, values[2:]))


class Budget(Stateful):
    """The budget of one direction, by a plan resolved for this size, and who gets which part of it."""

    FITS = "this budget"
    STATE = fields(policy=nested, account=nested, reports=listed(_report))

    def __init__(self, plan: Plan, size: int, rounds: int | None = None) -> None:
        self.plan, self.size = plan, size
        self.policy, self.account = plan.policy(size), plan.account(rounds)
        self.reserved: dict[str, int] = {}  # the most bytes of the account that each answer of this round can take
        self.reports: list[Report] = []  # of the last round

    def loaded(self) -> None:
        self.reserved = {}

    def amounts(
        self, round: int, holding: Sequence[str], members: Mapping[str, Member], seconds: float
    ) -> dict[str, Any]:
        """How much each of these clients, all of which hold data, sends in a round counted from 0.

        The bytes are spent now: an upload that never arrives may still have been sent.
        """
        self.reserved = {}
        if not holding:
            return {}
        allowance = None
        if self.account is not None:
            self.account.earn(len(holding), seconds)
            allowance = self.account.balance
        examples = {name: member.examples for name, member in members.items()}
        decided = self.policy.decide(Situation(round, holding, examples, self.reports, allowance))
        native = [each.item() if isinstance(each, np.generic) else each for each in decided]  # from plugins
        amounts = dict(zip(holding, native, strict=True))
        compressor = self.policy.compressor
        self.reserved = {name: self.most_bytes(Order(1, amount, compressor)) for name, amount in amounts.items()}
        if self.account is not None:
            self.account.spend(sum(self.reserved.values()))
        return amounts

    def refund(self, name: str, order: Order, length: int) -> None:
        """Return what an answer of this many bytes did not use. What it may use beyond its share costs nothing."""
        if self.account is not None and name in self.reserved:
            used = length - self.reserved[name]
            self.account.spend(min(used, 0) if order.share else used)

    def most_bytes(self, order: Order) -> int:
        """The most bytes that an answer to this order can take; 0 if there is no limit."""
        if order.compressor == BEST:
            return int(order.amount)
        return int(payload_size(self.size, order.most_entries, self.plan.values)[0]) if order.most_entries else 0

    def report(self, uploads: Sequence[Upload]) -> None:
        """Note the uploads accepted in this round."""
        self.reports = [Report(each.client, each.norm, len(each.update), len(each.frame)) for each in uploads]
