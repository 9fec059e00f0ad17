"""What a plan means for a model and its clients, and why: from the rules and constants that the code itself uses."""

from typing import NamedTuple

import numpy as np

from dagc.allocation import allocate
from dagc.planning.forecast import Fleet, dense_bytes
from dagc.policies import POLICIES, Allocated, Plan
from dagc.policies.plan import CODED_BELOW, SIGNS_BELOW, SIGNS_BELOW_BYTES, usual_bytes
from dagc.protocol.memories import CLOCKS
from dagc.report.numbers import in_bytes
from dagc.wire import payload_size
from research import theory

__all__ = ["Choice", "choices"]


class Choice(NamedTuple):
    """A setting of a plan, in words.

    Attributes:
        setting: Its name in `Plan`, or something the method decides by itself.
        chosen: Its value.
        why: The reason, or that it was given.
    """

    setting: str
    chosen: str
    why: str


def choices(plan: Plan, fleet: Fleet) -> list[Choice]:
    """What was chosen, and why.

    Args:
        plan: The plan as it was given.
        fleet: The model and the clients.

    Example:
        >>> fleet = Fleet(parameters=7850, examples={"ann": 900, "bob": 100})
        >>> for choice in choices(Plan(method="dagc", frames="compact"), fleet)[2:4]:
        ...     print(choice)
        Choice(setting='values', chosen='sign', why='44 bytes are 0.56 % of 7,850 entries, below 10 %: more entries ...
        Choice(setting='frames', chosen='compact', why='as given')
    """
    done = plan.for_size(fleet.parameters)
    found = [
        Choice("budget", *_budget(plan, done)),
        Choice("allocation", *_allocation(done, fleet)),
        Choice("values", done.values, _values(done, fleet.parameters)),
        Choice("frames", done.frames, _frames(done, fleet)),
        Choice("overhead", *_overhead(done, fleet)),
        Choice("down", str(done.down or "lossless"), _down(done, fleet)),
        Choice("step_ahead", f"{done.step_ahead:g}", _step_ahead(done)),
    ]
    given = plan.settings().keys() - {"method"}
    return [choice._replace(why="as given") if choice.setting in given else choice for choice in found]


def _budget(plan: Plan, done: Plan) -> tuple[str, str]:
    if plan.rate is not None:
        return f"{plan.rate} for each client", "as given"
    if done.ratio is not None:
        return f"{100 * done.ratio:g} % of the entries", "as given"
    if done.bytes is None:
        return "none", "everything is sent"
    why = "as given" if plan.bytes is not None else str(usual_bytes.__doc__).partition(": ")[2].partition("\n")[0]
    return f"{done.bytes:,g} bytes per client and round", why


def _allocation(plan: Plan, fleet: Fleet) -> tuple[str, str]:
    policy = plan.policy(fleet.parameters)
    if not isinstance(policy, Allocated):
        return plan.method, POLICIES[plan.method].about
    weights = np.array([examples for examples in fleet.examples.values() if examples > 0])
    skew = weights.max() / weights.min()
    ratios = allocate(weights, ratio=0.001, method=policy.allocator, exponent=plan.exponent)
    even = allocate(weights, ratio=0.001, method="uniform")
    if np.allclose(ratios, even):
        return "the same for all", "all hold equally much data, or the method ignores it"
    factor = theory.residual_factor(weights, ratios) / theory.residual_factor(weights, even)
    why = f"sizes differ {skew:,.3g}:1; {1 - factor:.0%} less is left unsent than with equal shares (Σ p²/δ²)"
    return f"by data ({policy.allocator})", why


def _values(plan: Plan, size: int) -> str:
    part = plan.ratio if plan.ratio is not None else None if plan.bytes is None else plan.bytes / size
    if part is None:
        return "budgets over time are small"
    amount = f"{plan.bytes:,g} bytes are {100 * part:.2g} % of {size:,} entries" if plan.bytes else f"{100 * part:g} %"
    if part < SIGNS_BELOW:
        return f"{amount}, below {100 * SIGNS_BELOW:g} %: more entries are worth more than exact values"
    if plan.bytes is not None and plan.bytes < SIGNS_BELOW_BYTES:
        return f"{amount}, but fewer than {SIGNS_BELOW_BYTES}: more entries are worth more than exact values"
    return f"{amount}, not below {100 * SIGNS_BELOW:g} %: exact values matter"


def _frames(plan: Plan, fleet: Fleet) -> str:
    size, clients = fleet.parameters, len(fleet.examples)
    if plan.frames != "coded":
        return f"more than {CODED_BELOW:,} entries: the coder would take longer than it saves"
    clocks = 4 * size
    having = min(clients, CLOCKS // clocks)
    words = f"at most {CODED_BELOW:,} entries; {in_bytes(clocks)} of memory per client, on both sides"
    return words if having == clients else f"{words}, for the first {having:,} of {clients:,} clients; less after them"


def _overhead(plan: Plan, fleet: Fleet) -> tuple[str, str]:
    policy = plan.policy(fleet.parameters)
    if not plan.overhead or not isinstance(policy, Allocated):
        return "nobody waits", "unless the budget is too small for a frame from every client"
    frame = int(payload_size(fleet.parameters, policy.least, plan.values, frames=plan.frames)[0])
    why = f"a client waits until it has saved up for {policy.least:,} entries, {in_bytes(frame)}"
    return f"at most {plan.overhead:g} of a frame", why


def _down(plan: Plan, fleet: Fleet) -> str:
    down = plan.downward()
    if down is None:
        return "every change is sent"
    here = fleet.asked / len(fleet.examples)
    times, lossless = plan.down_share(here) / here, "a lossless downlink would be nearly all of the traffic"
    if times == 1:
        each = "as much as a client may send" if down.bytes is None else f"{down.bytes:,.10g} bytes per visit"
        return f"{each}; {lossless}"
    each = f"{times:.3g} times what a client may send"
    if down.bytes is not None:
        each = f"{min(times * down.bytes, dense_bytes(fleet.parameters)):,.0f} bytes per visit"
    return f"{each}, because clients come rarely; {lossless}"


def _step_ahead(plan: Plan) -> str:
    return "clients do not learn again what they have not sent yet" if plan.step_ahead else "off"
