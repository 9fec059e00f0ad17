"""Who sends how much this round: the plan, and the policies that carry it out."""

from functools import partial

from dagc.policies.allocated import Allocated
from dagc.policies.everything import Everything
from dagc.policies.plan import BUDGETS, ClientPlan, Plan
from dagc.policies.policy import POLICIES, Method, Policy, Report, Situation
from dagc.policies.rate import Account, Rate, make_rate
from dagc.policies.shares import Shares

__all__ = [
    "BUDGETS",
    "POLICIES",
    "Account",
    "Allocated",
    "ClientPlan",
    "Everything",
    "Method",
    "Plan",
    "Policy",
    "Rate",
    "Report",
    "Shares",
    "Situation",
    "absolute",
    "make_rate",
    "relative",
]


def relative(allocator: str, about: str, compressor: str = "top-k") -> Method:
    """A method that gives each client a number of entries, by an allocator in `dagc.ALLOCATORS`."""
    make = partial(Allocated, allocator=allocator, compressor=compressor)
    return Method(("ratio", "bytes", "rate"), make, waits=True, about=about)


def absolute(allocator: str, about: str) -> Method:
    """A method that gives each client a threshold."""
    make = partial(Allocated, allocator=allocator, compressor="hard-threshold")
    return Method(("threshold",), make, about=about)


def _power(plan: Plan, size: int) -> Policy:
    return Allocated(plan, size, "power", "top-k" if plan.threshold is None else "hard-threshold")


POLICIES |= {
    "none": Method(
        (),
        Everything,
        about="no compression: everything is sent",
        defaults={"values": "fp32", "frames": "compact"},
        fixed=True,
    ),
    "top-k": relative("uniform", "the largest entries, equally many from every client"),
    "stc": Method(
        ("ratio", "bytes", "rate"),
        partial(Allocated, allocator="uniform", compressor="top-k"),
        about="Sparse Ternary Compression: top-k as signs, both ways",
        defaults={"values": "sign", "frames": "compact", "down": "same"},
        fixed=True,
    ),
    "random-k": relative("uniform", "random entries, equally many from every client", "random-k"),
    "hard-threshold": absolute("uniform", "the same threshold for every client"),
    "dagc": Method(
        ("ratio", "bytes", "rate"),
        Shares,
        about="as accurate as without compression: bytes by data, spent on whatever carries most, both ways",
        defaults={"down": "same", "first_bits": 8},
        encodes=True,
    ),
    "thrifty": Method(
        ("ratio", "bytes", "rate"),
        _power,
        waits=True,
        about="the fewest bytes to a first useful model: signs by data, coded frames, waiting, step-ahead, both ways",
        defaults={
            "values": "auto",
            "frames": "auto",
            "overhead": 0.125,
            "down": "same",
            "step_ahead": 0.5,
            "first_bits": 8,
        },
    ),
    "dagc-r": relative("dagc-r", "entries by data: Algorithm 2 of the paper"),
    "dagc-a": absolute("dagc-a", "thresholds by data: Algorithm 3 of the paper"),
    "power": Method(
        ("ratio", "bytes", "rate", "threshold"),
        _power,
        waits=True,
        about="in proportion to (share of data)^exponent",
    ),
}
