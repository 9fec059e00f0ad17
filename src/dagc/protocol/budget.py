"""Who may send how much this round: the policy decides, and the account keeps a budget in bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagc.policies import Plan, Report, Situation
from dagc.protocol.messages import BEST, Order, Upload
from dagc.protocol.roster import Member
from dagc.state import Stateful, fields, finite, listed, nested, optional, text, whole
from dagc.wire import payload_size
from dagc.wire.frame import varint

SERVER = "server"


def _report(client: Any, norm: Any, entries: Any, size: Any) -> Report:
    return Report(text(client), optional(finite)(norm), whole(entries), whole(size))


class Budget(Stateful):
    """The budget of one direction, by a plan resolved for this size, and who gets which part of it."""

    FITS = "this budget"
    STATE = fields(policy=nested, account=nested, reports=listed(lambda values: _report(*values)))

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


class Allowance(Stateful):
    """How much the server may broadcast in each round, as the only client of its own plan, `Plan.downward`."""

    STATE = fields(_turns=finite, _policy=nested, _account=nested)

    def __init__(self, plan: Plan, size: int, rounds: int | None = None) -> None:
        self._policy, self._account = plan.policy(size), plan.account(rounds)
        self._turns = 0.0  # rounds that were not used, if the budget is not in bytes

    def amount(self, round: int, share: float, seconds: float) -> int:
        """How many entries or bytes there are for this part of a round's budget; 0 if there is none yet."""
        allowance = None
        if self._account is not None:
            self._account.earn(share, seconds)
            allowance = self._account.balance
        else:
            self._turns += share
            if self._turns < 1 - 1e-9:
                return 0
            self._turns -= 1
        (amount,) = self._policy.decide(Situation(round, [SERVER], {SERVER: 1.0}, (), allowance))
        return int(amount)

    def pay(self, length: int) -> None:
        """Pay for a broadcast of this many bytes."""
        if self._account is not None:
            self._account.spend(length + len(varint(length)))  # several are sent together, each with its length
