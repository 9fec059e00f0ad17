"""Whether a plan can learn in its rounds: said before the first one."""

import math
import warnings
from collections.abc import Mapping

from dagc.errors import BudgetWarning, InvalidInput
from dagc.policies import Plan, make_rate
from dagc.protocol.server import Server
from dagc.text import count

LEAST_PART = 0.02
"""Plans whose rounds hold no more than this part of the entries get a warning. The leanest that learned in
`docs/studies/thrifty.md` hold several times as many."""


def check_rounds(plan: Plan, size: int, examples: Mapping[str, float], rounds: int, present: int) -> None:
    """Refuse a budget under which nobody ever sends; warn about one that changes next to nothing.

    Args:
        plan: The plan for this size.
        size: The number of entries of the model.
        examples: How many each client holds; those without any send nothing.
        rounds: How many there are in the training.
        present: How many clients take part in one.
    """
    if plan.per_hour or plan.threshold is not None or not plan.method_spec.budgets:
        return
    holding = {client: count for client, count in examples.items() if count}
    if not holding:
        return
    present = min(present, len(holding))
    name = (plan.budgets_set or ["bytes"])[-1]
    value = getattr(plan, name)
    words = {"ratio": f"ratio {value}", "bytes": f"{value} byte{'' if value == 1 else 's'}"}.get(name, value)
    budget = f"{count(rounds, 'round')} of {words} per client"
    server = Server(plan, size, rounds)
    for client, amount in holding.items():
        server.join(client, amount)
    while all(order.silent for order in server.orders(list(holding)[:present]).values()):
        server.close([])
        if server.round == rounds:
            raise InvalidInput(f"nobody sends anything in {budget}: raise {name} or rounds")
    up, down = _entries(plan, size, rounds), plan.downward()
    part = min(present * up, math.inf if down is None else _entries(down.for_size(size), size, rounds)) * rounds / size
    if part < LEAST_PART:
        warnings.warn(
            f"{budget} hold at most {100 * part:.2g} % of the model's {size:,} entries at a byte each, "
            f"too few to learn much: raise {name} or rounds",
            BudgetWarning,
            stacklevel=3,
        )


def _entries(plan: Plan, size: int, rounds: int) -> float:
    """The entries of a round, at a byte each."""
    if plan.ratio is not None:
        return plan.ratio * size
    return make_rate(plan.rate).bytes / rounds if plan.rate is not None else float(plan.bytes or 0)
